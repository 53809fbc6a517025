"""One prompt measured, one call each, as a tidy table: `from workbench import measure`.

    model, tokenizer, layout = models.load("lab-full")
    (prompt,) = layout.prompts(data.load("lab", samples=1), tokenizer)
    measure.deviation(model, prompt)                          a row a token, layer and part (keys, values)
    measure.scores(model, prompt, ["query_guided"])           a row a context token, a column a selector
    measure.attention(model, prompt)                          a row a context token: what the question pays to it
    measure.selected(model, prompt, "bfla(block=64)")         a row a layer, head, query tile and key tile

`prepare` is a preparation without a corpus: what the passages saw before they were cached. With `kv`, an assembled
cache of the prompt, that is measured instead. Columns `token` and `block` are numbers within the prompt.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.utils.annotations import checked
from workbench.engine.assembly import assemble
from workbench.engine.attention_maps import Layers, from_question
from workbench.methods import prepare as preparations
from workbench.methods import select, sparse
from workbench.metrics.kv import kv_deviation
from workbench.metrics.tiles.tile_states import dense_states
from workbench.store import UNLIMITED, MemoryStore


@checked
def reused(model: PreTrainedModel, prompt: Prompt, prepare: str = "after_system") -> KV:
    """Return the assembled cache of a prompt: its passages cached by `prepare`, its question not computed yet."""
    return assemble(model, prompt, preparations.named(prepare)(model, [prompt], MemoryStore(UNLIMITED))[0])


@checked
def deviation(
    model: PreTrainedModel, prompt: Prompt, prepare: str = "after_system", kv: KV | None = None
) -> pd.DataFrame:
    """Return how far cached keys and values are from full attention: token, block, layer, part, deviation.

    `deviation` is the relative L2 distance, mean over KV heads. Of the context: the question is not cached.
    """
    end, cached = prompt.starts[-1], reused(model, prompt, prepare) if kv is None else kv
    exact = kv_deviation.full_attention_kv(model, prompt)
    found = kv_deviation.deviation(cached.slice(0, end), exact.slice(0, end))
    parts = {"keys": found.keys, "values": found.values}
    tables = [
        _long(of.nanmean(2).cpu(), ("token", "layer"), "deviation").assign(part=part) for part, of in parts.items()
    ]
    return _placed(pd.concat(tables, ignore_index=True), prompt)[["token", "block", "layer", "part", "deviation"]]


@checked
def scores(
    model: PreTrainedModel,
    prompt: Prompt,
    selectors: Sequence[str | select.Select],
    prepare: str = "after_system",
    kv: KV | None = None,
) -> pd.DataFrame:
    """Return the score that every selector, by name or itself, gives each context token: token, block, a column each.

    The higher, the sooner recomputed; -inf is never recomputed, inf always.
    """
    cached = reused(model, prompt, prepare) if kv is None else kv
    columns: dict[str, Any] = {"token": range(prompt.starts[-1])}
    for one in selectors:
        policy = select.named(one) if isinstance(one, str) else one
        columns[one if isinstance(one, str) else type(one).__name__] = policy(model, prompt, cached.clone()).numpy()
    return _placed(pd.DataFrame(columns), prompt)


@checked
def attention(
    model: PreTrainedModel,
    prompt: Prompt,
    layers: Layers = "all",
    prepare: str = "after_system",
    kv: KV | None = None,
) -> pd.DataFrame:
    """Return the attention that each context token gets from the question: token, block, attention.

    Softmax over the whole prompt, summed over `layers`, heads and question tokens, as a share of what the context gets.
    """
    cached = reused(model, prompt, prepare) if kv is None else kv
    (paid,) = from_question(model, [prompt], [cached.clone()], layers, over="prompt")
    share = (paid / paid.sum()).cpu().numpy()
    return _placed(pd.DataFrame({"token": range(len(share)), "attention": share}), prompt)


@checked
def selected(model: PreTrainedModel, prompt: Prompt, method: str | sparse.Sparse) -> pd.DataFrame:
    """Return the key tiles that a sparse method selects: layer, head, query_tile, key_tile, tokens of a tile, mass.

    `mass` is the attention under dense attention that the key tile gets, mean over the query tile's rows. Layers with a
    sliding window narrower than the prompt are left out.
    """
    policy = (sparse.named(method) if isinstance(method, str) else method).ready(model)
    states = dense_states(model, prompt.tokens)
    tables = []
    for layer in states.layers:
        tiles = policy(states.queries[layer], states.keys[layer], torch.arange(len(states), device=model.device))
        head, query, key = tiles.paged().kept.nonzero(as_tuple=True)
        mass = states.mass(layer, tiles.size)[head, query, key]
        columns = {"head": head, "query_tile": query, "key_tile": key, "mass": mass}
        read = {name: x.cpu().numpy() for name, x in columns.items()}
        tables.append(pd.DataFrame({"layer": layer, **read, "tokens": tiles.size}))
    return pd.concat(tables, ignore_index=True)[["layer", "head", "query_tile", "key_tile", "tokens", "mass"]]


def _long(values: torch.Tensor, names: Sequence[str], what: str) -> pd.DataFrame:
    """Return a tensor as a row a number, with its indices in columns."""
    index = pd.MultiIndex.from_product([range(n) for n in values.shape], names=list(names))
    return pd.Series(values.flatten().numpy(), index=index, name=what).reset_index()


def _placed(table: pd.DataFrame, prompt: Prompt) -> pd.DataFrame:
    table.insert(1, "block", prompt.block_of.numpy()[table["token"].to_numpy()])
    return table
