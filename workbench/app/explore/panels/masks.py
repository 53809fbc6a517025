"""Change a mask rule and see the mask and the resulting attention."""

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, text_field
from workbench.app.explore.prompts import attention_of, layer_and_head
from workbench.core import masks as mask_rules
from workbench.core.masks import block_attention, causal
from workbench.data.prompt_view import PromptView
from workbench.metrics.attention_mass import measure_masked
from workbench.models.loading import Loaded
from workbench.plots.attention.masks import MaskPanel, masks
from workbench.plots.attention.token_axes import TokenAxes, counts_tokens
from workbench.plots.tiles.reduce import cell_starts, shares

LONGEST = 4096  # tokens up to which attention is measured too
CELLS = 512  # maximum cells a side; for longer prompts


def masks_explorer(loaded: Loaded, reading: PromptView, rule: str) -> VBox:
    """Explore a mask rule (`core.masks`), a layer and a head: masks, and the last token's attention.

    Above 4,096 tokens only the masks are drawn.
    """
    model, prompt, length = loaded.model, reading.prompt, len(reading.prompt)
    known = {"full attention": causal, "block attention": block_attention(prompt)}
    panels = [MaskPanel(name, shares(sees, length, CELLS)) for name, sees in known.items()]
    measured = length <= min(LONGEST, loaded.spec.context or LONGEST)
    full = measure_masked(model, prompt).tokens.numpy() if measured else None
    places = cell_starts(length, CELLS)

    def draw(sentence: str, layer: int, head: int) -> list[go.Figure]:
        sees = mask_rules.parse(sentence, prompt)
        own = shares(sees, length, CELLS)
        seen = own.sum(dtype=float) / panels[0].shares.sum(dtype=float)
        shapes = masks(
            [*panels, MaskPanel("your rule", own)],
            [reading.tokens[i] for i in places],
            reading.block_of[places],
            notice=f"Your rule keeps {seen:.1%} of the pairs of full attention.",
            caption=f"{reading.opening}, {length:,} tokens. Rule syntax: {mask_rules.WORDS}.",
        )
        counts_tokens(shapes, TokenAxes(length, len(places), y=True))
        if full is None:
            return [shapes]
        mass = {"full": full, "your rule": measure_masked(model, prompt, sees).tokens.numpy()}
        caption = f"Attention of the last token of the prompt, computed on {model.device}."
        return [shapes, attention_of(mass, reading, layer, head, caption)]

    controls = [text_field("rule", rule, 560), *layer_and_head(loaded)]
    return explorer(controls, draw, reading)
