#!/usr/bin/env bash
# smollm2-reader and smollm2-reader-block: SmolLM2 fine-tuned to answer from passages (LoRA on all linear layers).
#     TRAIN="nq-train.jsonl manuals-train.jsonl lab-train.jsonl" HELD=nq-held.jsonl OUT=runs/reader bash data/benchmarks/smollm2_reader.sh
# The reader is trained in full mode; reader-block on the same text in full and block mode in turn, as Block-Attention
# does. Each seed of each gives an adapter and two trials (full, block) on HELD, in the result tables of $OUT/results.
# Shipped is seed 0 of each, whatever it scores. Samples of TRAIN that share a question or a passage with HELD are left out.
# SEEDS    seeds of training; KINDS: reader reader-block; SIDE runs share the GPU side by side
# STEPS    of each training, each over 8 contexts of up to 8 questions; RANK of LoRA; LR its highest learning rate
set -euo pipefail
: "${TRAIN:?files of answered questions}" "${HELD:?file of questions that are scored on}" "${OUT:?folder of results}"
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 TRAIN HELD OUT
export MODEL=${MODEL:-smollm2} RANK=${RANK:-8} LR=${LR:-1e-3} STEPS=${STEPS:-300} SAMPLES=${SAMPLES:-500}
export PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || PYTHON=python3
export DEVICE=${DEVICE:-$("$PYTHON" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')}
mkdir -p "$OUT"
"$PYTHON" - "$OUT/train.jsonl" $TRAIN <<'PYTHON'
import json, sys
from pathlib import Path
from workbench import data
from workbench.core.utils.files import write_text

samples = [sample for name in sys.argv[2:] for sample in data.load(name)]
write_text(Path(sys.argv[1]), "".join(json.dumps(sample.to_json()) + "\n" for sample in samples))
print(f"{len(samples):,} samples of {len(sys.argv) - 2} files")
PYTHON
one() { # KIND SEED
    local name=$1-$2 mode=full
    [ "$1" = reader ] || mode=mixed
    [ -d "$OUT/$name/adapter" ] || "$PYTHON" -m workbench tune --model "$MODEL" --base-name smollm2 --out "$OUT/$name" \
        --data "$OUT/train.jsonl" --exclude "$HELD" --overlap drop --mode $mode --mix "${MIX:-2-12}" \
        --questions "${QUESTIONS:-8}" --lora-rank "$RANK" --lora-targets all --lr "$LR" --warmup 20 --steps "$STEPS" \
        --batch "${BATCH:-8}" --max-length 4096 --seed "$2" --device "$DEVICE" --workers 2 \
        --save-every 100000 --attention "${ATTENTION:-auto}"
    for mode in full block; do
        "$PYTHON" -m workbench trial --model "$OUT/$name/adapter" --data "$HELD" --samples "$SAMPLES" --seed 50000 \
            --passages 10 --mode $mode --no-fidelity --timed 1 --batch 32 --device "$DEVICE" --out "$OUT/results"
    done
}
export -f one
for kind in ${KINDS:-reader reader-block}; do for seed in ${SEEDS:-0 1 2 3 4}; do echo "$kind $seed"; done; done |
    xargs -P "${SIDE:-1}" -L 1 bash -c 'one "$@" >"$OUT/$1-$2.log" 2>&1 || { echo "failed: $1 $2"; tail -n 3 "$OUT/$1-$2.log"; }' one
