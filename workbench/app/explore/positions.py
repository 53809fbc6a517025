"""Pick a key and a distance and see its channel pairs turn."""

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.app.explore.live import explorer, slider
from workbench.data.prompt_view import Reading
from workbench.metrics.position_encoding import key_rotation
from workbench.models.loading import Loaded
from workbench.models.spec import attach
from workbench.plots.masks import shown
from workbench.plots.position_encoding import rotation


def positions_explorer(loaded: Loaded, reading: Reading, block: int = 1) -> widgets.VBox:
    """Token of a block, layer, head and distance."""
    model, chosen = loaded[0], reading.prompt.blocks[block]
    spec, begin = attach(model), reading.prompt.starts[block]
    furthest = min(2048, (spec.context or 4096)) - len(chosen)

    def draw(distance: int, token: int, layer: int, head: int) -> list[go.Figure]:
        found = key_rotation(model, chosen, token, layer, head, [distance])
        word = shown(reading.tokens[begin + token])
        return [
            rotation(
                found.cached,
                found.inv_freq,
                found.distances,
                found.in_place,
                pairs=found.pairs,
                notice=f"Key of “{word}”, layer {layer}, head {head}, moved by {distance} tokens.",
                caption=f"{reading.source}, block {block}. The ring is computed by the model with the block at that "
                f"place ({model.device}).",
            )
        ]

    return explorer(
        [
            slider("distance", 32, 0, furthest), slider("token", 4, 0, len(chosen) - 1),
            slider("layer", 0, 0, spec.layers - 1), slider("head", 0, 0, spec.shapes[0][0] - 1),
        ],
        draw,
    )  # fmt: skip
