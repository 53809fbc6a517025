#!/usr/bin/env bash
# Trains the lab model from several seeds side by side, spread over the GPUs that are there, and scores each on held-out
# worlds; run it again to go on where it stopped. SEEDS names them, MINUTES limits the training of one call, SAMPLES is
# the number of questions of a measurement.
#     bash data/benchmarks/lab_model.sh        leaves runs/lab-SEED/model and runs/lab-SEED/scores
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
seeds=(${SEEDS:-0 1 2})
gpus=$(python3 -c 'import torch; print(max(1, torch.cuda.device_count()))')
each() { # the command for every seed at once, each on a GPU of its own where there are enough
    for i in "${!seeds[@]}"; do CUDA_VISIBLE_DEVICES=$((i % gpus)) "$1" "${seeds[i]}" & done
    for job in $(jobs -p); do wait "$job"; done
}
learn() {
    [ -d "runs/lab-$1/model" ] ||
        python3 -m workbench lab train --seed "$1" --out "runs/lab-$1" --minutes "${MINUTES:-inf}" --workers 6
}
score() {
    ask() { python3 -m workbench sweep --model "runs/lab-$1/model" --data lab --samples "${SAMPLES:-1000}" --seed 20000 \
        --batch 64 --device cuda --out "runs/lab-$1/scores" "${@:2}"; }
    ask "$1" --mode full --passages 1,5,10,20,40
    ask "$1" --mode block --positions re-encoded,naive --passages 10
}
each learn
for seed in "${seeds[@]}"; do
    [ -d "runs/lab-$seed/model" ] || { echo "seed $seed has not finished: run this again"; exit 3; }
done
[ -n "${NO_SCORES:-}" ] || each score
