#!/usr/bin/env bash
# Everything that is measured on the real model, on one machine with 1 to 4 GPUs, side by side: the groups of `real.py` that JOBS names,
# block fine-tuning with its ablation (smollm2_block.sh), then the few methods that matter on the tuned model. Run it again
# with the same OUT, or with what real.tgz held, to go on.
#     FILES=runs/files TRAIN="runs/files/nq-train.jsonl runs/files/manuals-train.jsonl" HELD=held.jsonl \
#         EXCLUDE="runs/files/nq-test.jsonl runs/files/manuals-test.jsonl" MINUTES=27 OUT=/tmp/real bash data/benchmarks/gpu_real.sh
# FILES    folder with NAME.jsonl or NAME-test.jsonl for every NAME in JOBS and FEW
# JOBS     what is measured, NAME:GROUP:PASSAGES:SAMPLES, in this order; FEW the same for the tuned model. "": nothing
# TUNE     minutes of training of each run, 0: none; it takes HELD, TRAIN, EXCLUDE and all else of smollm2_block.sh
# MINUTES  of the whole; PER_GPU processes share a GPU (measuring is bound by the host: 6 keep 16
#          cores busy; more than a few share a GPU well under CUDA's multi-process service only)
# MINILM   vectors of the passages (real.py measure --minilm), for neighbours by MiniLM
# PARTS    into how many a job is cut; the same when it goes on
# OUT      rows/, logs/, adapters and curves, as they come; real.tgz has them all, every two minutes and at the end
set -euo pipefail
: "${FILES:?folder of question files}" "${OUT:?folder of results}"
mkdir -p "$OUT/rows" "$OUT/logs"
FILES=$(realpath "$FILES") OUT=$(realpath "$OUT") here=$PWD
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 FILES OUT
PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || PYTHON=python3
read -r found cards < <("$PYTHON" -c 'import torch; n = torch.cuda.device_count(); print("cuda" if n else "cpu", max(1, n))')
export PYTHON MODEL=${MODEL:-smollm2} DEVICE=${DEVICE:-$found} GPUS=${GPUS:-$cards} PARTS=${PARTS:-15}
jobs=${JOBS-nq:ratios:10:500 hotpotqa:ratios:10:500 nq:sparse:40:200 manuals:choices:10:500}
export CARDS=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((GPUS - 1)))} PER_GPU=${PER_GPU:-6}
few=${FEW-nq:few:10:500 hotpotqa:few:10:500 manuals:few:10:500}
tune=${TUNE:-6} workers=$((GPUS * PER_GPU))
export END=$(($(date +%s) + $(awk "BEGIN { print int(60 * ${MINUTES:-27}) }")))
: >"$OUT/left"

unit() { # MODEL JOB PART: measures what is missing of a part of a job, as long as there is time
    local name group passages samples left file what log cards
    IFS=, read -ra cards <<<"$CARDS"
    IFS=: read -r name group passages samples <<<"$2"
    left=$((END - $(date +%s) - 15)) what="$(basename "$1") $2, part $3"
    [ "$left" -gt 30 ] || { echo "not begun: $what" | tee -a "$OUT/left"; return 0; }
    for file in "$FILES/$name.jsonl" "$FILES/$name-test.jsonl"; do [ -f "$file" ] && break; done
    log=$OUT/logs/$(basename "$1")-$name-$group-$3.log
    CUDA_VISIBLE_DEVICES=${cards[SLOT % GPUS]} "$PYTHON" data/benchmarks/real.py measure --model "$1" --device "$DEVICE" \
        --group "$group" --passages "$passages" --samples "$samples" --part "$3/$PARTS" --out "$OUT/rows" \
        ${MINILM:+--minilm "$MINILM"} \
        --minutes "$((left / 60)).$((left % 60 * 10 / 60))" "$name=$file" >>"$log" 2>&1 ||
        { echo "failed: $what (see logs)" | tee -a "$OUT/left"; return 0; }
    if tail -n 1 "$log" | grep -q "minutes are over"; then echo "not finished: $what" | tee -a "$OUT/left"; fi
}
export -f unit
queue() { # MODEL JOBS: all parts of one job, then of the next; as many at once as there are workers
    for job in $2; do for ((i = 0; i < PARTS; i++)); do echo "$1 $job $i"; done; done |
        xargs -r -P "$workers" --process-slot-var=SLOT -L 1 bash -c 'unit "$@"' unit
}
tuned() { # the adapter and its ablation, then the few methods on the adapter
    local training stopped=
    if [ "$tune" != 0 ] && [ ! -f "$OUT/tuned" ]; then
        trap 'stopped=yes; kill -TERM "$training" 2>/dev/null || true' TERM
        (cd "$here" && MINUTES=$tune DEVICE=$DEVICE exec timeout -k 90 $((60 * tune + 360)) \
            bash "$root/data/benchmarks/smollm2_block.sh") >>"$OUT/logs/tune.log" 2>&1 &
        training=$!
        while kill -0 "$training" 2>/dev/null; do wait "$training" && touch "$OUT/tuned" || true; done
        [ -f "$OUT/tuned" ] || echo "not finished: tuning (see logs/tune.log)" | tee -a "$OUT/left"
        trap - TERM
    fi
    [ -n "$stopped" ] || [ ! -d "$OUT/smollm2-block" ] || queue "$OUT/smollm2-block" "$few"
}
pack() { # a copy that is whole, whatever is being written
    tar czf "$OUT/real.part" -C "$OUT" --exclude=real.part --exclude=real.tgz --warning=no-file-changed . || true
    mv "$OUT/real.part" "$OUT/real.tgz"
}
(while sleep "${PACK_EVERY:-120}"; do pack; done) &
packing=$!
trap 'kill "$packing" 2>/dev/null || true; pack' EXIT
[ "$tune" = 0 ] || : "${TRAIN:?files to tune on}" "${HELD:?file of held-out questions}"
tuned &
tuning=$!
trap 'kill -TERM "$tuning" 2>/dev/null || true; wait "$tuning" || true; exit 143' TERM # its adapters are in the last pack
queue "$MODEL" "$jobs" &
wait "$tuning" $! || true
[ ! -s "$OUT/left" ] || { echo "run this again to go on"; exit 3; }
