"""Split a question file into two halves by passage titles, so that they share no passage.

    python data/benchmarks/split_questions.py --file nq-open-oracle.jsonl.gz --out runs/files

A model is tuned on one half and measured on the other. Writes NAME-train.jsonl and NAME-test.jsonl, and manuals-train
and manuals-test besides: questions over installed documentation, split by object, so that machines with other packages
measure the same. Readers (smollm2_reader.sh) are measured on NAME-held.jsonl, drawn of the test half, and tuned on all
other questions (NAME-rest.jsonl), on manuals-train and on lab-train.
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
    args = options(
        __doc__, file=Path("nq-open-oracle.jsonl.gz"), manuals=500, held=500, lab=300, out=Path("runs/files")
    )
    name = args.file.name.split("-")[0]
    drawn = {f"{name}-{half}": samples for half, samples in halves(data.load(args.file)).items()}
    drawn["manuals-test"] = data.load("manuals", args.manuals, SEED, 10)
    drawn["manuals-train"] = data.load("manuals-train", 2 * args.manuals, SEED, 10)
    args.out.mkdir(parents=True, exist_ok=True)
    for half, samples in drawn.items():
        write(args.out / f"{half}.jsonl", samples)
    held = data.load(args.out / f"{name}-test.jsonl", args.held, SEED)
    scored = {sample.id for sample in held}
    write(args.out / f"{name}-held.jsonl", held)
    write(args.out / f"{name}-rest.jsonl", [sample for sample in data.load(args.file) if sample.id not in scored])
    write(args.out / "lab-train.jsonl", data.load("lab", args.lab, SEED))


def write(file: Path, samples: list[Sample]) -> None:
    """Write samples as JSON lines."""
    write_text(file, "".join(json.dumps(sample.to_json()) + "\n" for sample in samples))
    print(f"{file.stem}: {len(samples)} questions")


if __name__ == "__main__":
    main()
