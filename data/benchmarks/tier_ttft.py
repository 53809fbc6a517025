"""Time to the first token against where cached blocks lie and how long the context is (FusionRAG, figure 19).

    python data/benchmarks/tier_ttft.py --threads 2

writes tier_ttft.json: full attention and reuse from memory and from disk, with nothing and 15% recomputed.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from workbench import data, models
from workbench.experiments import results, tier_ttft, ttft
from workbench.experiments.record import device_name, versions

OUT = Path(__file__).with_name("tier_ttft.json")
LENGTHS, QUESTION = (256, 512, 1024, 2048), 50


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    loaded = models.load(given.model, given.device)
    texts = data.load("lab", 8, 0)
    prompts = [
        ttft.prompt_of_length(length, texts, loaded.tokenizer, loaded.layout, QUESTION) for length in given.lengths
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows = tier_ttft.measured(loaded, prompts, Path(folder) / "blocks", given.repeats)
    about = {"command": "python data/benchmarks/tier_ttft.py", "model": given.model, "question": QUESTION}
    about |= {"device": device_name(loaded.model.device), "versions": versions()}
    results.write_json(given.out, about | {"rows": rows})


if __name__ == "__main__":
    main()
