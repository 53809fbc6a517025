"""What a trial needs besides its answers: room for prompts, requests to time, receipts, costs."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.data import Sample
from workbench.methods import Method
from workbench.methods.answered import Generation
from workbench.methods.generation import first_token
from workbench.metrics import cost
from workbench.store import UNLIMITED, MemoryStore, Store


def first_tokens(
    model: PreTrainedModel, prompts: Sequence[Prompt], method: Method, engine: str, kept: Store | None = None
) -> Iterator[Callable[[], int]]:
    """Yield one job a prompt: from its token ids to its first new token, with its cached blocks in a store already.

    Blocks that `kept` holds are taken from there, before the job, and are not encoded once more.
    """
    for prompt in prompts:
        store = MemoryStore(UNLIMITED, behind=kept)
        method.begin(model, [prompt], store)
        yield partial(first_token, model, prompt, method, store, engine)


def receipts(samples: Sequence[Sample], generations: Sequence[Generation]) -> list[dict[str, Any]]:
    """Return {id, at, receipt} of every request.

    `at`: seconds until its batch was begun, without the work between batches.
    """
    rows: list[dict[str, Any]] = []
    at = until = 0.0
    last = 0  # the request that begins the next batch
    for number, (sample, generation) in enumerate(zip(samples, generations, strict=True)):
        receipt = generation.receipt
        assert receipt is not None
        if number == last:
            at, last = until, number + receipt.batch
            until = at + sum(receipt.seconds.values())
        rows.append({"id": sample.id, "at": at, "receipt": receipt.to_json()})
    return rows


def costs(model: PreTrainedModel, prompts: Sequence[Prompt], generations: Sequence[Generation]) -> dict[str, Any]:
    """Return the fields of `Record` about rows, operations, bytes, preprocessing and parameters."""
    shape, layers = cost.shape_of(model), model.config.get_text_config().num_hidden_layers
    costs = [cost.of_passes(shape, one.passes, one.rows_reused, model.dtype.itemsize) for one in generations]
    means = {name: mean([getattr(one, name) for one in generations]) for name in ("rows_computed", "rows_reused")}
    means |= {name: mean([getattr(one, name) for one in costs]) for name in ("flops", "bytes")}
    means |= {f"flops_{name}": mean([getattr(one, name) for one in costs]) for name in ("linear", "attention")}
    means["rows_charged"] = mean([cost.rows_charged(one.passes, layers) for one in generations])
    shares = [cost.charged_share(one.passes, layers, len(p)) for one, p in zip(generations, prompts, strict=True)]
    means["charged_share"] = mean(shares)
    about = {"parameters": shape.stored, "preprocess_ms": _preprocess_ms(generations)}
    return means | about | {"bytes_loaded": mean([one.kv_loaded for one in costs])}


def _preprocess_ms(generations: Sequence[Generation]) -> float | None:
    """Return the ms that encoding took by token of the passages that the store lacked; None where it lacked none."""
    known = [one.receipt for one in generations if one.receipt is not None]
    tokens = sum(block.tokens for one in known for block in one.blocks if block.status == "encoded")
    seconds = sum(one.seconds.get("encode", 0.0) / one.batch for one in known)
    return seconds * 1e3 / tokens if tokens else None


def mean(values: Sequence[float]) -> float:
    """Return the mean; nan without values."""
    return float(np.mean(values))


def check_context(context: int | None, samples: Sequence[Sample], prompts: Sequence[Prompt]) -> None:
    """Raise BadInput where the longest prompt leaves a model of `context` tokens no room for an answer."""
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    if context and len(prompts[longest]) >= context:
        raise BadInput(
            f"the prompt of sample {samples[longest].id!r} has {len(prompts[longest])} tokens, "
            f"the model's context is {context}, answer included: ask for fewer passages"
        )
