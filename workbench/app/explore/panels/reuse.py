"""Answer one question by three methods; see the answers and the attention behind them."""

from collections.abc import Sequence

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, number_slider, slider
from workbench.app.explore.prompts import attention_of, layer_and_head, view_of
from workbench.core.blocks import Prompt
from workbench.data.prompt_view import PromptView
from workbench.data.sample import Sample
from workbench.methods import Method
from workbench.methods.answered import Generation
from workbench.methods.generation import generate
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.metrics.answers import exact_match
from workbench.metrics.attention_mass import measure_masked, reused
from workbench.metrics.kv.position_encoding import POSITIONS, key_rotation
from workbench.models.loading import Loaded
from workbench.plots.attention.masks import token_label
from workbench.plots.kv.position_encoding import rotation
from workbench.plots.marks.styles import MODE_NAMES
from workbench.plots.marks.table import table
from workbench.store import MemoryStore

METHODS: dict[str, Method] = {"full": Full(), "block": Reuse(), "naive": Reuse("naive")}


def reuse_explorer(loaded: Loaded, samples: Sequence[Sample], max_new_tokens: int = 24) -> VBox:
    """Explore the sample, the layer and the head; repeated blocks come from one store."""
    model, store = loaded.model, MemoryStore()

    def draw(number: int, layer: int, head: int) -> list[go.Figure]:
        view = view_of(loaded, samples, number)
        rows = []
        for name, answer in ask(loaded, view.prompt, max_new_tokens, store).items():
            right = "yes" if exact_match(answer.text, view.answers) else "no"
            counts = [f"{answer.rows_computed:,}", f"{answer.rows_reused:,}"]
            rows.append([MODE_NAMES[name], answer.text.strip(), right, *counts])
        answered = table(
            ["method", "answer", "right", "computed", "reused"],
            rows,
            widths=[2.4, 3, 0.6, 0.8, 0.8],
            words=3,
            title=view.question,
            notice=f"Expected: {', '.join(view.answers) or 'unknown'} ({samples[number].kind}).",
            caption=f"Greedy; store of cached blocks: hit rate {store.stats.hit_rate:.0%}, "
            f"{store.stats.bytes / 2**20:.1f} MiB.",
        )
        mass = {"full": measure_masked(model, view.prompt).tokens.numpy()}
        for mode, positions in POSITIONS.items():
            mass[mode] = reused(model, view.prompt, positions).tokens.numpy()
        return [answered, attention_of(mass, view, layer, head, f"{view.opening}, {len(view.prompt)} tokens.")]

    return explorer([number_slider("question", samples), *layer_and_head(loaded)], draw)


def ask(loaded: Loaded, prompt: Prompt, max_new_tokens: int, store: MemoryStore) -> dict[str, Generation]:
    """Return the answer by each of METHODS."""
    model, tokenizer, layout = loaded
    return {
        name: generate(model, tokenizer, [prompt], method, store, max_new_tokens, stop=layout.stop)[0]
        for name, method in METHODS.items()
    }


def positions_explorer(loaded: Loaded, reading: PromptView, block: int = 1) -> VBox:
    """Explore a block's token, the layer, the head and the distance."""
    tokens, begin = reading.prompt.blocks[block], reading.prompt.starts[block]
    furthest = min(2048, loaded.spec.context or 4096) - len(tokens)

    def draw(distance: int, token: int, layer: int, head: int) -> go.Figure:
        rotated = key_rotation(loaded.model, tokens, token, layer, head, [distance])
        word = token_label(reading.tokens[begin + token])
        return rotation(
            rotated,
            notice=f"Key of “{word}”, layer {layer}, head {head}, moved by {distance} tokens.",
            caption=f"{reading.opening}, block {block}. Ring: computed by the model with the block at that position "
            f"({loaded.model.device}).",
        )

    heads = slider("head", 0, 0, loaded.spec.shapes[0][0] - 1)
    layers = number_slider("layer", loaded.spec.shapes)
    return explorer([slider("distance", 32, 0, furthest), number_slider("token", tokens, 4), layers, heads], draw)
