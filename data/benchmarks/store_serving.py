"""Throughput, time to first token and idle share of many questions at once over cached blocks, beside baselines.

    python data/benchmarks/store_serving.py --device cpu      writes counts of experiment "serving"
    python data/benchmarks/store_serving.py --device cuda     Llama-3.1-8B's shape, random weights
    python data/benchmarks/store_serving.py --device cuda --kinds chosen      a part of it

Each question has `per_question` blocks of a corpus, drawn by Zipf's law, in the order of the draw, and a question of
its own. Cached blocks are on disk ("cold"), in host memory ("warm") or in pages ("hot"), loaded by every mode of the
scheduler, as in `workbench serve-bench`; `batch` questions are computed together, and half as many once more.
Baselines: full prefill of every token, a prefix cache, which reuses what stands behind the same blocks only, and one
that puts the blocks of a question in the order of which it finds most (CacheWeaver, ContextPilot: a greedy walk over
the prefix tree). They are asked fewer questions, two at a time: answers
a second compare, times of so many requests that wait for each other do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from script import options, writer

from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.data.layouts import LAB
from workbench.engine.assembly import empty
from workbench.engine.forward import PrefillRequest
from workbench.experiments.serving.serve_bench import counts, measure
from workbench.experiments.simulation.simulated_caches import ReorderedPrefixCache
from workbench.methods import Method, ReadyRequest
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.methods.serving import MODES
from workbench.methods.serving.contiguous import ContiguousEngine, HeldBlocks
from workbench.methods.serving.tickets import Ticket, Wait
from workbench.models.loading import Loaded
from workbench.store import fingerprint, key_of


@dataclass
class PrefixEngine(ContiguousEngine):
    """Computes what stands behind the longest prefix of blocks in `store`, exactly.

    It keeps the KV of every block under the chain of blocks before it, as vLLM's and SGLang's prefix caches do.
    """

    method: Method | str = field(default_factory=Full)

    def prefill(self, tickets: Sequence[Ticket], waits: Sequence[Wait | None]) -> list[bool]:
        """Compute the first tokens, and keep the blocks that were computed."""
        ended = super().prefill(tickets, waits)
        for ticket in tickets:
            prompt, kv = ticket.prompt, ticket.held.ready.request.kv
            first = int(ticket.held.ready.request.plan.rows[0])
            for key, block, start in zip(self._chain(ticket), prompt.context, prompt.starts, strict=False):
                if start >= first:
                    self.store.put(key, kv.slice(start, start + len(block)).lock())
        return ended

    def _begin(self, ticket: Ticket, held: HeldBlocks) -> None:
        prompt, found = ticket.prompt, list[KV]()
        for key in self._chain(ticket):
            if (kv := held.store.get(key)) is None:
                break
            found.append(kv)
        length = sum(map(len, found))
        kv = empty(self.model, len(prompt), self._reserve(ticket))
        for mine, *parts in zip((*kv.keys, *kv.values), *((*one.keys, *one.values) for one in found), strict=True):
            if parts:
                mine[:, :length] = torch.cat([part.to(mine.device) for part in parts], 1)
        rows = torch.arange(length, len(prompt))
        passes = (Pass(range(length, len(prompt)), len(prompt)),)
        request = PrefillRequest(prompt.tokens, Plan(rows), kv)
        held.ready = ReadyRequest(request, passes, len(rows), length)

    def _chain(self, ticket: Ticket) -> list[str]:
        """Return the key of every context block behind those before it."""
        model_key, blocks = fingerprint(self.model), ticket.prompt.context
        return [key_of(model_key, self.model.dtype, block, blocks[:i]) for i, block in enumerate(blocks)]


CPU: dict[str, Any] = {"blocks": 40, "block": 64, "per_question": 8, "question": 16, "answer": 4, "loaders": 2}
CPU |= {"questions": 24, "baseline": 8, "chosen": 8, "batch": 8, "ratio": 0.15, "zipf": 1.0, "seed": 0}
GPU = CPU | {"blocks": 2000, "block": 128, "per_question": 256, "question": 50, "answer": 8, "loaders": 4}
GPU |= {"questions": 200, "baseline": 40, "chosen": 12, "batch": 16}
KINDS = ["warm", "hot", "chosen", "cold", "baselines"]
REORDERED = "reordered prefix caching"
BASELINES = {"full prefill": ContiguousEngine, "prefix caching": PrefixEngine, REORDERED: PrefixEngine}


def drawn(load: dict[str, Any], vocabulary: int) -> list[Prompt]:
    """Draw the corpus and the prompts over it."""
    draw = np.random.default_rng(load["seed"])
    corpus = [Block(tuple(draw.integers(3, vocabulary, load["block"]))) for _ in range(load["blocks"])]
    weights = 1 / np.arange(1, load["blocks"] + 1) ** load["zipf"]
    prompts = []
    for _ in range(load["questions"]):
        which = draw.choice(load["blocks"], load["per_question"], replace=False, p=weights / weights.sum())
        asked = Block(tuple(draw.integers(3, vocabulary, load["question"])))
        prompts.append(Prompt((*(corpus[i] for i in which), asked)))
    return prompts


def reordered(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return prompts with their context blocks in the order that a reordering prefix cache gives them, one by one."""
    numbers: dict[Block, int] = {}
    cache, made = ReorderedPrefixCache(), list[Prompt]()
    for prompt in prompts:
        by_number = {numbers.setdefault(block, len(numbers)): block for block in prompt.context}
        found = cache.serve(list(by_number))
        made.append(Prompt((*(by_number[number] for number, _ in found), prompt.blocks[-1])))
    return made


