"""How often passages that are alike are retrieved for one question: FusionRAG's figure 7a on questions of a file.

    python data/benchmarks/together.py hotpotqa=hotpotqa_distractor_100.jsonl nq=nq-test.jsonl

leaves, in the results folder --out, for every file, embedder and n, the share of the passages of a question among
whose n most similar passages of the whole file is another one that was retrieved for the same question; a mean over
questions with a 95% bootstrap interval. The files have to hold what a retriever returned, not gold passages alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench import data, results
from workbench.data.retrieval_corpus import nearest
from workbench.experiments.trials.record import versions
from workbench.metrics.answers import bootstrap

HERE = Path(__file__).parent
NUMBERS, EMBEDDERS, SEED = (1, 2, 5, 10, 15), ("tfidf", "minilm"), 0


def shares(samples: Sequence[data.Sample], embedder: str, n: int) -> list[float]:
    """Return, a question each, the share of its passages with another of them among their n neighbours."""
    texts = [[f"{passage.title}\n{passage.text}" for passage in sample.ctxs] for sample in samples]
    corpus = tuple(dict.fromkeys(text for own in texts for text in own))
    place = {text: number for number, text in enumerate(corpus)}
    table = nearest(corpus, n, embedder, search="exact")
    of_questions = [{place[text] for text in own} for own in texts]
    return [float(np.mean([bool(own & set(table[i].tolist()) - {i}) for i in own])) for own in of_questions]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="NAME=FILE")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    about = {"seed": SEED, "versions": versions(), "measure": "together"}
    with results.Writer(args.out, "deviation@together", **results.this_run()) as out:
        for given in args.files:
            name, _, file = given.partition("=")
            samples = [sample for sample in data.load(file, args.samples, SEED) if len(sample.ctxs) > 1]
            passages = round(float(np.mean([len(sample.ctxs) for sample in samples])))
            for embedder in EMBEDDERS:
                for n in NUMBERS:
                    values = shares(samples, embedder, n)
                    low, high = bootstrap(values)
                    where = {**about, "data": name, "passages": passages, "kind": embedder, "at": float(n)}
                    row = {"value": float(np.mean(values)), "low": low, "high": high, "n": len(values)}
                    out.counts([{**where, **row}])
                    print(name, embedder, n, f"{row['value']:.3f} [{low:.3f}, {high:.3f}]", flush=True)


if __name__ == "__main__":
    main()
