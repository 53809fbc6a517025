"""Time to the first token, counted and as published: operations and bytes for any shape of a model.

`experiments.latency.ttft` measures it on this device; `metrics.cost` counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import LlamaConfig

from workbench.metrics import cost
from workbench.metrics.answers import Records
from workbench.metrics.published_numbers import LLAMA_3_8B, QUESTION, TABLE_3

MODES = ("full", "block")


def computed(
    shape: cost.ModelShape, lengths: Sequence[int], itemsize: int, question: int = QUESTION, ratio: float = 0.15
) -> Records:
    """Compute the cost of full, block and recompute for any shape of a model, with `cost.first_token`.

    Records {length, way, flops, linear, attention, bytes, kv_loaded, convention}. The share that is recomputed is
    spread evenly and its choice left out. `convention` counts FLOPs as the paper does: 2 · parameters · rows.
    """
    records = []
    for length in lengths:
        context = max(0, length - question)
        spread = np.unique(np.linspace(0, max(0, context - 1), round(ratio * context)).astype(int))
        asked = np.arange(context, length)
        recompute = np.concatenate((spread[spread < context], asked))
        for name, rows in (("full", np.arange(length)), ("block", asked), ("recompute", recompute)):
            costs = cost.first_token(shape, rows, length, itemsize)
            record = {field: getattr(costs, field) for field in ("flops", "linear", "attention", "bytes", "kv_loaded")}
            convention = cost.convention(shape.convention, len(rows))
            records.append({"length": length, "way": name, **record, "convention": convention})
    return records


def computed_by_mode(
    shape: cost.ModelShape, lengths: Sequence[int], itemsize: int, question: int = QUESTION
) -> Records:
    """Compute the cost of full and block for any shape of a model: `computed`, in records {length, mode, …}."""
    return by_mode(computed(shape, lengths, itemsize, question))


def computed_as_published() -> Records:
    """Compute `computed_by_mode` for the shape, number type and lengths of the paper's Table 3."""
    return computed_by_mode(cost.shape(LlamaConfig(**LLAMA_3_8B)), TABLE_3["length"], 2)


def published() -> Records:
    """Return the paper's Table 3 as records {length, mode, ttft_ms, flops}."""
    return [
        {"length": length, "mode": mode, "ttft_ms": TABLE_3["ttft_ms"][mode][i], "flops": TABLE_3["flops"][mode][i]}
        for mode in MODES
        for i, length in enumerate(TABLE_3["length"])
    ]


def totals(records: Sequence[Mapping[str, Any]]) -> Records:
    """Return operations and bytes of `computed` without their parts: {length, way, flops, bytes}."""
    return [{field: r[field] for field in ("length", "way", "flops", "bytes")} for r in records]


def by_shape(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> Records:
    """List the `totals` of several `computed`: {shape, length, way, flops, bytes}; `records` by shape."""
    return [{"shape": shape, **r} for shape, computed in records.items() for r in totals(computed)]


def by_mode(records: Sequence[Mapping[str, Any]]) -> Records:
    """Return the records of full and block, whose method is called their `mode`."""
    return [{"mode" if k == "way" else k: v for k, v in r.items()} for r in records if r["way"] in MODES]
