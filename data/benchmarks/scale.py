"""How TTFT, throughput and memory grow with context, blocks, batch and question: Llama-3.1-8B's shape, on a GPU.

    python data/benchmarks/scale.py                 all axes, or --axes context batch
    python data/benchmarks/scale.py --tiny          a tiny shape, for a try on a CPU

leaves scale.json; points of axes that are not measured again stay, and none begins after `--seconds`.
"""

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

from workbench.experiments import results
from workbench.experiments.bench import timing
from workbench.experiments.bench.models import whole_model
from workbench.experiments.latency import scale
from workbench.experiments.trials.record import device_name, versions

HERE = Path(__file__).parent
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97}


def main() -> None:
    """Measure and write, a point at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="*", default=[axis.name for axis in scale.AXES])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--beside", default="nothing", help="what else the GPUs did meanwhile, for readers")
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    end = perf_counter() + given.seconds
    model = whole_model.build(whole_model.LLAMA | TINY if given.tiny else whole_model.LLAMA)
    scene = whole_model.Scene(model, [], unit=64 if given.tiny else 1024)
    about: dict[str, Any] = {"command": "python data/benchmarks/scale.py"}
    about |= {
        "beside": given.beside,
        "shape": "tiny" if given.tiny else "Llama-3.1-8B",
        "device": device_name(model.device),
    }
    about |= {"versions": versions(), "token_bytes": scene.bytes(1) - scene.bytes(0), "weight_bytes": scene.bytes(0)}
    about |= {"copy_bytes_per_s": timing.roof(model.device).copy if whole_model.GPU else None}
    path = given.out / "scale.json"
    kept = results.read_json(path)["rows"] if path.is_file() else []
    rows = [row for row in kept if row["axis"] not in given.axes]
    axes = [axis for axis in scale.AXES if axis.name in given.axes]
    for row in scale.curves(scene, axes, given.runs):
        rows.append(row)
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
        results.write_json(path, {**about, "rows": rows})
        if perf_counter() > end:
            break


if __name__ == "__main__":
    main()
