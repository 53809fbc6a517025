"""Explorers of one prompt: masks, deviation, recomputed tokens, sparse tiles."""

from functools import lru_cache

import plotly.graph_objects as go
import torch
from ipywidgets import VBox
from transformers import PreTrainedModel

from workbench.app.explore.live import explorer, slider
from workbench.app.explore.panels.critical import answers
from workbench.app.explore.panels.latency import request_explorer
from workbench.app.explore.panels.long import long_explorer
from workbench.app.explore.panels.masks import masks_explorer
from workbench.app.explore.panels.tiles import tiles_explorer
from workbench.app.explore.prompts import selector_menu
from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.engine.assembly import assemble
from workbench.methods import prepare as preparations
from workbench.methods import select
from workbench.methods.sparse._small import for_tile_size
from workbench.metrics.answers import exact_match
from workbench.metrics.kv.kv_deviation import full_attention_kv, repair
from workbench.metrics.tiles.tile_states import dense_states
from workbench.models.given import Given, Model, loaded_of, reading_of
from workbench.plots.kv.deviation import repaired
from workbench.plots.marks.styles import SELECTORS, reuse_name
from workbench.plots.tokens.chosen_tokens import Choice, coloured
from workbench.store import MemoryStore

TILE, LONG = 32, 4096  # tokens of a tile; length from which tiles are shown in a window
TEXT = 1200  # tokens of text shown at once


def masks(model: Model, prompt: Given, question: str = "", rule: str = "causal & (same_block | window(64))") -> VBox:
    """Explore the masks of full attention, block attention and a custom rule, and the resulting attention."""
    loaded = loaded_of(model)
    return masks_explorer(loaded, reading_of(loaded, prompt, question), rule)


def deviation(model: Model, prompt: Given, question: str = "", prepare: str = "after_system") -> VBox:
    """Explore how far cached KV is from full attention, by token and layer, before and after recomputation.

    `prepare` is a preprocessing without a corpus. Raises BadInput for an unknown one.
    """
    loaded = loaded_of(model)
    lm, view = loaded.model, reading_of(loaded, prompt, question)
    kv, truth = _reused(lm, view.prompt, prepare), full_attention_kv(lm, view.prompt)

    @lru_cache
    def scores(spec: str) -> torch.Tensor:
        return select.from_spec(spec)(lm, view.prompt, kv)

    def draw(spec: str, percent: int) -> go.Figure:
        rows = select.choose(scores(spec), view.prompt, percent / 100)
        (left,) = repair(lm, view.prompt, kv, [rows], truth)
        return repaired(f"cached {prepare}", left, view, SELECTORS.name_of(spec), percent / 100)

    controls = [selector_menu("kv_deviation"), slider("recomputed (%)", 15, 0, 100)]
    return explorer(controls, draw, view)


def tokens(model: Model, prompt: Given, question: str = "", prepare: str = "after_system") -> VBox:
    """Explore on the text which tokens a selector recomputes at a ratio, and the resulting answer."""
    loaded = loaded_of(model)
    lm, view = loaded.model, reading_of(loaded, prompt, question)
    kv = _reused(lm, view.prompt, prepare)
    everything = torch.arange(view.prompt.starts[-1])

    @lru_cache
    def scores(spec: str) -> torch.Tensor:
        return select.from_spec(spec)(lm, view.prompt, kv)

    @lru_cache
    def said(spec: str, percent: int) -> str:
        rows = select.choose(scores(spec), view.prompt, percent / 100)
        return answers(loaded, view.prompt, kv, [rows], 24)[0]

    reuse, full = answers(loaded, view.prompt, kv, [everything[:0], everything], 24)

    def draw(spec: str, percent: int, block: int) -> go.Figure:
        rows, answer = select.choose(scores(spec), view.prompt, percent / 100), said(spec, percent)
        same = "the answer of full attention" if exact_match(answer, [full]) else f"full attention says “{full}”"
        expected = f" Expected: {', '.join(view.answers)}." if view.answers else ""
        return coloured(
            {SELECTORS.name_of(spec): Choice(scores(spec).cpu().numpy(), rows.cpu().numpy())},
            view.tokens,
            view.block_of,
            marked=view.supporting,
            first=view.prompt.starts[block],
            most=TEXT,
            title=f"{percent}% recomputed: “{answer}”",
            notice=f"“{view.question}” With {len(rows):,} of {len(everything):,} tokens recomputed: {same}. "
            f"{reuse_name(prepare)[:1].upper()}{reuse_name(prepare)[1:]} alone says “{reuse}”.{expected}",
            caption=f"{view.opening}, {len(view.prompt):,} tokens. Colour: rank of the score; framed: recomputed; the "
            "question is always computed. Click a token to mark it in the other figures.",
        )

    blocks = slider("from block", 0, 0, len(view.prompt.blocks) - 1)
    controls = [selector_menu("query_guided"), slider("recomputed (%)", 15, 0, 100), blocks]
    return explorer(controls, draw, view)


def sparse(
    model: Model, prompt: Given, question: str = "", methods: tuple[str, ...] = ("bfla", "flash_prefill"), tile: int = 0
) -> VBox:
    """Explore which key tiles sparse methods keep, over the true attention per tile.

    `tile` is the tile size in tokens; 0 means 32, or 128 from 4,096 tokens on. Such long prompts get an overview, and a
    window tile by tile.
    """
    loaded = loaded_of(model)
    view = reading_of(loaded, prompt, question)
    states = dense_states(loaded.model, view.prompt.tokens)
    size = tile or (TILE if len(states) < LONG else 4 * TILE)
    specs = [for_tile_size(spec, size) for spec in methods]
    caption = f"{view.opening}, {len(states):,} tokens. Stronger colour: more attention. {', '.join(specs)}."
    if len(states) >= LONG:
        return long_explorer(states, specs, caption=caption, view=view)
    return tiles_explorer(loaded.model, states, specs, caption=caption, view=view)


def _reused(lm: PreTrainedModel, prompt: Prompt, prepare: str) -> KV:
    return assemble(lm, prompt, preparations.from_spec(prepare)(lm, [prompt], MemoryStore(1 << 40))[0])


def latency(model: Model, prompt: Given, question: str = "", repeats: int = 3) -> VBox:
    """Explore the time to the first token by stage, measured now on the model's device.

    Under full attention, with some or all blocks cached, and with some tokens recomputed.
    """
    loaded = loaded_of(model)
    return request_explorer(loaded, reading_of(loaded, prompt, question).prompt, repeats)
