"""A workbench for cached-block attention: reuse, move, recompute and sparsely attend a prompt's keys and values.

The nouns and the verbs. Each is imported when it is first used, so that `import workbench` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.app import moved

if TYPE_CHECKING:
    from workbench.core.blocks import Block, Prompt
    from workbench.core.errors import BadInput
    from workbench.core.kv import KV
    from workbench.core.masks import block_attention, causal
    from workbench.core.plan import Plan
    from workbench.core.tiles import Tiles
    from workbench.data import Sample
    from workbench.data.layouts import Layout
    from workbench.engine.cuda_graphs import Runner
    from workbench.engine.decoding import decode
    from workbench.engine.forward import (
        PrefillOutput,
        PrefillRequest,
        assemble,
        encode,
        encode_many,
        prefill,
        prefill_many,
    )
    from workbench.engine.paged_pool import Pool
    from workbench.engine.support import prepare_model
    from workbench.experiments.trial import Trial
    from workbench.methods.generation import Generation, generate
    from workbench.methods.incremental import Revision, revise
    from workbench.models import load
    from workbench.store import MemoryStore, fetch

_HOME = {
    "BadInput": "core.errors",
    "Block": "core.blocks", "Prompt": "core.blocks",
    "KV": "core.kv", "Plan": "core.plan", "Tiles": "core.tiles",
    "block_attention": "core.masks", "causal": "core.masks",
    "Layout": "data.layouts", "Sample": "data", "load": "models",
    "prepare_model": "engine.support",
    "PrefillOutput": "engine.forward", "PrefillRequest": "engine.forward", "assemble": "engine.forward",
    "encode": "engine.forward", "encode_many": "engine.forward",
    "prefill": "engine.forward", "prefill_many": "engine.forward",
    "Pool": "engine.paged_pool", "Runner": "engine.cuda_graphs", "decode": "engine.decoding",
    "MemoryStore": "store", "fetch": "store",
    "Generation": "methods.generation", "generate": "methods.generation",
    "Revision": "methods.incremental", "revise": "methods.incremental",
    "Trial": "experiments.trial",
}  # fmt: skip

__all__ = [
    "KV",
    "BadInput",
    "Block",
    "Generation",
    "Layout",
    "MemoryStore",
    "Plan",
    "Pool",
    "PrefillOutput",
    "PrefillRequest",
    "Prompt",
    "Revision",
    "Runner",
    "Sample",
    "Tiles",
    "Trial",
    "assemble",
    "block_attention",
    "causal",
    "decode",
    "encode",
    "encode_many",
    "fetch",
    "generate",
    "load",
    "prefill",
    "prefill_many",
    "prepare_model",
    "revise",
]


moved.install()


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"workbench.{_HOME[name]}"), name)
    if today := moved.now(f"workbench.{name}"):  # a folder or file in one word: `workbench.select`
        return import_module(today)
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
