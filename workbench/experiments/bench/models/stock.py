"""The baseline of whole-model benchmarks: stock transformers. Each function prepares it and returns a `Sample`."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache, PreTrainedModel

from workbench.experiments.bench.models.whole_model import DEVICE, Candidate, Sample, Scene, clock
from workbench.models.transformers_attention import cache_argument

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def backend(name: str) -> AbstractContextManager[Any]:
    """Select torch's attention by name; "" leaves the choice to torch."""
    return sdpa_kernel(BACKENDS[name]) if name else nullcontext()


def whole(scene: Scene, count: int, name: str, candidate: Candidate) -> Sample:
    """Compute the whole prompt."""

    def first_token(ids: Tensor) -> int:
        scene.model.set_attn_implementation("sdpa")
        with backend(name), torch.no_grad():
            return int(scene.model(ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())

    ids = scene.ids(count).to(DEVICE)[None]
    if candidate.warmed:
        first_token(ids[:, : 8 * scene.unit])
    return lambda: clock(partial(first_token, ids))


def prefix(scene: Scene, context: int, question: int, _: Candidate) -> Sample:
    """Compute the question over a ready cache of this very context."""
    cache, ids = cache_of(scene.model, 1, context), scene.ids(question).to(DEVICE)[None]

    def first_token() -> int:
        scene.model.set_attn_implementation("sdpa")
        with torch.no_grad():
            out = scene.model(ids, **cache_argument(scene.model, cache), logits_to_keep=1)
        cache.crop(-question)
        return int(out.logits[0, -1].argmax())

    return partial(clock, first_token)


def cache_of(model: PreTrainedModel, batch: int, length: int) -> DynamicCache:
    """Make a cache of random numbers, which takes no time."""
    config, cache = model.config, DynamicCache(config=model.config)
    shape = batch, config.num_key_value_heads, length, config.head_dim
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.randn(shape, dtype=model.dtype, device=DEVICE) for _ in range(2))
        cache.update(keys, values, layer)
    return cache


def answers(scene: Scene, context: int, batch: int, _: Candidate) -> Sample:
    """Decode with a cache for each request, as transformers keeps it."""
    cache = cache_of(scene.model, batch, context)
    ids = scene.ids(batch).to(DEVICE)[:, None]

    def step() -> None:
        scene.model.set_attn_implementation("sdpa")
        with torch.no_grad():
            logits = scene.model(ids, **cache_argument(scene.model, cache), logits_to_keep=1).logits
        ids.copy_(logits[:, -1:].argmax(-1))

    return partial(clock, step)
