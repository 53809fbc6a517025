"""Throughput, TTFT and idle share of many concurrent questions over cached blocks, and baselines.

    python data/benchmarks/store_serving.py --device cpu      writes counts of experiment "serving"
    python data/benchmarks/store_serving.py --device cuda     Llama-3.1-8B's shape, random weights
    python data/benchmarks/store_serving.py --device cuda --kinds chosen      a part of it

Each question has `per_question` blocks of a corpus, drawn by Zipf's law, in the order of the draw, and a question of
its own. Cached blocks are on disk ("cold"), in host memory ("warm") or in pages ("hot"), loaded by every mode of the
scheduler, as in `workbench serve-bench`; `batch` questions are computed together, and half as many once more.
Baselines: full prefill, a prefix cache, and a prefix cache that orders a question's blocks for most hits (CacheWeaver,
ContextPilot: a greedy walk over the prefix tree). They get fewer questions, two at a time: their throughput is
comparable, their waiting times are not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from script import options, writer

from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.data.layouts import LAB
from workbench.experiments.serving.baselines import measure_baselines
from workbench.experiments.serving.serve_bench import measure
from workbench.experiments.serving.serve_fields import BASELINES
from workbench.experiments.serving.served import counts
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.methods.serving import MODES
from workbench.models.loading import Loaded

CPU: dict[str, Any] = {"blocks": 40, "block": 64, "per_question": 8, "question": 16, "answer": 4, "loaders": 2}
CPU |= {"questions": 24, "baseline": 8, "chosen": 8, "batch": 8, "ratio": 0.15, "zipf": 1.0, "seed": 0}
GPU = CPU | {"blocks": 2000, "block": 128, "per_question": 256, "question": 50, "answer": 8, "loaders": 4}
GPU |= {"questions": 200, "baseline": 40, "chosen": 12, "batch": 16}
KINDS = ["warm", "hot", "chosen", "cold", "baselines"]


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
    few, two = prompts[: load["baseline"]], shared | {"batch": min(2, load["batch"])}  # whole prompts need more memory
    for name in BASELINES if "baselines" in kinds else ():
        served = measure_baselines(loaded, few, [name], **two)
        yield counts(served, "", setting | {"batch": two["batch"]})


def main() -> None:
    """Measure and write, a run at a time."""
    args = options(__doc__, device="cpu", model="lab-full", threads=2, kinds=KINDS, **dict.fromkeys(CPU))
    gpu = args.device == "cuda"
    load = {name: type(value)(getattr(args, name) or value) for name, value in (GPU if gpu else CPU).items()}
    if gpu:
        from workbench.experiments.bench.models.whole_model import build  # imports kernels, which need Triton

        model, name = build(), "Llama-3.1-8B's shape, random weights"
    else:
        model, name = models.load(args.model).model, args.model
    tokenizer: Any = None  # answers have the maximum length
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
