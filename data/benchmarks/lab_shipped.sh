#!/usr/bin/env bash
# The shipped models of the harder lab, their weights in 8 bits, on worlds that neither trained nor chose them: the seed
# was chosen on questions of seed 30000 (lab-hard/SIZE-SEED.json). Full attention, independent blocks, naive positions.
#     DEVICE=cuda bash data/benchmarks/lab_shipped.sh     leaves data/benchmarks/lab-hard/shipped-MODEL-MODE.json,
#                                                         a Record each; lab_card.py puts them into the cards
#     SAMPLES=2000   MODELS="lab-hard-small lab-hard-large", names or folders   OUT=FOLDER
# A record that is there is not measured again. Before it, the best of the seeds is shipped:
#     workbench lab ship --model runs/SIZE-SEED/model --out data/models/SIZE --storage int8
# and where the tracked tree has no room left (tests/test_packaging.py), lab-block is kept as its difference from lab-full:
#     workbench models difference data/models/lab-block OUT --base lab-full
set -euo pipefail
cd "$(dirname "$0")/../.."
read -ra models <<<"${MODELS:-lab-hard-small lab-hard-large}"
out=${OUT:-data/benchmarks/lab-hard}
ask() { # MODEL MODE OPTIONS…
    local file="$out/shipped-$(basename "$1")-$2.json"
    [ -f "$file" ] || "${PYTHON:-python3}" -m workbench trial --model "$1" --data lab-hard --samples "${SAMPLES:-2000}" \
        --seed 80000 --passages 10 --device "${DEVICE:-cpu}" --batch 64 --timed 1 "${@:3}" --json --out "$file" >/dev/null
}
for model in "${models[@]}"; do
    ask "$model" full --mode full
    ask "$model" block --mode block
    ask "$model" naive --mode block --positions naive
done
