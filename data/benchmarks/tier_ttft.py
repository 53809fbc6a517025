"""Time to the first token against where cached blocks lie and how long the context is (FusionRAG, figure 19).

    python data/benchmarks/tier_ttft.py --threads 2

writes timings of experiment "tiers": full attention and reuse from memory and from disk, with nothing and 15%
recomputed.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from workbench import data, models
from workbench.experiments.latency import tier_ttft, ttft
from workbench.experiments.trials.record import device_name, versions
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

LENGTHS, QUESTION = (256, 512, 1024, 2048), 50


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--out", type=Path, default=FOLDER)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    loaded = models.load(given.model, given.device)
    texts = data.load("lab", 8, 0)
    origin = {"model": given.model, "data": "lab", "seed": 0, "device": device_name(loaded.model.device)}
    with Writer(given.out, f"tiers@{Path(given.model).name}", **origin, versions=versions(), **this_run()) as out:
        for length in given.lengths:
            prompt = ttft.prompt_of_length(length, texts, loaded.tokenizer, loaded.layout, QUESTION)
            with tempfile.TemporaryDirectory() as folder:
                out.timings(tier_ttft.measured(loaded, [prompt], Path(folder) / "blocks", given.repeats))


if __name__ == "__main__":
    main()
