#!/usr/bin/env bash
# Everything that is measured of real models on real questions, on one GPU: the plans real-*.toml, one after another.
#     FILES=runs/files OUT=runs/real bash data/benchmarks/gpu_real.sh        and again, to go on
# FILES    folder with NAME.jsonl or NAME-test.jsonl for every NAME in JOBS (data/benchmarks/split_questions.py)
# JOBS     what is measured, NAME:PLAN:PASSAGES:SAMPLES, in this order, on MODEL
# PROCESSES share the GPU (measuring is bound by the host; more than a few need CUDA's multi-process service)
# Then: python data/benchmarks/ship.py runs/real trial@real
set -euo pipefail
: "${FILES:?folder of question files}" "${OUT:?folder of results}"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
PYTHON=${PYTHON:-.venv/bin/python} plans=$(cd "$(dirname "$0")/plans" && pwd)
command -v "$PYTHON" >/dev/null || PYTHON=python3
for job in ${JOBS-nq:choices:10:500 nq:ratios:10:500 hotpotqa:ratios:10:500 nq:sparse:40:200 manuals:choices:10:500}; do
    IFS=: read -r name plan passages samples <<<"$job"
    for file in "$FILES/$name.jsonl" "$FILES/$name-test.jsonl"; do [ -f "$file" ] && break; done
    "$PYTHON" -m workbench sweep --plan "$plans/real-$plan.toml" --model "${MODEL:-smollm2}" --data "$file" \
        --passages "$passages" --samples "$samples" --device "${DEVICE:-cuda}" --jobs "${PROCESSES:-6}" --out "$OUT"
done
