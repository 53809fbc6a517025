#!/usr/bin/env bash
# The shipped lab model on worlds that neither trained nor chose it (seed 30000; the choice among training seeds was made
# on seed 20000): full attention, independent blocks and naive positions, one after the other on an otherwise idle machine.
#     DEVICE=cuda SAMPLES=2000 bash data/benchmarks/lab_full.sh   leaves data/benchmarks/lab-full-MODE.json, a Record each
set -euo pipefail
cd "$(dirname "$0")/../.."
ask() { "${PYTHON:-.venv/bin/python}" -m workbench trial --model lab-full --samples "${SAMPLES:-2000}" --seed 30000 --passages 10 \
    --device "${DEVICE:-cpu}" --batch 64 "${@:2}" --json --out "data/benchmarks/lab-full-$1.json" >/dev/null; }
ask block --mode block
ask naive --mode block --positions naive
ask full --mode full
