"""How TTFT, throughput and memory grow with context, blocks, batch and question: Llama-3.1-8B's shape, on a GPU.

    python data/benchmarks/scale.py                 all axes, or --axes context batch
    python data/benchmarks/scale.py --tiny          a tiny shape, for a try on a CPU

writes timings and counts of experiment "scale" into a results folder; no point begins after `--seconds`.
"""

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

from workbench.experiments.bench.models import whole_model
from workbench.experiments.latency import scale
from workbench.experiments.trials.record import device_name, versions
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97}


def main() -> None:
    """Measure and write, a point at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="*", default=[axis.name for axis in scale.AXES])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=FOLDER, help="results folder")
    given = parser.parse_args()
    end = perf_counter() + given.seconds
    model = whole_model.build(whole_model.LLAMA | TINY if given.tiny else whole_model.LLAMA)
    scene = whole_model.Scene(model, [], unit=64 if given.tiny else 1024)
    origin: dict[str, Any] = {"model": "tiny" if given.tiny else "Llama-3.1-8B", "device": device_name(model.device)}
    origin |= {"versions": versions(), **this_run()}
    axes = [axis for axis in scale.AXES if axis.name in given.axes]
    with Writer(given.out, f"scale@{'gpu' if whole_model.GPU else 'cpu'}", **origin) as out:
        for row in scale.curves(scene, axes, given.runs):
            timing, counts = scale.result_rows(row)
            out.timings([timing])
            out.counts(counts)
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            if perf_counter() > end:
                break


if __name__ == "__main__":
    main()
