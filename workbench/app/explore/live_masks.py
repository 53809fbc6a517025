"""Change a mask rule and see at once whom a token sees and where the model then looks."""

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, text_field
from workbench.app.explore.prompts import attention_of, layer_and_head
from workbench.core import mask_rules
from workbench.core.masks import block_attention, causal
from workbench.data.prompt_view import Reading
from workbench.metrics.attention_mass import masked
from workbench.models.loading import Loaded
from workbench.plots.masks import MaskPanel, masks
from workbench.plots.reduce import shares, visible_pairs


def masks_explorer(loaded: Loaded, reading: Reading, rule: str) -> VBox:
    """Explore a sentence of `core.mask_rules`, a layer and a head: masks, and where the answering token looks."""
    model, prompt, length = loaded.model, reading.prompt, len(reading.prompt)
    known = {"full attention": causal, "block attention": block_attention(prompt)}
    panels = [MaskPanel(name, shares(sees, length)) for name, sees in known.items()]
    full = masked(model, prompt).tokens.numpy()
    cells = len(panels[0].shares)
    places = [i * length // cells for i in range(cells)]

    def draw(sentence: str, layer: int, head: int) -> list[go.Figure]:
        sees = mask_rules.parse(sentence, prompt)
        share = visible_pairs(sees, length) / visible_pairs(causal, length)
        shapes = masks(
            [*panels, MaskPanel("your rule", shares(sees, length))],
            [reading.tokens[i] for i in places],
            reading.block_of[places],
            notice=f"Your rule shows {share:.1%} of the pairs of full attention.",
            caption=f"{reading.source}, {length} tokens. Words of a rule: {mask_rules.WORDS}.",
        )
        mass = {"full": full, "your rule": masked(model, prompt, sees).tokens.numpy()}
        caption = f"Attention of the last token of the prompt, computed on {model.device}."
        return [shapes, attention_of(mass, reading, layer, head, caption)]

    return explorer([text_field("rule", rule, 560), *layer_and_head(loaded)], draw)
