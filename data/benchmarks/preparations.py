"""What preparation gives to reuse, and what it lacks: titles, embedder, and the true antecedent forced in.

    python data/benchmarks/preparations.py --samples 300
    python data/benchmarks/preparations.py --model runs/lab-hard-small-1/model --samples 1000 --device cuda

leaves preparations-MODEL.json (_ for - in its name): a row a corpus and preparation, nothing recomputed, for all
questions and for those on continued passages ("She moved to …", of somebody whom only an earlier passage of the
document names): exact match, KL from full attention, the differences to blocks that saw the system prompt alone,
question by question with 95% bootstrap intervals, and of how many continued passages the antecedent is among the
neighbours. Written after every row; rows of the same settings that the file holds are not measured again, and a row
whose embedder is not installed is left for another machine.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench import data, models
from workbench.core.errors import BadInput
from workbench.data.retrieval_corpus import Corpus
from workbench.experiments.trials.record import device_name, versions
from workbench.experiments.trials.trial import Trial
from workbench.methods import prepare as preparations
from workbench.metrics.answers import Records, bootstrap
from workbench.metrics.kv.selection import antecedents
from workbench.metrics.paired import difference
from workbench.models.loading import Loaded
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

SEED, PASSAGES, NEIGHBOURS = 30_000, 10, 10
CORPORA = ("lab", "lab(hints=0)", "lab(hints=0, titles=kept)", "lab-hard(titles=continued)", "lab-hard")
PLAIN = "after_system"
SIMILAR = f"with_neighbours(n={NEIGHBOURS}, search=exact)"
PREPARATIONS = {
    "the system prompt": PLAIN,
    f"{NEIGHBOURS} neighbours by TF-IDF": SIMILAR,
    "its own document": "behind_document",
    f"{NEIGHBOURS} neighbours by MiniLM": f"with_neighbours(n={NEIGHBOURS}, search=exact, embedder=minilm)",
}
KINDS = ("all", "continuation")
SCORES = ("em", "kl")


def asked(settings: dict[str, Any], loaded: Loaded) -> Records:
    """Answer the questions of one setting; a row a question."""
    return Trial(mode="block", timed=1, batch=32, **settings).run_each(loaded=loaded)[1]


def found(settings: dict[str, Any], loaded: Loaded) -> tuple[int, int] | None:
    """Count the continued passages whose antecedent is among the neighbours; None where nothing is retrieved."""
    if settings["prepare"] == PLAIN:
        return None
    drawn = settings["data"], settings["samples"], settings["seed"], settings["passages"]
    samples = data.load(*drawn)
    corpus = Corpus.of(data.corpus(*drawn), loaded.layout, loaded.tokenizer)
    method: Any = preparations.named(settings["prepare"], corpus=corpus)
    return antecedents(samples, loaded.layout.prompts(samples, loaded.tokenizer), method.neighbours)


def scores(rows: Records, kind: str, score: str) -> dict[str, float]:
    """Return a score of every question of a kind that has one, by its id."""
    chosen = [row for row in rows if kind in ("all", row["kind"])]
    return {row["id"]: float(row[score]) for row in chosen if row[score] is not None}


def summary(rows: Records, plain: Records) -> Iterator[dict[str, Any]]:
    """Yield the mean of every score and kind, and `{score}_gain`: its difference to plain reuse, by question."""
    for kind in KINDS:
        for score in SCORES:
            ours, theirs = (scores(each, kind, score) for each in (rows, plain))
            shared = sorted(set(ours) & set(theirs))
            if not shared:
                continue
            values = [ours[name] for name in shared]
            gain = difference(values, [theirs[name] for name in shared])
            low, high = bootstrap(values)
            about = {"kind": kind, "n": len(shared)}
            yield {**about, "measure": score, "value": sum(values) / len(values), "low": low, "high": high}
            yield {**about, "measure": f"{score}_gain", "value": gain.mean, "low": gain.low, "high": gain.high}


def name_of(model: str) -> str:
    """Name a model: a shipped one, or the run that trained it."""
    path = Path(model)
    return path.parent.name if path.name == "model" else path.name


def measure(
    model: str, samples: int, device: str, corpora: Sequence[str], folder: Path, vectors: Path | None = None
) -> None:
    """Measure all preparations on all corpora that `folder` lacks.

    vectors   what MiniLM made of the passages, embedded on another machine (`workbench.data.embedders.save`)
    """
    loaded = models.load(model, device)
    size, _, number = name_of(model).rpartition("-")
    seeded = {"model": size, "training_seed": int(number)} if size and number.isdecimal() else {"model": name_of(model)}
    origin = {**seeded, "seed": SEED, "passages": PASSAGES, "mode": "block", "select": "none", "sparse": "none"}
    origin |= {"device": device_name(loaded.model.device), "versions": versions(), **this_run()}
    with Writer(folder, f"trial@preparations-{name_of(model)}", resume=True, **origin) as out:
        there = {(row["data"], row["prepare"]) for row in out.there("counts")}
        for corpus in corpora:
            missing = {name: spec for name, spec in PREPARATIONS.items() if (corpus, spec) not in there}
            common = {"model": model, "data": corpus, "samples": samples, "seed": SEED, "passages": PASSAGES}
            common |= {"device": device}
            plain = asked({**common, "prepare": PLAIN}, loaded) if missing else []
            for name, spec in missing.items():
                given = spec.replace("embedder=minilm", f"embedder={vectors}") if vectors else spec
                settings = {**common, "prepare": given}
                try:
                    lines = list(summary(plain if spec == PLAIN else asked(settings, loaded), plain))
                except BadInput as problem:
                    print(f"{corpus} {spec} is not measured here: {problem}", flush=True)
                    continue
                if hits := found(settings, loaded):
                    lines.append(
                        {"kind": "all", "measure": "antecedents_found", "value": hits[0] / hits[1], "n": hits[1]}
                    )
                out.counts({"data": corpus, "prepare": spec, "method": name, **line} for line in lines)
                print(corpus, spec, *(f"{x['measure']} {x['value']:.3f}" for x in lines), flush=True)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA), help="lab, lab-hard, with switches in brackets")
    parser.add_argument("--vectors", type=Path, help="MiniLM's vectors of the passages (.npz), where it is not at hand")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    measure(args.model, args.samples, args.device, args.corpora, args.out, args.vectors)


if __name__ == "__main__":
    main()
