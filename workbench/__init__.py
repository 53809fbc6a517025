"""A workbench for cached-block attention: reuse, move, recompute and sparsely attend a prompt's keys and values.

The nouns and the verbs. Each is imported when it is first used, so that `import workbench` costs nothing.

    import workbench

    model, tokenizer, layout = workbench.load("lab-full")  # ships; or a name, or a checkpoint folder
    prompts = layout.prompts(workbench.data.load("lab", samples=4), tokenizer)
    full = workbench.generate(model, tokenizer, prompts, stop=layout.stop)
    reused = workbench.generate(model, tokenizer, prompts, mode="block", stop=layout.stop)
    print([(one.text, other.text, other.rows_reused) for one, other in zip(full, reused)])

`workbench.explore.prompt("lab-full", prompts[0])` shows one prompt in a notebook, `workbench.Trial("lab-full").run()`
scores a method beside full attention, `workbench.sweep` and `workbench.leaderboard` compare several.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version

TYPE_CHECKING = False  # as of `typing`, which is not waited for
if TYPE_CHECKING:
    from typing import Any

    from workbench.core.blocks import Block, Prompt
    from workbench.core.errors import BadInput
    from workbench.core.kv import KV
    from workbench.core.masks import block_attention, causal
    from workbench.core.plan import Plan
    from workbench.core.tiling.tiles import Tiles
    from workbench.data import Sample
    from workbench.data.layouts import Layout
    from workbench.engine.assembly import assemble
    from workbench.engine.decoding import decode
    from workbench.engine.encoding import encode, encode_many
    from workbench.engine.forward import PrefillOutput, PrefillRequest, prefill, prefill_many
    from workbench.engine.graphs.cuda_graphs import Runner
    from workbench.engine.pages.paged_pool import Pool
    from workbench.experiments.leaderboard.board import Board
    from workbench.experiments.leaderboard.measuring import leaderboard
    from workbench.experiments.leaderboard.ranking import boards
    from workbench.experiments.sweeps.sweep import sweep
    from workbench.experiments.trials.trial import Trial
    from workbench.methods.answered import Generation
    from workbench.methods.generation import generate
    from workbench.methods.incremental import Revision, revise
    from workbench.models import load
    from workbench.models.spec import ModelSpec, attach
    from workbench.store import MemoryStore, fetch

_NAMES = {  # module: what it gives to this one
    "core.blocks": "Block Prompt",
    "core.errors": "BadInput",
    "core.kv": "KV",
    "core.masks": "block_attention causal",
    "core.plan": "Plan",
    "core.tiling.tiles": "Tiles",
    "data": "Sample",
    "data.layouts": "Layout",
    "engine.assembly": "assemble",
    "engine.graphs.cuda_graphs": "Runner",
    "engine.decoding": "decode",
    "engine.encoding": "encode encode_many",
    "engine.forward": "PrefillOutput PrefillRequest prefill prefill_many",
    "engine.pages.paged_pool": "Pool",
    "experiments.leaderboard.board": "Board",
    "experiments.leaderboard.measuring": "leaderboard",
    "experiments.leaderboard.ranking": "boards",
    "experiments.sweeps.sweep": "sweep",
    "experiments.trials.trial": "Trial",
    "methods.generation": "Generation generate",
    "methods.incremental": "Revision revise",
    "models": "load",
    "models.spec": "ModelSpec attach",
    "store": "MemoryStore fetch",
}
_MODULES = {  # a module inside a folder that is reached in one word: `from workbench import select`
    "measure": "metrics.of_prompt",
    "prepare": "methods.prepare",
    "select": "methods.select",
    "sparse": "methods.sparse",
    "notebook": "app.notebooks.notebook",
    "explore": "app.explore",
}
_PACKAGES = ("data", "models", "results", "store")  # folders of this one that a notebook begins with
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "KV",
    "BadInput",
    "Block",
    "Board",
    "Generation",
    "Layout",
    "MemoryStore",
    "ModelSpec",
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
    "attach",
    "block_attention",
    "boards",
    "causal",
    "decode",
    "encode",
    "encode_many",
    "fetch",
    "generate",
    "leaderboard",
    "load",
    "prefill",
    "prefill_many",
    "revise",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("cached-block-workbench")
    if name in _HOME:
        return getattr(import_module(f"workbench.{_HOME[name]}"), name)
    if name in _MODULES or name in _PACKAGES:
        return import_module(f"workbench.{_MODULES.get(name, name)}")
    from workbench.core.errors import did_you_mean

    raise AttributeError(f"module 'workbench' has no attribute {name!r}{did_you_mean(name, __dir__())}")


def __dir__() -> list[str]:
    return sorted({*_HOME, *_MODULES, *_PACKAGES})
