"""A workbench for cached-block attention: reuse, move, recompute and sparsely attend a prompt's keys and values.

The nouns and the verbs. Each is imported when it is first used, so that `import workbench` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.blocks import Block, Prompt
    from workbench.data import Sample
    from workbench.decoding import decode
    from workbench.editing import Revision, revise
    from workbench.engine import Step, Work, assemble, encode, encode_many, prefill, prefill_many
    from workbench.errors import BadInput
    from workbench.generation import Generation, generate
    from workbench.graphs import Runner
    from workbench.kv import KV
    from workbench.layouts import Layout
    from workbench.masks import block_attention, causal
    from workbench.models import load
    from workbench.plan import Plan
    from workbench.pool import Pool
    from workbench.probing import prepare_model
    from workbench.store import MemoryStore, fetch
    from workbench.tiles import Tiles
    from workbench.trial import Trial

_HOME = {
    "BadInput": "errors",
    "Block": "blocks", "Prompt": "blocks",
    "KV": "kv", "Plan": "plan", "Tiles": "tiles",
    "prepare_model": "probing",
    "Step": "engine", "Work": "engine",
    "encode": "engine", "encode_many": "engine", "assemble": "engine", "prefill": "engine", "prefill_many": "engine",
    "Revision": "editing", "revise": "editing",
    "Pool": "pool", "Runner": "graphs",
    "decode": "decoding", "Generation": "generation", "generate": "generation",
    "block_attention": "masks", "causal": "masks",
    "MemoryStore": "store", "fetch": "store",
    "Layout": "layouts", "Sample": "data", "Trial": "trial", "load": "models",
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
    "Prompt",
    "Revision",
    "Runner",
    "Sample",
    "Step",
    "Tiles",
    "Trial",
    "Work",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    return getattr(import_module(f"workbench.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
