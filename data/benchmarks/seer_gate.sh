#!/usr/bin/env bash
# SeerAttention's gate of the shipped lab model, distilled from its own attention on worlds of a seed that nothing else
# uses. Its file records prompts, losses, seconds and device ("training" in the metadata). Its weights are written in fp16;
# the committed scores of plans/sparse.toml were measured before they were rounded.
#     DEVICE=cuda bash data/benchmarks/seer_gate.sh       leaves data/models/lab-full/seer_attention.safetensors
# A small run to see that it works, on a CPU in about a minute:
#     STEPS=5 SAMPLES=4 GATE=/tmp/gate.safetensors bash data/benchmarks/seer_gate.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
"${PYTHON:-.venv/bin/python}" -m workbench sparse distill --model lab-full --data lab --passages 40 --seed 70000 \
    --samples "${SAMPLES:-160}" --steps "${STEPS:-150}" --batch 2 --lr 1e-3 --device "${DEVICE:-cpu}" --half \
    --out "${GATE:-data/models/lab-full/seer_attention.safetensors}" --json
