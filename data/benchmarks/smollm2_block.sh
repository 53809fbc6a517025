#!/usr/bin/env bash
# Block fine-tuning of smollm2 without labels: its own full attention teaches its block mode (LoRA on q, k, v and o), and the
# ablation without position re-encoding. Each run has a GPU of its own where there are enough, side by side; run it again to go
# on where one was interrupted. The shipped smollm2-block is the adapter of run "block".
#     TRAIN="nq-train.jsonl manuals-train.jsonl" HELD="nq-held.jsonl" bash data/benchmarks/smollm2_block.sh
# leaves runs/smollm2-RUN/adapter (also where a run was stopped by LIMIT) and its curve in the result tables; with OUT, copies
# of the adapters and curves in that folder as well.
# The text it is trained on: files of TRAIN less every sample that shares a question or a passage with HELD or EXCLUDE.
# TRAIN    files of questions that are trained on, labelled or not; contexts are mixed from their passages (MIX passages each)
# HELD     file that both modes are compared on, every EVERY steps, over SAMPLES questions
# EXCLUDE  further files that are scored on: samples that share a question or passage with HELD or these are left out
# RUNS     block naive: those that are made. MINUTES: time of each, equal unless MINUTES_NAIVE is given; the learning rate
#          falls with it to 0
# LIMIT    minutes after which a run stops as it is (the adapter is saved), to go on later; both count from the first step
#          on, what is compiled and evaluated before it comes on top. SIGTERM stops a run with its adapter saved too
# ATTENTION auto (FlexAttention on a GPU, compiled for two lengths), or parts: nothing is compiled
set -euo pipefail
: "${TRAIN:?files of questions that are trained on}" "${HELD:?file of questions that both modes are compared on}"
here=$PWD
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
runs=(${RUNS:-block naive})
device=${DEVICE:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')}
gpus=$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))')
IFS=, read -ra cards <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus - 1)))}"
mkdir -p runs
files=() excluded=()
for file in $TRAIN; do files+=("$(cd "$here" && realpath "$file")"); done
for file in ${EXCLUDE:-}; do excluded+=(--exclude "$(cd "$here" && realpath "$file")"); done
held=$(cd "$here" && realpath "$HELD")
"$python" - runs/smollm2-train.jsonl "${files[@]}" <<'PYTHON'
import json, sys
from pathlib import Path
from workbench import data
from workbench.core.utils.files import write_text

samples = [sample for name in sys.argv[2:] for sample in data.load(name, answered=False)]
write_text(Path(sys.argv[1]), "".join(json.dumps(sample.to_json()) + "\n" for sample in samples))
print(f"{len(samples):,} samples of {len(sys.argv) - 2} files")
PYTHON
learn() { # RUN is block or naive
    local positions=re-encoded minutes=${MINUTES:-6}
    [ "$1" != naive ] || { positions=naive; minutes=${MINUTES_NAIVE:-$minutes}; }
    exec "$python" -m workbench tune --model "${MODEL:-smollm2}" --base-name "${BASE_NAME:-smollm2}" \
        --data runs/smollm2-train.jsonl --out "runs/smollm2-$1" --teacher self --positions "$positions" \
        --lora-rank "${RANK:-16}" --lr "${LR:-1e-3}" --warmup "${WARMUP:-30}" --steps "${STEPS:-6000}" --budget "$minutes" \
        --batch "${BATCH:-8}" --mix "${MIX:-3-12}" --questions "${QUESTIONS:-8}" --max-length "${MAX_LENGTH:-4096}" \
        --own-answers "${OWN:-missing}" --own-tokens "${OWN_TOKENS:-24}" --question-weight "${QUESTION_WEIGHT:-.2}" \
        --overlap drop --evaluate-data "$held" --evaluate-every "${EVERY:-200}" --evaluate-samples "${SAMPLES:-200}" \
        ${excluded[@]+"${excluded[@]}"} --seed "${SEED:-0}" --save-every "${SAVE_EVERY:-100}" --workers "${WORKERS:-6}" \
        --device "$device" --minutes "${LIMIT:-inf}" --attention "${ATTENTION:-auto}"
}
jobs=()
trap '[ ${#jobs[@]} -eq 0 ] || kill -TERM "${jobs[@]}" 2>/dev/null || true' TERM INT # each saves its adapter
for i in "${!runs[@]}"; do
    [ -f "runs/smollm2-${runs[i]}/model/config.json" ] && continue
    (CUDA_VISIBLE_DEVICES=${cards[i % gpus]} learn "${runs[i]}") > >(trap '' TERM INT; exec sed -u "s/^/[${runs[i]}] /") 2>&1 &
    jobs+=($!)
done
for job in ${jobs[@]+"${jobs[@]}"}; do # one that fails does not stop the other
    while kill -0 "$job" 2>/dev/null; do wait "$job" || true; done
done
left=()
for run in "${runs[@]}"; do
    [ -d "runs/smollm2-$run/adapter" ] || { left+=("$run"); continue; }
    "$python" data/benchmarks/training_rows.py --name "smollm2-$run" --curve "runs/smollm2-$run/curve.json"
    if [ -n "${OUT:-}" ]; then
        mkdir -p "$OUT"
        cp -r "runs/smollm2-$run/adapter" "$OUT/smollm2-$run"
        cp "runs/smollm2-$run/curve.json" "$OUT/smollm2-$run.json"
    fi
    [ -d "runs/smollm2-$run/model" ] || left+=("$run")
done
[ ${#left[@]} -eq 0 ] || { echo "not finished: ${left[*]}; run this again"; exit 3; }
