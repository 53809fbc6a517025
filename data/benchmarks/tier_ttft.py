"""Time to the first token against where cached blocks lie and how long the context is (FusionRAG, figure 19).

    python data/benchmarks/tier_ttft.py --threads 2

writes timings of experiment "tiers": full attention and reuse from memory and from disk, with nothing and 15%
recomputed.
"""

import tempfile
from pathlib import Path

from script import name_of, options, writer

from workbench import data, models
from workbench.experiments.latency import ttft


def main() -> None:
    """Measure and write."""
    lengths = [256, 512, 1024, 2048]
    given = options(__doc__, model="lab-full", device="cpu", threads=2, repeats=15, lengths=lengths)
    loaded = models.load(given.model, given.device)
    texts, origin = data.load("lab", 8, 0), {"model": given.model, "data": "lab", "seed": 0}
    with writer(given, f"tiers@{name_of(given.model)}", loaded.model.device, **origin) as out:
        for length in given.lengths:
            prompt = ttft.prompt_of_length(length, texts, loaded.tokenizer, loaded.layout)
            with tempfile.TemporaryDirectory() as folder:
                out.timings(ttft.over_tiers(loaded, [prompt], Path(folder) / "blocks", given.repeats))


if __name__ == "__main__":
    main()
