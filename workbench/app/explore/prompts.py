"""Shared parts of prompt explorers: sample, selector, layer and head controls, and a token's attention."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from ipywidgets import Dropdown, IntSlider

from workbench.app.explore.live import menu, slider
from workbench.data.prompt_view import PromptView, of_sample
from workbench.data.sample import Sample
from workbench.methods import select
from workbench.models.loading import Loaded
from workbench.plots.attention.attention_mass import attention
from workbench.plots.attention.token_axes import TokenAxes, counts_tokens
from workbench.plots.marks.styles import SELECTORS


def view_of(loaded: Loaded, samples: Sequence[Sample], number: int) -> PromptView:
    """Return the prompt of sample `number`."""
    return of_sample(samples[number], f"sample {number}", loaded.tokenizer, loaded.layout)


def selector_menu(first: str) -> Dropdown:
    """Return a menu of all selectors, with `first` selected."""
    return menu({SELECTORS.name_of(name): name for name in select.names()}, "recompute by", value=first)


def layer_and_head(loaded: Loaded) -> list[IntSlider]:
    """Return sliders over layers (initially the last) and query heads (initially -1, their mean)."""
    last = loaded.spec.layers - 1
    heads = loaded.model.config.get_text_config().num_attention_heads
    return [slider("layer", last, 0, last), slider("head (-1: mean)", -1, -1, heads - 1)]


def attention_of(mass: Mapping[str, np.ndarray], view: PromptView, layer: int, head: int, caption: str) -> go.Figure:
    """Draw the last token's attention: `mass` mode → [L, H, T]; `layer` and `head` as in `layer_and_head`."""
    heads = slice(None) if head < 0 else slice(head, head + 1)
    which = "mean over heads" if head < 0 else f"head {head}"
    drawn = attention(
        {mode: tokens[:, heads] for mode, tokens in mass.items()},
        view.tokens,
        view.block_of,
        layer=layer,
        marked=view.supporting,
        notice=f"Layer {layer}, {which}; ★: blocks the answer needs.",
        caption=caption,
    )
    return counts_tokens(drawn, TokenAxes(len(view.tokens), len(view.tokens)))
