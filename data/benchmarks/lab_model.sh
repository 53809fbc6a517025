#!/usr/bin/env bash
# Trains the lab model from three seeds side by side on one GPU and scores each on held-out worlds; run it again to go on
# where it stopped. MINUTES limits the training of one call, SAMPLES is the number of questions of a measurement.
#     bash data/benchmarks/lab_model.sh        leaves runs/lab-SEED/model and data/benchmarks/lab-seed-SEED.json
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
for seed in 0 1 2; do
    [ -d "runs/lab-$seed/model" ] ||
        python3 -m workbench lab train --seed "$seed" --out "runs/lab-$seed" --minutes "${MINUTES:-inf}" --workers 4 &
done
wait
for seed in 0 1 2; do
    [ -d "runs/lab-$seed/model" ] || { echo "seed $seed has not finished: run this again"; exit 3; }
    python3 -m workbench lab evaluate --model "runs/lab-$seed/model" --samples "${SAMPLES:-1000}" --device cuda --card \
        --out "data/benchmarks/lab-seed-$seed.json"
done
