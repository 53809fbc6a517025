"""Explorers: interactive views of a model, a prompt or result records, each in one call.

    from workbench import explore

    explore.prompt("lab-full", text)           the prompt editor: move, edit, remove and add blocks, compare answers
    explore.masks("lab-full", text)            attention masks and the resulting attention
    explore.deviation("lab-full", text)        how far cached keys and values are from full attention
    explore.tokens("lab-full", text)           which tokens a selector recomputes, and the answer
    explore.sparse("lab-full", text)           which key tiles a sparse method keeps
    explore.latency("lab-full", text)          where the time to the first token goes
    explore.tradeoff("runs/sweep")             quality against cost of trials: a folder, records or a data frame
    explore.store("prepared")                  the contents of a store of cached blocks, or receipts in records

A model is a name, a folder or what `models.load` returns; a prompt is a text, a list of blocks, a `Prompt`, a `Sample`.
Explorers of one prompt are linked: a click on a token marks it in all of them. Each is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.core.errors import did_you_mean

if TYPE_CHECKING:
    from workbench.app.explore.editor.grid import prompt_page
    from workbench.app.explore.editor.widget import prompt
    from workbench.app.explore.of_prompt import deviation, latency, masks, sparse, tokens
    from workbench.app.explore.of_records import store, tradeoff

_HOME = {
    "prompt": "editor.widget",
    "prompt_page": "editor.grid",
    "masks": "of_prompt",
    "deviation": "of_prompt",
    "tokens": "of_prompt",
    "sparse": "of_prompt",
    "latency": "of_prompt",
    "tradeoff": "of_records",
    "store": "of_records",
}
__all__ = [
    "deviation",
    "latency",
    "masks",
    "prompt",
    "prompt_page",
    "sparse",
    "store",
    "tokens",
    "tradeoff",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, __dir__())}")


def __dir__() -> list[str]:
    return sorted(__all__)
