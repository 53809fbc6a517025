"""Loss from storing cached blocks in 8 bits: deviation of KV, predictions and answers.

    python data/benchmarks/store_int8.py --threads 2        writes counts of experiment "int8"

The same questions are answered over blocks as cached and over blocks that were rounded (`HostTier(storage="int8")`),
each compared with full attention by `metrics.fidelity`; differences of the two are paired, question by question, with
a bootstrap 95% interval. Deviation is relative: |rounded - cached| / |cached|, over all blocks.
"""

from dataclasses import replace
from typing import Any

from script import mean_of, name_of, options, writer

from workbench import data, models
from workbench.core.kv import KV
from workbench.experiments.trials import rows as rows_of
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial, batches
from workbench.methods.modes.reuse import Reuse
from workbench.metrics.answers import Records
from workbench.models.loading import Loaded
from workbench.store import MemoryStore
from workbench.store.tiering.quantized import QuantizedKV, Storage, quantize

STORAGES: tuple[Storage, ...] = ("as cached", "int8")
SCORES = ("em", "f1", "nll", "kl", "agree")


class Measured(MemoryStore):
    """Stores blocks in one format, and accumulates their distance from the originals."""

    def __init__(self, storage: Storage):
        super().__init__(1 << 62)
        self.storage = storage
        self.sums = {"k": [0.0, 0.0], "v": [0.0, 0.0]}  # squared distance, squared length
        self.nbytes_kept = 0.0

    def put(self, key: str, kv: KV) -> None:
        """Round a block, measure the distance, and store the rounded one."""
        held = quantize(kv) if self.storage == "int8" else kv
        back = held.restore() if isinstance(held, QuantizedKV) else kv
        for part, mine, theirs in (("k", back.keys, kv.keys), ("v", back.values, kv.values)):
            for a, b in zip(mine, theirs, strict=True):
                self.sums[part][0] += float((a.double() - b.double()).square().sum())
                self.sums[part][1] += float(b.double().square().sum())
        self.nbytes_kept += held.nbytes
        super().put(key, back)

    def counts(self) -> Records:
        """Return the relative deviation of keys and values, and the stored bytes."""
        deviation = {f"deviation_{part}": (gap / length) ** 0.5 for part, (gap, length) in self.sums.items()}
        return [{"measure": name, "value": value} for name, value in (deviation | {"bytes": self.nbytes_kept}).items()]


def main() -> None:
    args = options(__doc__, model="lab-full", samples=200, seed=0, threads=2)
    loaded = models.load(args.model)
    base = Trial(args.model, samples=args.samples, seed=args.seed, mode="block", timed=1)
    origin = {"model": args.model, "data": "lab", "seed": args.seed, "mode": "block"}
    named = {"Block-Attention's reuse": base, "after_system": replace(base, prepare="after_system")}
    with writer(args, f"int8@{name_of(args.model)}", **origin) as out:
        for name, trial in named.items():
            rows: dict[str, Records] = {}
            about: dict[str, Any] = {"method": name, "prepare": trial.prepare or "independent"}
            for storage in STORAGES:
                store = Measured(storage)
                fill(store, trial, loaded)  # in advance: a request would use a block that it encodes unrounded
                record, rows[storage] = trial.run_each(loaded=loaded, store=store)
                out.counts({**about, "kind": storage, **row} for row in [*scores(record), *store.counts()])
            gaps = difference(rows["as cached"], rows["int8"], args.seed)
            out.counts({**about, "kind": "difference", **row} for row in gaps)


def fill(store: Measured, trial: Trial, loaded: Loaded) -> None:
    """Encode the blocks of all questions into a store."""
    model, tokenizer, layout = loaded
    prompts = layout.prompts(data.load(trial.data, trial.samples, trial.seed), tokenizer)
    method = trial.method(system=bool(layout.system))
    assert isinstance(method, Reuse)
    for batch in batches([len(prompt) for prompt in prompts], trial.batch):
        method.prepare(model, [prompts[i] for i in batch], store)


def scores(record: Record) -> Records:
    """Return the scores of a record, with their intervals."""
    kept = [row for row in rows_of.counts(record) if row["measure"] in SCORES and row["kind"] == "all"]
    return [{name: value for name, value in row.items() if name != "kind"} for row in kept]


def difference(before: Records, after: Records, seed: int) -> Records:
    """Return the paired difference of each score, rounded minus unrounded.

    `same` is the share of questions with identical answers.
    """
    pairs = list(zip(before, after, strict=True))
    gaps = {name: [float(b[name]) - float(a[name]) for a, b in pairs if a.get(name) is not None] for name in SCORES}
    gaps["same"] = [float(a["answer"] == b["answer"]) for a, b in pairs]
    return [{"measure": name, **mean_of(values, seed)} for name, values in gaps.items()]


if __name__ == "__main__":
    main()
