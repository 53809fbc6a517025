#!/usr/bin/env bash
# Block fine-tuning of lab-full on states of a game of cards, every leaf group of a state a block, in both modes; then
# successive frames of games that were not trained on, answered in both modes (Block-Attention, figure 5). About three
# minutes of a GPU.
#     bash data/benchmarks/lab_game.sh      leaves runs/lab-game-SEED/model and data/benchmarks/beyond-lab_game_SEED.json
#     STEPS=400 BATCH=24 LR=1.5e-3 SEEDS="0"   FRAMES=1000   DEVICE=cpu   OUT, RUNS: other folders
#     BUDGET=3   minutes in which the rate falls to 0, with fewer steps      MINUTES=20   of one call, to go on later
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
python=${PYTHON:-python3} device=${DEVICE:-cuda} runs=${RUNS:-runs} out=${OUT:-data/benchmarks}
for seed in ${SEEDS:-0}; do
    run=$runs/lab-game-$seed
    [ -d "$run/model" ] || "$python" -m workbench tune --model "${MODEL:-lab-full}" --data game --questions 24 \
        --out "$run" --mode mixed --seed "$seed" --steps "${STEPS:-400}" --batch "${BATCH:-24}" --lr "${LR:-1.5e-3}" \
        --optimizer muon --warmup "${WARMUP:-30}" --workers "${WORKERS:-4}" --device "$device" \
        --minutes "${MINUTES:-inf}" ${BUDGET:+--budget "$BUDGET"}
    [ -f "$out/beyond-lab_game_$seed.json" ] || "$python" data/benchmarks/beyond_rag.py --model "$run/model" \
        --tasks game --frames "${FRAMES:-1000}" --kinds holder turn chips count --device "$device" --out "$out"
done
