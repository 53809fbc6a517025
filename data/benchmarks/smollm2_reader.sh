#!/usr/bin/env bash
# smollm2-reader and smollm2-reader-block: SmolLM2 fine-tuned to answer from passages (LoRA on all linear layers).
#     python data/benchmarks/split_questions.py --file nq-open-oracle.jsonl.gz --out runs/files
#     FILES=runs/files OUT=runs/readers bash data/benchmarks/smollm2_reader.sh
# The reader is trained in full mode; reader-block on the same text in full and block mode in turn, as Block-Attention
# does; reader-naive as reader-block, but blocks keep the positions they were cached at, each from 0. Each seed of each
# gives $OUT/KIND-SEED/adapter; plans/reader-*.toml measure them.
# Shipped is seed 0 of each, whatever it scores. Training samples that share a question or a passage with HELD are left out.
# SEEDS    seeds of training; KINDS: reader reader-block reader-naive; SIDE runs share the GPUs side by side (ten on two H100s: 7 minutes)
# EVERY    steps between two scorings of reader-block in both modes on HELD; 0: never (five runs that share a GPU are
#          stopped by them for minutes)
# STEPS    of each training, each over 8 contexts of up to 8 questions; RANK of LoRA; LR its highest learning rate
set -euo pipefail
: "${FILES:?folder of question files}" "${OUT:?folder of adapters}"
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 OUT HELD=${HELD:-$FILES/nq-held.jsonl}
export MODEL=${MODEL:-smollm2} RANK=${RANK:-8} LR=${LR:-1e-3} STEPS=${STEPS:-400} EVERY=${EVERY:-0}
export PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || PYTHON=python3
export GPUS=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')
mkdir -p "$OUT"
cat "$FILES"/{nq-rest,manuals-train,lab-train}.jsonl >"$OUT/train.jsonl"
one() { # NUMBER KIND SEED
    local run=$OUT/$2-$3 evaluate=() positions=re-encoded
    [ "$2" != reader-naive ] || positions=naive
    [ "$2" = reader ] || [ "$EVERY" = 0 ] || evaluate=(--evaluate-data "$HELD" --evaluate-every "$EVERY" --evaluate-samples "${SAMPLES:-200}" --evaluate-passages 10)
    [ "$GPUS" = 0 ] || export CUDA_VISIBLE_DEVICES=$(($1 % GPUS))
    [ -d "$run/model" ] || "$PYTHON" -m workbench tune --model "$MODEL" --base-name smollm2 --out "$run" \
        --data "$OUT/train.jsonl" --exclude "$HELD" --overlap drop --mode "$([ "$2" = reader ] && echo full || echo mixed)" \
        --mix "${MIX:-2-12}" --questions "${QUESTIONS:-8}" --lora-rank "$RANK" --lora-targets all --lr "$LR" --warmup 20 \
        --positions "$positions" --steps "$STEPS" --batch "${BATCH:-8}" --max-length 4096 --seed "$3" --workers 2 --save-every 100000 \
        --device "$([ "$GPUS" = 0 ] && echo cpu || echo cuda)" --attention "${ATTENTION:-auto}" ${evaluate[@]+"${evaluate[@]}"}
}
export -f one
number=0
for seed in ${SEEDS:-0 1 2 3 4}; do for kind in ${KINDS:-reader reader-block}; do echo "$((number++)) $kind $seed"; done; done |
    xargs -P "${SIDE:-1}" -L 1 bash -c 'one "$@" >"$OUT/$2-$3.log" 2>&1 || { echo "failed: $2 $3"; tail -n 3 "$OUT/$2-$3.log"; }' one
