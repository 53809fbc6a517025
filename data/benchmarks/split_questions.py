"""Split a file of questions in two halves by the titles of their passages, so that no passage is in both.

    python data/benchmarks/split_questions.py --file nq-open-oracle.jsonl.gz --out runs/files

A model is tuned on one half and measured on the other. Writes NAME-train.jsonl and NAME-test.jsonl, and manuals-train
and manuals-test besides: questions over installed documentation, split by object, so that machines with other packages
measure the same.
"""

import json
from hashlib import sha256
from pathlib import Path

from script import options

from workbench import data
from workbench.core.utils.files import write_text
from workbench.data import Sample

SEED = 50_000


def halves(samples: list[Sample]) -> dict[str, list[Sample]]:
    """Return {"train": samples, "test": samples}: equal titles, equal half."""
    found: dict[str, list[Sample]] = {"train": [], "test": []}
    for sample in samples:
        digest = sha256("|".join(sorted(ctx.title for ctx in sample.ctxs)).encode()).digest()
        found["train" if digest[0] % 2 else "test"].append(sample)
    return found


def main() -> None:
    """Write the halves."""
    args = options(__doc__, file=Path("nq-open-oracle.jsonl.gz"), manuals=500, out=Path("runs/files"))
    name = args.file.name.split("-")[0]
    drawn = {f"{name}-{half}": samples for half, samples in halves(data.load(args.file)).items()}
    drawn["manuals-test"] = data.load("manuals", args.manuals, SEED, 10)
    drawn["manuals-train"] = data.load("manuals-train", 2 * args.manuals, SEED, 10)
    args.out.mkdir(parents=True, exist_ok=True)
    for half, samples in drawn.items():
        lines = (json.dumps(sample.to_json()) for sample in samples)
        write_text(args.out / f"{half}.jsonl", "\n".join(lines) + "\n")
        print(f"{half}: {len(samples)} questions")


if __name__ == "__main__":
    main()
