#!/usr/bin/env bash
# compute-sanitizer over the cases of every kernel, on a GPU: one process for each kernel and tool, JOBS at a time.
#     bash data/benchmarks/memory_checks.sh                       all kernels, memcheck and racecheck
#     TOOLS=memcheck KERNELS=question_attention bash data/benchmarks/memory_checks.sh
# Prints a line for each, with what the tool counted, and the first lines of its errors.
# memcheck   reads and writes outside of what was allocated; torch's cache of allocations is off, so that each is one
# racecheck  accesses to shared memory that no barrier keeps apart. It does not follow memory barriers (mbarrier), by
#            which warps of the kernels for Hopper hand tiles on, and names them too, as in FlashAttention
#            (AI/RACECHECK_TMA_HAZARD.md), and reductions of Triton (its issue 7264). tests/kernels/ahead_of_time.py
#            looks instead whether each arrival stands behind a barrier of the warps that wrote
set -euo pipefail
cd "$(dirname "$0")/../.."
export python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || python=python3
check() {
    said=$(PYTORCH_NO_CUDA_MEMORY_CACHING=$([ "$1" = memcheck ] && echo 1 || echo 0) timeout "${SECONDS_EACH:-600}" \
        compute-sanitizer --tool "$1" --print-limit 3 "$python" -m workbench bench "$2" --check 2>&1) && right=right || right="failed ($?)"
    echo "$1 $2: $right, $(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' <<<"$said" || echo 'no count')"
    grep "^=====" <<<"$said" | grep -v "SUMMARY\|COMPUTE-SANITIZER" | head -12 || true
}
export -f check
kernels=${KERNELS:-$("$python" -c 'from workbench.experiments import bench; print(*bench.names())')}
for tool in ${TOOLS:-memcheck racecheck}; do printf "$tool %s\n" $kernels; done |
    xargs -P "${JOBS:-8}" -L 1 bash -c 'check "$0" "$1"'
