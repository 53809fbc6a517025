"""Decoder layers fused by torch.compile: norms, rotary embeddings and activations become one kernel each.

All layers share one compilation. Attention stays outside of it, as an ordinary call: the workbench's requests, pages
and choices are no part of what is compiled. Afterwards the model is as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from workbench.models.transformers_attention import NAME, attend

SHAPES = 64  # numbers of rows that are compiled for


@contextmanager
def fused(model: PreTrainedModel, backend: str | Callable[..., Any] = "inductor") -> Iterator[PreTrainedModel]:
    """Run layers compiled within the context; each number of rows is compiled once, which takes seconds.

    A CUDA graph that is captured within it stays fused.
    """
    layers = model.get_decoder().layers
    AttentionInterface.register(NAME, torch.compiler.disable(attend))
    try:
        for layer in layers:
            layer.compile(backend=backend, dynamic=False)
        with import_module("torch._dynamo").config.patch(recompile_limit=SHAPES):
            yield model
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
        AttentionInterface.register(NAME, attend)
