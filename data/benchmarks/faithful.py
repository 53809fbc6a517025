"""How right answers are and how faithful to their passages: FusionRAG's table 2 and figure 2 on lab questions,
and what preparation gives each selector (figure 16).

    python data/benchmarks/faithful.py --samples 500
    for model in runs/lab-hard-*/model; do
        python data/benchmarks/faithful.py --model "$model" --data lab-hard --samples 1000 --device cuda
    done

leaves faithful-MODEL.json (_ for - in its name): of every method, two digits a question: "faithful" is 1 where what
the answer claims stands in its passages, said of the same subject (lab facts can be read back), "right" is exact match.
15% of the tokens are recomputed where a selector chooses. Written after every method; methods that the file holds for
the same settings are not measured again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from workbench import data, models
from workbench.core.files import write_text
from workbench.experiments.record import device_name, versions
from workbench.experiments.trial import Trial
from workbench.metrics.faithfulness import judge

HERE = Path(__file__).parent
SEED, PASSAGES, RATIO = 30_000, 10, 0.15
TEN = "with_neighbours(n=10, search=exact)"
METHODS: dict[str, dict[str, Any]] = {
    "full attention": {"mode": "full"},
    "Full Reuse": {"prepare": "after_system"},
    "CacheBlend": {"prepare": "after_system", "select": "kv_deviation", "ratio": RATIO},
    "Cache-Craft": {"prepare": "after_system", "select": "inter_attention", "ratio": RATIO},
    "FusionRAG": {"prepare": TEN, "select": "query_guided", "ratio": RATIO},
    "CacheBlend, prepared": {"prepare": TEN, "select": "kv_deviation", "ratio": RATIO},
    "FusionRAG, unprepared": {"prepare": "after_system", "select": "query_guided", "ratio": RATIO},
    "Full Reuse, prepared": {"prepare": TEN},
}


def name_of(model: str) -> str:
    """Name a model: a shipped one, or the run that trained it."""
    path = Path(model)
    return path.parent.name if path.name == "model" else path.name


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--data", default="lab", help="lab, lab-hard, with switches in brackets")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    model = name_of(args.model)
    path = args.out / f"faithful-{model.replace('-', '_')}.json"
    about = {"model": model, "data": args.data, "seed": SEED, "passages": PASSAGES, "ratio": RATIO}
    about |= {"samples": args.samples}
    before = json.loads(path.read_text()) if path.exists() else {}
    kept = before.get("methods", {}) if all(before.get(name) == value for name, value in about.items()) else {}
    loaded = models.load(args.model, args.device)
    about |= {"device": device_name(loaded.model.device), "versions": versions()}
    samples = data.load(args.data, args.samples, SEED, PASSAGES)
    decide = judge("lab")
    common = {"samples": args.samples, "seed": SEED, "passages": PASSAGES, "device": args.device, "timed": 1}
    for name, settings in METHODS.items():
        if name in kept:
            continue
        trial = Trial(args.model, args.data, fidelity=False, batch=32, **common, **({"mode": "block"} | settings))
        rows = trial.run_each(loaded=loaded)[1]
        verdicts = decide(samples, [row["answer"] for row in rows])
        faithful = "".join(str(int(bool(claims) and all(claims))) for claims in verdicts)
        right = "".join(str(int(row["em"])) for row in rows)
        kept[name] = {"faithful": faithful, "right": right}
        write_text(path, json.dumps({**about, "methods": kept}, indent=1) + "\n")
        print(f"{name}: faithful {faithful.count('1')}, right {right.count('1')} of {len(rows)}", flush=True)


if __name__ == "__main__":
    main()
