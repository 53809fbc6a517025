"""Change a mask rule and see at once whom a token sees and where the model then looks."""

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.app.explore.live import explorer, slider
from workbench.core import mask_rules
from workbench.core.masks import block_attention, causal
from workbench.data.prompt_view import Reading
from workbench.metrics.attention_mass import masked
from workbench.models.loading import Loaded
from workbench.models.spec import attach
from workbench.plots.attention_mass import attention
from workbench.plots.masks import MaskPanel, masks
from workbench.plots.reduce import shares, visible_pairs


def masks_explorer(loaded: Loaded, reading: Reading, rule: str) -> widgets.VBox:
    """A sentence of `core.mask_rules`, a layer and a head; the shapes and the attention of the answering token under
    it."""
    model, prompt, length = loaded[0], reading.prompt, len(reading.prompt)
    layers, heads = attach(model).layers, model.config.get_text_config().num_attention_heads
    known = {"full attention": causal, "block attention": block_attention(prompt)}
    panels = [MaskPanel(name, shares(sees, length)) for name, sees in known.items()]
    full = masked(model, prompt).tokens.numpy()

    def draw(sentence: str, layer: int, head: int) -> list[go.Figure]:
        sees = mask_rules.parse(sentence, prompt)
        cells = len(panels[0].shares)
        places = [i * length // cells for i in range(cells)]
        share = visible_pairs(sees, length) / visible_pairs(causal, length)
        shape = masks(
            [*panels, MaskPanel("your rule", shares(sees, length))], [reading.tokens[i] for i in places],
            reading.block_of[places], notice=f"Your rule shows {share:.1%} of the pairs of full attention.",
            caption=f"{reading.source}, {length} tokens. Words of a rule: {mask_rules.WORDS}.",
        )  # fmt: skip
        picked = slice(None) if head < 0 else slice(head, head + 1)
        mass = {"full": full[:, picked], "your rule": masked(model, prompt, sees).tokens.numpy()[:, picked]}
        looks = attention(
            mass,
            reading.tokens,
            reading.block_of,
            layer=layer,
            marked=reading.supporting,
            notice=f"Layer {layer}, {'mean over heads' if head < 0 else f'head {head}'}; ★ marks blocks that the "
            f"answer needs.",
            caption=f"Attention of the last token of the prompt, computed on {model.device}.",
        )
        return [shape, looks]

    text = widgets.Text(rule, description="rule", continuous_update=False, layout=widgets.Layout(width="560px"))
    return explorer(
        [text, slider("layer", layers - 1, 0, layers - 1), slider("head (-1: mean)", -1, -1, heads - 1)], draw
    )
