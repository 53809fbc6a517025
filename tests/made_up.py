"""Reports of `workbench bench` and results of a sweep, with made-up numbers, to test what reads them."""

from pathlib import Path
from typing import Any

import numpy as np

from workbench.experiments import bench_reports
from workbench.results import Writer

CARD, COPY, PRODUCT = "NVIDIA Test", 4.0, 600.0  # TB/s, TFLOP/s

WORKS: dict[str, list[tuple[str, dict[str, Any], float, float]]] = {  # name, shape, operations, bytes
    "tile_attention": [
        ("dense, 32K", {"tokens": 32768, "density": None}, 8.8e12, 6.7e8),
        ("15% of tiles, 32K", {"tokens": 32768, "density": 0.15}, 1.3e12, 6.7e8),
    ],
    "q_sparse_attention": [
        ("5% of 32K rows + 50", {"keys": 32768, "share": 0.05}, 4.5e11, 1.6e8),
        ("15% of 32K rows + 50", {"keys": 32768, "share": 0.15}, 1.3e12, 2.1e8),
    ],
    "page_list_attention": [("chunk of 1024, 25% of 128K pages", {"keys": 131072, "share": 0.25}, 2.2e12, 5.7e8)],
    "choose_bfla": [("32K, tiles of 64", {"tokens": 32768, "density": 0.15}, 1.4e11, 3.4e8)],
    "question": [("50-token question over 32K cached", {"context": 32768, "question": 50}, 1.6e12, 2.0e10)],
}
WHO = {
    "choose_bfla": ("torch", "the attention it feeds"),
    "question": ("transformers, ready prefix cache", "transformers, full prefill"),
}


def report(name: str) -> dict[str, Any]:
    head = {"kernel": name, "card": CARD, "copy_tbps": COPY, "product_tflops": PRODUCT, "versions": {}}
    return head | {"workloads": [_work(name, *work) for work in WORKS[name]]}


def bench(folder: Path, name: str) -> None:
    """Write the report of a kernel or model as `workbench bench` does."""
    head = report(name)
    bench_reports.write(
        folder, head, {work["name"]: bench_reports.merge_measured(work, head) for work in head["workloads"]}
    )


def _work(name: str, work: str, shape: dict[str, Any], flops: float, moved: float) -> dict[str, Any]:
    floor = max(flops / PRODUCT, moved / COPY) / 1e9
    taken = {"ours": floor / 0.8, "ours, 8 splits": floor / 0.7}
    taken |= {who: floor / 0.8 * (i + 2) for i, who in enumerate(WHO.get(name, ("flex", "flash, dense")))}
    contestants = [
        {
            "who": who,
            "ms": ms,
            "p5": ms * 0.9,
            "p95": ms * 1.1,
            "runs": 20,
            "tflops": flops / ms / 1e9,
            "tbps": moved / ms / 1e9,
            "share": floor / ms,
            "ratio": ms / taken["ours"],
        }
        for who, ms in taken.items()
    ]
    contestants.append({"who": "cudnn", "problem": "RuntimeError: no kernel for this shape"})
    facts = {"name": work, "shape": shape, "flops": flops, "bytes": moved, "floor_ms": floor}
    return facts | {"contestants": contestants}


SPARSE = ["none", "window(block=64, local=1)", "window(block=64, local=4)", "bfla(block=64, mass=0.9)"]
REUSE = [
    ("independent", "none"),
    ("after_system", "none"),
    ("after_system", "random"),
    ("with_neighbours(n=2)", "random"),
]


def sweep(folder: Path, model: str = "acme/tiny") -> str:
    """A sweep of made-up numbers: reuse and sparse methods on a model and data of other names."""
    draw = np.random.default_rng(0)
    about = {"model": model, "data": "notes.jsonl", "passages": 5, "seed": 7, "device": "a GPU"}
    methods = [{"mode": "block", "prepare": p, "select": s, "ratio": r} for p, s in REUSE for r in (0.1, 0.3)]
    methods += [{"mode": "full", "prepare": "independent", "select": "none", "sparse": spec} for spec in SPARSE]
    for number, method in enumerate(methods):
        method = {"positions": "re-encoded", "sparse": "none", **method, "method": f"m{number}"}
        with Writer(folder, f"trial@{number}", **about, **method) as out:
            values = {name: draw.random() for name in ("kl", "nll_extra", "em", "f1", "rows_charged")}
            values |= {name: draw.random() for name in ("density", "mass")} if method["sparse"] != "none" else {}
            values["prompt_tokens"] = 100.0
            out.counts(
                {"measure": name, "kind": kind, "value": value, "low": value, "high": value, "n": 20}
                for name, value in values.items()
                for kind in ("all", "how", "why")
            )
            out.answers({"question": f"q{i}", "kl": draw.random(), "em": float(i % 2)} for i in range(20))
    with Writer(folder, "deviation@0", **about) as out:
        out.counts([{"measure": "left_outside_15_percent", "value": 0.7, "low": 0.6, "high": 0.8, "n": 20}])
    return str(folder)
