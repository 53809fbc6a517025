"""Pick a key and a distance and see its channel pairs rotate."""

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, number_slider, slider
from workbench.data.prompt_view import Reading
from workbench.metrics.kv.position_encoding import key_rotation
from workbench.models.loading import Loaded
from workbench.plots.attention.masks import shown
from workbench.plots.kv.position_encoding import rotation_of


def positions_explorer(loaded: Loaded, reading: Reading, block: int = 1) -> VBox:
    """Explore token of a block, layer, head and distance."""
    tokens, begin = reading.prompt.blocks[block], reading.prompt.starts[block]
    furthest = min(2048, loaded.spec.context or 4096) - len(tokens)

    def draw(distance: int, token: int, layer: int, head: int) -> go.Figure:
        rotated = key_rotation(loaded.model, tokens, token, layer, head, [distance])
        word = shown(reading.tokens[begin + token])
        return rotation_of(
            rotated,
            notice=f"Key of “{word}”, layer {layer}, head {head}, moved by {distance} tokens.",
            caption=f"{reading.source}, block {block}. The ring is computed by the model with the block at that place "
            f"({loaded.model.device}).",
        )

    heads = slider("head", 0, 0, loaded.spec.shapes[0][0] - 1)
    layers = number_slider("layer", loaded.spec.shapes)
    return explorer([slider("distance", 32, 0, furthest), number_slider("token", tokens, 4), layers, heads], draw)
