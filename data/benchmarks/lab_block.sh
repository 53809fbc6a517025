#!/usr/bin/env bash
# Block fine-tuning of lab-full and its ablations, each run on a GPU of its own where there are enough, side by side; run
# it again to go on where it stopped. The shipped lab-block is mixed-0. RUNS names them; STEPS, BATCH, LR, OPTIMIZER, KINDS
# and the like are those of every run, EVERY and SAMPLES say how often and on how many held-out questions both modes are
# scored, MINUTES limits one call.
#     bash data/benchmarks/lab_block.sh       leaves runs/lab-block-RUN/model and data/benchmarks/lab-block-RUN.json
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
runs=(${RUNS:-mixed-0 naive-0})
kinds=single-hop=.15,continuation=.35,two-hop=.1,comparison=.05,order=.05,epithet=.3 # mostly what one passage alone does not answer
device=$(python3 -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
gpus=$(python3 -c 'import torch; print(max(1, torch.cuda.device_count()))')
learn() { # RUN is MODE-SEED; naive is mixed without position re-encoding
    local mode=${1%-*} positions=re-encoded
    [ "$mode" != naive ] || { mode=mixed; positions=naive; }
    [ -d "runs/lab-block-$1/model" ] || python3 -m workbench tune --model "${MODEL:-lab-full}" --data lab \
        --out "runs/lab-block-$1" --mode "$mode" --positions "$positions" --seed "${1##*-}" \
        --steps "${STEPS:-900}" --batch "${BATCH:-32}" --lr "${LR:-1.5e-3}" --optimizer "${OPTIMIZER:-muon}" \
        --warmup "${WARMUP:-50}" --passages "${PASSAGES:-2-40}" --questions "${QUESTIONS:-24}" \
        --kinds "${KINDS:-$kinds}" --continued "${CONTINUED:-.8}" --shuffled "${SHUFFLED:-.7}" \
        --evaluate-every "${EVERY:-150}" --evaluate-samples "${SAMPLES:-200}" --evaluate-passages 10 \
        --save-every 250 --workers "${WORKERS:-10}" --device "$device" --minutes "${MINUTES:-inf}"
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
