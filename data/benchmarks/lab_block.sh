#!/usr/bin/env bash
# Block fine-tuning of lab-full and its ablations, each run on a GPU of its own where there are enough, side by side; run
# it again to go on where it stopped. RUNS names them, STEPS, BATCH, LR and OPTIMIZER are those of every run, EVERY and
# SAMPLES say how often and on how many held-out questions both modes are scored, MINUTES limits one call.
#     bash data/benchmarks/lab_block.sh       leaves runs/lab-block-RUN/model and data/benchmarks/lab-block-RUN.json
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
runs=(${RUNS:-mixed-0 mixed-1 naive-0 block-0})
device=$(python3 -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
gpus=$(python3 -c 'import torch; print(max(1, torch.cuda.device_count()))')
learn() { # RUN is MODE-SEED; naive is mixed without position re-encoding
    local mode=${1%-*} positions=re-encoded
    [ "$mode" != naive ] || { mode=mixed; positions=naive; }
    [ -d "runs/lab-block-$1/model" ] || python3 -m workbench tune --model "${MODEL:-lab-full}" --data lab \
        --out "runs/lab-block-$1" --mode "$mode" --positions "$positions" --seed "${1##*-}" \
        --steps "${STEPS:-800}" --batch "${BATCH:-32}" --lr "${LR:-1e-3}" --optimizer "${OPTIMIZER:-adamw}" \
        --warmup "${WARMUP:-50}" --passages "${PASSAGES:-2-40}" --questions "${QUESTIONS:-12}" \
        ${KINDS:+--kinds "$KINDS"} ${CONTINUED:+--continued "$CONTINUED"} ${SHUFFLED:+--shuffled "$SHUFFLED"} \
        --evaluate-every "${EVERY:-100}" --evaluate-samples "${SAMPLES:-300}" --evaluate-passages 10 \
        --save-every 200 --workers "${WORKERS:-10}" --device "$device" --minutes "${MINUTES:-inf}"
}
for i in "${!runs[@]}"; do
    CUDA_VISIBLE_DEVICES=$((i % gpus)) learn "${runs[i]}" 2>&1 | sed -u "s/^/[${runs[i]}] /" &
done
for job in $(jobs -p); do wait "$job" || true; done # one that fails does not stop the others
left=()
for run in "${runs[@]}"; do
    [ -d "runs/lab-block-$run/model" ] || { left+=("$run"); continue; }
    cp "runs/lab-block-$run/curve.json" "data/benchmarks/lab-block-$run.json"
done
[ ${#left[@]} -eq 0 ] || { echo "not finished: ${left[*]}; run this again"; exit 3; }
