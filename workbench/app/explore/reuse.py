"""Ask one question three ways and see the answers, and where the model looked for them."""

from collections.abc import Sequence

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.app.explore.live import explorer, slider
from workbench.core.blocks import Prompt
from workbench.data.prompt_view import of_sample
from workbench.data.sample import Sample
from workbench.methods import Method
from workbench.methods.generation import Generation, generate
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.metrics.answers import exact_match
from workbench.metrics.attention_mass import masked, reused
from workbench.models.loading import Loaded
from workbench.models.spec import attach
from workbench.plots.attention_mass import attention
from workbench.plots.table import table
from workbench.plots.theme import MODE_NAMES
from workbench.store import MemoryStore

WAYS: dict[str, Method] = {"full": Full(), "block": Reuse(), "naive": Reuse("naive")}


def reuse_explorer(loaded: Loaded, samples: Sequence[Sample], max_new_tokens: int = 24) -> widgets.VBox:
    """Number of the sample, layer and head; blocks that were seen before come from one store."""
    model, tokenizer, layout = loaded
    layers, heads = attach(model).layers, model.config.get_text_config().num_attention_heads
    store = MemoryStore()

    def draw(number: int, layer: int, head: int) -> list[go.Figure]:
        reading = of_sample(samples[number], f"sample {number}", tokenizer, layout)
        answers = ask(loaded, reading.prompt, max_new_tokens, store)
        rows = [
            [MODE_NAMES[way], answer.text.strip(), "yes" if exact_match(answer.text, reading.answers) else "no",
             f"{answer.rows_computed:,}", f"{answer.rows_reused:,}"]
            for way, answer in answers.items()
        ]  # fmt: skip
        said = table(
            ["way", "answer", "right", "computed", "reused"],
            rows,
            widths=[2.4, 3, 0.6, 0.8, 0.8],
            words=3,
            title=reading.question,
            notice=f"Expected: {', '.join(reading.answers) or 'unknown'} ({samples[number].kind}).",
            caption=f"Greedy; store of cached blocks: hit rate {store.stats.hit_rate:.0%}, "
            f"{store.stats.bytes / 2**20:.1f} MiB.",
        )
        picked = slice(None) if head < 0 else slice(head, head + 1)
        ways = {
            "full": masked(model, reading.prompt),
            "block": reused(model, reading.prompt, "re-encoded"),
            "naive": reused(model, reading.prompt, "naive"),
        }
        looks = attention(
            {way: mass.tokens.numpy()[:, picked] for way, mass in ways.items()},
            reading.tokens,
            reading.block_of,
            layer=layer,
            marked=reading.supporting,
            caption=f"{reading.source}, {len(reading.prompt)} tokens.",
            notice=f"Layer {layer}, {'mean over heads' if head < 0 else f'head {head}'}; ★ marks blocks that the "
            f"answer needs.",
        )
        return [said, looks]

    return explorer(
        [slider("question", 0, 0, len(samples) - 1), slider("layer", layers - 1, 0, layers - 1),
         slider("head (-1: mean)", -1, -1, heads - 1)],
        draw,
    )  # fmt: skip


def ask(loaded: Loaded, prompt: Prompt, max_new_tokens: int, store: MemoryStore) -> dict[str, Generation]:
    """The answers of all ways."""
    model, tokenizer, layout = loaded
    return {
        way: generate(model, tokenizer, [prompt], method, store, max_new_tokens, stop=layout.stop)[0]
        for way, method in WAYS.items()
    }
