"""Every method of reuse on a real pretrained model and real question files, beside full attention.

    python data/benchmarks/real.py files nq-open-oracle.jsonl.gz --out runs/files
    python data/benchmarks/real.py measure --device cuda --out runs/real nq=runs/files/nq-test.jsonl hotpotqa=dev.jsonl
    python data/benchmarks/real.py measure --group sparse --passages 40 --device cuda --out runs/real nq=…
    python data/benchmarks/real.py collect runs/real

The first splits a file of questions by the titles of their passages, so that no passage is in both halves: a model
is tuned on one and measured on the other. It writes questions over installed documentation besides, split by object,
so that machines with other packages measure the same. The second appends a row a question and method to the results
folder --out as it goes, batch by batch of questions, so that all methods have had the same, and goes on where it
stopped, `--minutes` at most. `--group` is what is measured: the choices of reuse, their ratios, sparse prefill with
what is kept, or the few methods that matter for a fine-tuned model. Several processes share the work with `--part 0/4`.
The last gathers all parts into the shipped results, with means and intervals. What one process measured is read as it
is: notebook 12 with `-p results runs/real`.
A data set is NAME=FILE, or `manuals`.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from real_methods import GROUPS, SEER, Configs

from workbench import data, models, results
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text
from workbench.data import Sample
from workbench.data.retrieval_corpus import Corpus
from workbench.experiments.trials import fidelity
from workbench.experiments.trials import rows as trial_rows
from workbench.experiments.trials.record import device_name, versions
from workbench.methods import Method, seer_gate
from workbench.methods.config import MethodConfig
from workbench.metrics.tiles import sparsity
from workbench.models.loading import Loaded

HERE = Path(__file__).parent
SEED = 50_000
TOKENS = 32  # most of an answer
ORIGIN = ("model", "data", "passages", "seed", "device", "versions", "setting", "command", "time")
LEAST, MOST, BATCH_TOKENS = 4, 32, 16384  # questions of a batch, and tokens of their prompts


def gated(configs: Mapping[str, MethodConfig], loaded: Loaded, name: str, samples: Sequence[Sample]) -> Configs:
    """Return the methods, without SeerAttention's where its gate is not beside the model's weights.

    BadInput for a gate that was distilled on these samples.
    """
    gate = models.folder(str(loaded.model.config.name_or_path)) / seer_gate.FILE
    if not gate.is_file():
        print(f"no SeerAttention: there is no {gate}", flush=True)
        return {spec: config for spec, config in configs.items() if spec not in SEER}
    prompts = loaded.layout.prompts(samples, loaded.tokenizer)
    seer_gate.check_unseen(gate, name, SEED, range(len(samples)), (prompt.tokens for prompt in prompts))
    return dict(configs)


def files(args: argparse.Namespace) -> None:
    """Write NAME-train.jsonl and NAME-test.jsonl, and the same of the manuals."""
    name = args.file.name.split("-")[0]
    halves: dict[str, list[Sample]] = {"train": [], "test": []}
    for sample in data.load(args.file):
        digest = sha256("|".join(sorted(ctx.title for ctx in sample.ctxs)).encode()).digest()
        halves["train" if digest[0] % 2 else "test"].append(sample)
    drawn = {f"{name}-{half}": samples for half, samples in halves.items()}
    drawn["manuals-test"] = data.load("manuals", args.manuals, SEED, 10)
    drawn["manuals-train"] = data.load("manuals-train", 2 * args.manuals, SEED, 10)
    args.out.mkdir(parents=True, exist_ok=True)
    for half, samples in drawn.items():
        lines = (json.dumps(sample.to_json()) for sample in samples)
        write_text(args.out / f"{half}.jsonl", "\n".join(lines) + "\n")
        print(f"{half}: {len(samples)} questions")


class Pace:
    """Prints a line a batch, and ends a measurement before a batch that would go beyond its minutes."""

    def __init__(self, minutes: float):
        self.end = time.monotonic() + 60 * minutes
        self.longest, self.stopped = 0.0, False

    def of(self, name: str) -> Callable[[int, int], bool]:
        """Return what is asked before every batch of a data set, given how many questions are done, of how many."""
        begun: float | None = None

        def go_on(done: int, asked: int) -> bool:
            nonlocal begun
            now = time.monotonic()
            if begun is not None:
                self.longest = max(self.longest, now - begun)
                print(f"{name}: {done} of {asked} questions, the last batch took {now - begun:.1f} s", flush=True)
            begun, self.stopped = now, now + self.longest > self.end
            return not self.stopped

        return go_on


def measure(args: argparse.Namespace) -> None:
    """Measure what is missing, data set by data set."""
    pace = Pace(args.minutes)
    loaded = models.load(args.model, args.device, args.dtype)
    number, parts = (int(x) for x in args.part.split("/"))
    args.out.mkdir(parents=True, exist_ok=True)
    configs = GROUPS[args.group](args.minilm)
    for given in args.data:
        name, _, file = given.partition("=")
        samples = data.load(file or name, args.samples, SEED, args.passages)
        corpus = Corpus.of(
            data.corpus(file or name, args.samples, SEED, args.passages), loaded.layout, loaded.tokenizer
        )
        here = gated(configs, loaded, file or name, samples) if args.group == "sparse" else configs
        made = dict(methods(here, corpus, loaded))
        own = samples[number::parts]
        part = f"trial@{Path(args.model).name}-{name}-{args.group}-{number}"
        options = {"answers": args.answers, "max_new_tokens": TOKENS, "tokens": args.tokens}
        options |= {"batch": args.batch or batch_of(own, loaded), "go_on": pace.of(part)}
        about = {"model": Path(args.model).name, "data": name, "passages": args.passages, "seed": SEED}
        about |= {"device": device_name(loaded.model.device), "versions": versions(), **results.this_run()}
        setting = {"max_new_tokens": TOKENS, "corpus": len(corpus), "note": models.note_of(args.model)}
        with results.Writer(args.out, part, resume=True, setting=setting, **about) as out:
            if args.group == "sparse" and number == 0:
                kept(out, loaded, samples[: args.kept], here)
            done = {(row["method"], row["question"]) for row in out.there("answers")}
            write = partial(append, out, here)
            fidelity.measure(loaded, own, made, done=done, write=write, **options)
        if pace.stopped:
            print(f"{part}: {args.minutes:g} minutes are over; it goes on with the same command", flush=True)
            return
        print(f"{part}: all {len(own)} questions", flush=True)


def append(out: results.Writer, configs: Configs, rows: list[dict[str, Any]]) -> None:
    """Append the questions of a batch to the result tables."""
    out.answers(fidelity.answers(rows, configs))


def batch_of(samples: Sequence[Sample], loaded: Loaded) -> int:
    """Return how many questions are measured together: fewer where prompts are long, so that a cut loses little."""
    lengths = [len(prompt) for prompt in loaded.layout.prompts(samples[:8], loaded.tokenizer)]
    return min(MOST, max(LEAST, BATCH_TOKENS * len(lengths) // max(1, sum(lengths))))


def kept(out: results.Writer, loaded: Loaded, samples: Sequence[Sample], configs: Configs) -> None:
    """Count what every sparse method keeps and loses on some prompts."""
    prompts = loaded.layout.prompts(samples, loaded.tokenizer)
    there = {row["method"] for row in out.there("counts")}
    for name, config in configs.items():
        if name not in there and (tiles := config.tiles()) is not None:
            measured = sparsity.measure(loaded.model, prompts, tiles.ready(loaded.model), config.chunk).record()
            method = {field: getattr(config, field) for field in results.METHOD[1:]}
            out.counts({**method, "method": name, "kind": "all", **row} for row in trial_rows.sparsity(measured))


def methods(configs: Mapping[str, MethodConfig], corpus: Corpus, loaded: Loaded) -> Iterator[tuple[str, Method]]:
    """Yield the methods themselves; one that the corpus is too small for is left out, with its reason."""
    for name, config in configs.items():
        try:
            yield name, config.method(corpus, system=bool(loaded.layout.system))
        except BadInput as problem:
            print(f"{name}: {problem}", flush=True)


def collect(args: argparse.Namespace) -> None:
    """Gather the parts of a folder into one of the results folder, with a mean of every score."""
    found = results.read(args.folder)
    with results.Writer(args.results, "trial@real") as out:
        for _, rows in found.answers("trial").drop(columns="source").groupby(["model", "data", "passages"]):
            whole = rows.drop_duplicates(["method", "question"]).to_dict("records")
            origin = {name: whole[0][name] for name in ORIGIN}
            out.answers(whole)
            out.counts({**origin, **row} for row in fidelity.counts(whole))
        out.counts(found.counts("trial").drop(columns="source").to_dict("records"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    splitting = commands.add_parser("files")
    splitting.add_argument("file", type=Path)
    splitting.add_argument("--manuals", type=int, default=500)
    splitting.add_argument("--out", type=Path, default=Path("runs/files"))
    splitting.set_defaults(run=files)
    measuring = commands.add_parser("measure")
    measuring.add_argument("data", nargs="+")
    measuring.add_argument("--model", default="smollm2")
    measuring.add_argument("--device", default="cpu")
    measuring.add_argument("--dtype", default=None)
    measuring.add_argument("--samples", type=int, default=500)
    measuring.add_argument("--batch", type=int, help="questions measured together; fewer where prompts are long")
    measuring.add_argument("--minutes", type=float, default=math.inf, help="stop before a batch that would take longer")
    measuring.add_argument("--tokens", type=int, default=fidelity.TOKENS)
    measuring.add_argument("--part", default="0/1", help="this process's share, as 0/4")
    measuring.add_argument("--minilm", help="file of vectors (`embedders.save`), for neighbours by MiniLM")
    measuring.add_argument("--group", choices=GROUPS, default="choices")
    measuring.add_argument("--passages", type=int, default=10)
    measuring.add_argument(
        "--kept", type=int, default=8, help="prompts of which it is measured what a sparse method keeps"
    )
    measuring.add_argument("--answers", action="store_true", help="decode every method's answers too")
    measuring.add_argument("--out", type=Path, default=Path("runs/real"))
    measuring.set_defaults(run=measure)
    collecting = commands.add_parser("collect")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--results", type=Path, default=HERE, help="results folder")
    collecting.set_defaults(run=collect)
    args: Any = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
