#!/usr/bin/env bash
# All results of one GPU: every kernel compared with its reference, then timed beside its baselines, then whole models beside stock
# transformers, and where a prefill spends its time. What a folder holds of the same GPU stays where it is not measured again; results of another GPU are replaced.
#     bash data/benchmarks/gpu.sh       leaves data/benchmarks/OP.json for every OP that is measured
# OPS names some of them (kernels, chunk_kernels, chunk_choices, chunk_attention, question, recompute, prefill, chunked,
# decode, stages, store_serving), AGAINST the baselines (all: FlashInfer too, where it
# is installed), CHECK=no leaves the references out, OUT is another folder. Where one fails, the others still run.
#     OPS="tile_attention prefill" CHECK=no OUT=/tmp/results bash data/benchmarks/gpu.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
out=${OUT:-data/benchmarks}
mkdir -p "$out"
kernels=$("$python" -c 'from workbench.experiments import bench; print(*bench.names())')
ops=${OPS:-$("$python" -c 'from workbench.experiments.bench import MODELS
from workbench.experiments.bench.run import WORKLOADS
print(*WORKLOADS, *MODELS, "stages", "store_serving")')}
failed=()
for op in $kernels; do # a process each: one that breaks the GPU's context does not stop the others
    [ "${CHECK:-yes}" != no ] && [[ " $ops " == *" $op "* || -z ${OPS:-} ]] || continue
    "$python" -m workbench bench "$op" --check || failed+=("$op --check")
done
for op in $ops; do
    echo "== $op"
    if [ "$op" = stages ] || [ "$op" = store_serving ]; then
        "$python" "data/benchmarks/$op.py" --device cuda --out "$out" || failed+=("$op")
    else
        "$python" -m workbench bench "$op" --against "${AGAINST:-all}" --out "$out" || failed+=("$op")
    fi
done
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
