"""What cached blocks lose when they are kept in 8 bits: deviation of keys and values, predictions and answers.

    python data/benchmarks/store_int8.py --threads 2        writes data/benchmarks/store-int8.json

The same questions are answered over blocks as cached and over blocks that were rounded (`HostTier(storage="int8")`),
each compared with full attention by `metrics.fidelity`; differences of the two are paired, question by question, with
a bootstrap 95% interval. Deviation is relative: |rounded - cached| / |cached|, over all blocks.
"""

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from workbench import data, models
from workbench.core.kv import KV
from workbench.experiments.record import Record
from workbench.experiments.results import write_json
from workbench.experiments.trial import Trial, batches
from workbench.methods.modes.reuse import Reuse
from workbench.metrics.answers import Records, bootstrap
from workbench.models.loading import Loaded
from workbench.store import HostTier, MemoryStore, TieredStore
from workbench.store.quantized import Storage

STORAGES: tuple[Storage, ...] = ("as cached", "int8")
SCORES = ("em", "f1", "nll", "kl", "agree")


class Measured(MemoryStore):
    """Keeps blocks in one way of storage, and adds up how far they are from those that were put."""

    def __init__(self, storage: Storage):
        super().__init__(1 << 62)
        self.storage = storage
        self.sums = {"k": [0.0, 0.0], "v": [0.0, 0.0]}  # squared distance, squared length
        self.sizes = [0, 0]  # bytes as cached, and as kept

    def put(self, key: str, kv: KV) -> None:
        """Round a block, measure, and keep it as it is read back."""
        tier = HostTier(1 << 40, storage=self.storage)
        kept = TieredStore([tier])
        kept.put(key, kv)
        back = kept.get(key)
        assert back is not None
        for part, mine, theirs in (("k", back.keys, kv.keys), ("v", back.values, kv.values)):
            for a, b in zip(mine, theirs, strict=True):
                self.sums[part][0] += float((a.double() - b.double()).square().sum())
                self.sums[part][1] += float(b.double().square().sum())
        self.sizes[0] += kv.nbytes
        self.sizes[1] += tier.bytes
        super().put(key, back)

    def facts(self) -> dict[str, Any]:
        """Return the relative deviation of keys and values, and the bytes."""
        deviation = {part: (gap / length) ** 0.5 for part, (gap, length) in self.sums.items()}
        return {"deviation": deviation, "bytes_cached": self.sizes[0], "bytes_kept": self.sizes[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("store-int8.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = models.load(args.model)
    base = Trial(args.model, samples=args.samples, seed=args.seed, mode="block", timed=1)
    facts: dict[str, Any] = {"command": " ".join(["python", "data/benchmarks/store_int8.py", *sys.argv[1:]])}
    facts |= {"model": args.model, "samples": args.samples, "seed": args.seed, "methods": {}}
    for name, trial in {"Block-Attention's reuse": base, "after_system": replace(base, prepare="after_system")}.items():
        rows: dict[str, Records] = {}
        entry: dict[str, Any] = {}
        for storage in STORAGES:
            store = Measured(storage)
            fill(store, trial, loaded)  # before: a block that is encoded by a request serves that request unrounded
            record, rows[storage] = trial.run_each(loaded=loaded, store=store)
            entry[storage] = scores(record) | store.facts()
        entry["difference"] = difference(rows["as cached"], rows["int8"], args.seed)
        facts["methods"][name] = entry
        facts |= {"device": record.device, "versions": record.versions}
        write_json(args.out, facts)
        print(name, spoken(entry), sep="\n", flush=True)


def fill(store: Measured, trial: Trial, loaded: Loaded) -> None:
    """Encode the blocks of all questions into a store."""
    model, tokenizer, layout = loaded
    prompts = layout.prompts(data.load(trial.data, trial.samples, trial.seed), tokenizer)
    method = trial.method(system=bool(layout.system))
    assert isinstance(method, Reuse)
    for batch in batches([len(prompt) for prompt in prompts], trial.batch):
        method.prepare(model, [prompts[i] for i in batch], store)


def scores(record: Record) -> dict[str, Any]:
    """Return the scores of a record, with their intervals."""
    kept = {f"{name}{end}" for name in SCORES for end in ("", "_low", "_high")} | {"n", "compared"}
    return {name: value for name, value in asdict(record).items() if name in kept}


def difference(before: Records, after: Records, seed: int) -> dict[str, dict[str, float]]:
    """Return by how much each score is higher over rounded blocks, paired: {mean, low, high, n}.

    `same` is the share of questions whose answer is the very same text.
    """
    found = {}
    pairs = list(zip(before, after, strict=True))
    for name in SCORES:
        gaps = [float(b[name]) - float(a[name]) for a, b in pairs if a.get(name) is not None]
        found[name] = interval(gaps, seed)
    found["same"] = interval([float(a["answer"] == b["answer"]) for a, b in pairs], seed)
    return found


def interval(values: list[float], seed: int) -> dict[str, float]:
    """Return a mean with its bootstrap 95% interval."""
    low, high = bootstrap(values, seed)
    return {"mean": sum(values) / len(values), "low": low, "high": high, "n": len(values)}


def spoken(entry: dict[str, Any]) -> str:
    """Return the differences, a line each."""
    deviation, size = entry["int8"]["deviation"], entry["int8"]["bytes_kept"] / entry["int8"]["bytes_cached"]
    lines = [f"  {size:.1%} of the bytes; keys {deviation['k']:.4f}, values {deviation['v']:.4f} away"]
    for name, gap in entry["difference"].items():
        lines.append(f"  {name:6} {gap['mean']:+.5f} [{gap['low']:+.5f}, {gap['high']:+.5f}]  n = {gap['n']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
