"""Measure one prompt in one call and return a tidy table: `from workbench import measure`.

    loaded = models.load("lab-full")
    (sample,) = data.load("lab", samples=1)
    measure.deviation(loaded, sample)                         a row per token, layer and part (keys, values)
    measure.scores(loaded, sample, ["query_guided"])          a row per context token, a column per selector
    measure.attention(loaded, sample)                         a row per context token: attention from the question
    measure.selected(loaded, sample, "bfla(block=64)")        a row per layer, head, query tile and key tile

A model is a name, a folder or what `models.load` returns. A prompt is a text, a list of blocks, a `Prompt` or a
`Sample`, as for `explore` (`models.given`). `question` belongs to a text whose last paragraph is not the question.
`prepare` is a preprocessing without a corpus: what the passages attended to when they were cached. `kv`, an assembled
cache of the prompt, is measured instead if it is given. Columns `token` and `block` are indices within the prompt;
`text` is the token's text, if the model's tokenizer is known.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.utils.annotations import checked
from workbench.data import prompt_view
from workbench.engine.assembly import assemble
from workbench.engine.attention_maps import Layers, from_question
from workbench.methods import own_function, select, sparse
from workbench.methods import prepare as preparations
from workbench.metrics.kv import kv_deviation
from workbench.metrics.tiles.tile_states import dense_states
from workbench.models.given import Given, Model, model_and_prompt
from workbench.models.loading import TOKENIZERS
from workbench.store import UNLIMITED, MemoryStore

__all__ = ["attention", "deviation", "reused", "scores", "selected"]


def __dir__() -> list[str]:
    return sorted(__all__)


@checked
def reused(model: Model, prompt: Given, prepare: str = "after_system", question: str = "") -> KV:
    """Return the assembled cache of a prompt: passages cached by `prepare`, the question not computed yet."""
    return _reused(*model_and_prompt(model, prompt, question), prepare)


def _reused(model: PreTrainedModel, prompt: Prompt, prepare: str) -> KV:
    return assemble(model, prompt, preparations.from_spec(prepare)(model, [prompt], MemoryStore(UNLIMITED))[0])


@checked
def deviation(
    model: Model, prompt: Given, prepare: str = "after_system", kv: KV | None = None, question: str = ""
) -> pd.DataFrame:
    """Return the deviation of cached keys and values from full attention: token, text, block, layer, part, deviation.

    `deviation` is the relative L2 distance, mean over KV heads. Rows are context tokens; the question is not cached.
    """
    lm, joined = model_and_prompt(model, prompt, question)
    end, cached = joined.starts[-1], _reused(lm, joined, prepare) if kv is None else kv
    exact = kv_deviation.full_attention_kv(lm, joined)
    deviations = kv_deviation.deviation(cached.slice(0, end), exact.slice(0, end))
    parts = {"keys": deviations.keys, "values": deviations.values}
    tables = [
        _long(of.nanmean(2).cpu(), ("token", "layer"), "deviation").assign(part=part) for part, of in parts.items()
    ]
    rows, last = _with_text(pd.concat(tables, ignore_index=True), model, lm, joined), ["layer", "part", "deviation"]
    return rows[[*(name for name in rows if name not in last), *last]]


@checked
def scores(
    model: Model,
    prompt: Given,
    selectors: Sequence[str | select.Select | Callable[..., Any]],
    prepare: str = "after_system",
    kv: KV | None = None,
    question: str = "",
) -> pd.DataFrame:
    """Return the score that each selector gives each context token: token, text, block, one column per selector.

    Selectors are names, policies, or functions as a trial takes them (`methods.own_function`). Tokens with higher
    scores are recomputed first; -inf is never recomputed, inf always.
    """
    policies = {one if isinstance(one, str) else _name(one): _policy(one) for one in selectors}
    lm, joined = model_and_prompt(model, prompt, question)
    cached = _reused(lm, joined, prepare) if kv is None else kv
    columns: dict[str, Any] = {"token": range(joined.starts[-1])}
    columns |= {name: policy(lm, joined, cached.clone()).numpy() for name, policy in policies.items()}
    return _with_text(pd.DataFrame(columns), model, lm, joined)


def _policy(selector: str | select.Select | Callable[..., Any]) -> select.Select:
    if isinstance(selector, str):
        return select.from_spec(selector)
    return selector if isinstance(selector, select.Select) else own_function.selector(selector)


def _name(selector: Any) -> str:
    return type(selector).__name__ if isinstance(selector, select.Select) else getattr(selector, "__name__", "")


@checked
def attention(
    model: Model,
    prompt: Given,
    layers: Layers = "all",
    prepare: str = "after_system",
    kv: KV | None = None,
    question: str = "",
) -> pd.DataFrame:
    """Return the attention that each context token receives from the question: token, text, block, attention.

    Softmax over the whole prompt, summed over `layers`, heads and question tokens, as a share of the context's total.
    """
    lm, joined = model_and_prompt(model, prompt, question)
    cached = _reused(lm, joined, prepare) if kv is None else kv
    (paid,) = from_question(lm, [joined], [cached.clone()], layers, over="prompt")
    share = (paid / paid.sum()).cpu().numpy()
    return _with_text(pd.DataFrame({"token": range(len(share)), "attention": share}), model, lm, joined)


@checked
def selected(model: Model, prompt: Given, method: str | sparse.Sparse, question: str = "") -> pd.DataFrame:
    """Return the key tiles that a sparse method selects: layer, head, query_tile, key_tile, tokens of a tile, mass.

    `mass` is the key tile's attention under dense attention, mean over the query tile's tokens. Layers with a sliding
    window narrower than the prompt are left out.
    """
    policy = sparse.from_spec(method) if isinstance(method, str) else method
    lm, joined = model_and_prompt(model, prompt, question)
    policy, states = policy.for_model(lm), dense_states(lm, joined.tokens)
    tables = []
    for layer in states.layers:
        tiles = policy(states.queries[layer], states.keys[layer], torch.arange(len(states), device=lm.device))
        head, query, key = tiles.paged().kept.nonzero(as_tuple=True)
        mass = states.mass(layer, tiles.size)[head, query, key]
        columns = {"head": head, "query_tile": query, "key_tile": key, "mass": mass}
        read = {name: x.cpu().numpy() for name, x in columns.items()}
        tables.append(pd.DataFrame({"layer": layer, **read, "tokens": tiles.size}))
    return pd.concat(tables, ignore_index=True)[["layer", "head", "query_tile", "key_tile", "tokens", "mass"]]


def _long(values: torch.Tensor, names: Sequence[str], what: str) -> pd.DataFrame:
    """Return a tensor as a table with one value per row, and its indices in columns."""
    index = pd.MultiIndex.from_product([range(n) for n in values.shape], names=list(names))
    return pd.Series(values.flatten().numpy(), index=index, name=what).reset_index()


def _with_text(table: pd.DataFrame, model: Model, lm: PreTrainedModel, prompt: Prompt) -> pd.DataFrame:
    """Add the blocks of the tokens, and their texts if a tokenizer is known."""
    at = table["token"].to_numpy()
    table.insert(1, "block", prompt.block_of.numpy()[at])
    tokenizer = model[1] if isinstance(model, tuple) and len(model) > 1 else TOKENIZERS.get(lm)
    if tokenizer is not None:
        table.insert(1, "text", np.array(prompt_view.texts(prompt, tokenizer), dtype=object)[at])
    return table