def runs(loaded: Loaded, load: dict[str, Any], paged: bool, kinds: Sequence[str] = KINDS) -> Any:
    """Yield the rows of `results.Count` of one run after the other, of these of KINDS."""
    prompts = drawn(load, loaded.spec.vocabulary)
    setting = {name: value for name, value in load.items() if name not in ("seed", "ratio")}
    shared = {"loaders": load["loaders"], "max_new_tokens": load["answer"]}
    engine = "paged" if paged else "contiguous"
    chosen = Reuse(select=QueryGuided(system=0), ratio=load["ratio"])
    all_of_them, half = load["batch"], max(1, load["batch"] // 2)
    for start, method, few, batch in (
        ("warm", Reuse(), prompts, all_of_them),
        ("hot", Reuse(), prompts, all_of_them),
        ("warm", Reuse(), prompts, half),
        ("warm", chosen, prompts[: load["chosen"]], half),
        ("hot", Reuse(), prompts, half),
        ("cold", Reuse(), prompts, half),
    ):
        if ("chosen" if method is chosen else start) not in kinds:
            continue
        ratio = load["ratio"] if method is chosen else 0.0
        served = measure(loaded, few, MODES, method, start=start, engine=engine, batch=batch, **shared)
        rows = counts(served, start, setting | {"batch": batch})
        yield [{"method": "reuse", "ratio": ratio, **row} for row in rows]
    for name, kind in BASELINES.items() if "baselines" in kinds else ():
        few = (reordered(prompts) if name == REORDERED else prompts)[: load["baseline"]]
        two = shared | {"batch": min(2, load["batch"])}  # memory of whole prompts
        served = measure(loaded, few, ["request"], Full(), start="empty", engine="contiguous", contiguous=kind, **two)
        about = setting | {"batch": two["batch"]}
        yield [{"method": name, "ratio": 0.0, **row, "kind": ""} for row in counts(served, "", about)]


def main() -> None:
    """Measure and write, a run at a time."""
    args = options(__doc__, device="cpu", model="lab-full", threads=2, kinds=KINDS, **dict.fromkeys(CPU))
    gpu = args.device == "cuda"
    load = {name: type(value)(getattr(args, name) or value) for name, value in (GPU if gpu else CPU).items()}
    if gpu:
        from workbench.experiments.bench.models.whole_model import build  # loads the kernels, which need Triton

        model, name = build(), "Llama-3.1-8B's shape, random weights"
    else:
        model, name = models.load(args.model).model, args.model
    tokenizer: Any = None  # answers are as long as they may be
    loaded = Loaded(model, tokenizer, replace(LAB, stop=()))
    with writer(args, f"serving@{args.device}", model.device, model=name, seed=load["seed"]) as out:
        for rows in runs(loaded, load, gpu, args.kinds):
            out.counts(rows)
            for row in rows:
                if row["measure"] in ("per_second", "ttft_p50", "idle"):
                    about = row["kind"], row["setting"]["scheduler"], row["setting"]["batch"], row["ratio"]
                    print(row["method"], *about, row["measure"], round(row["value"], 3), flush=True)


if __name__ == "__main__":
    main()
