#!/usr/bin/env bash
# SeerAttention's gate of the shipped lab model, distilled from its own attention; under 3 minutes on one H200.
#     DEVICE=cuda bash data/benchmarks/seer_gate.sh       leaves data/models/lab-full/seer_attention.safetensors
# A small run to see that it works, on a CPU in about a minute:
#     STEPS=5 SAMPLES=4 OUT=/tmp/gate.safetensors bash data/benchmarks/seer_gate.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
"${PYTHON:-.venv/bin/python}" -m workbench sparse distill --model lab-full --data lab --passages 40 --seed 40000 \
    --samples "${SAMPLES:-160}" --steps "${STEPS:-150}" --batch 2 --lr 1e-3 --device "${DEVICE:-cpu}" \
    --out "${OUT:-data/models/lab-full/seer_attention.safetensors}" --json
