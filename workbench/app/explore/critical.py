"""Choose a question, a selector and a ratio, and see on the text what is computed again, and what the model answers."""

from collections.abc import Sequence

import ipywidgets as widgets
import plotly.graph_objects as go
import torch

from workbench.app.explore.live import explorer, slider
from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.data.prompt_view import of_sample
from workbench.data.sample import Sample
from workbench.engine.assembly import assemble
from workbench.engine.decoding import decode, text_of
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.methods import select
from workbench.methods.prepare import Prepare
from workbench.metrics.answers import exact_match
from workbench.models.loading import Loaded
from workbench.plots.chosen_tokens import Choice, coloured
from workbench.plots.looks import SELECTORS
from workbench.store import MemoryStore


def critical_explorer(
    loaded: Loaded, samples: Sequence[Sample], prepare: Prepare, max_new_tokens: int = 24
) -> widgets.VBox:
    """Number of the sample, selector and percent of the document tokens; passages are cached once, in one store."""
    model, tokenizer, layout = loaded
    store = MemoryStore()

    def draw(number: int, spec: str, percent: int) -> list[go.Figure]:
        reading = of_sample(samples[number], f"sample {number}", tokenizer, layout)
        kv = assemble(model, reading.prompt, prepare(model, [reading.prompt], store)[0])
        scores = select.named(spec)(model, reading.prompt, kv)
        rows = select.choose(scores, reading.prompt, percent / 100)
        reuse, partly, full = answers(
            loaded, reading.prompt, kv, [rows[:0], rows, torch.arange(reading.prompt.starts[-1])], max_new_tokens
        )
        right = "right" if exact_match(partly, reading.answers) else "wrong"
        return [
            coloured(
                {SELECTORS.name_of(spec): Choice(scores.numpy(), rows.numpy())},
                reading.tokens,
                reading.block_of,
                marked=reading.supporting,
                title=f"“{partly}” ({right})",
                notice=f"“{reading.question}” With {len(rows)} tokens computed again the answer is “{partly}”; Full "
                f"Reuse says “{reuse}”, full attention “{full}”. Expected: {', '.join(reading.answers) or 'unknown'}.",
                caption=f"{reading.source}. Colour: rank of the score; framed: computed again; ★: needed.",
            )
        ]

    menu = widgets.Dropdown(options=[(SELECTORS.name_of(n), n) for n in select.names()], value="answer_guided")
    return explorer([slider("question", 0, 0, len(samples) - 1), menu, slider("computed again (%)", 15, 0, 100)], draw)


def answers(loaded: Loaded, prompt: Prompt, kv: KV, choices: Sequence[torch.Tensor], max_new_tokens: int) -> list[str]:
    """What the model says with each of `choices` [R] computed again over the assembled cache `kv`, which stays as it
    is; all of them packed together."""
    model, tokenizer, layout = loaded
    kvs = [kv.clone(max_new_tokens) for _ in choices]
    plans = [Plan(torch.cat((rows, prompt.question))) for rows in choices]
    requests = [PrefillRequest(prompt.tokens, plan, own) for plan, own in zip(plans, kvs, strict=True)]
    logits = [step.logits for step in prefill_many(model, requests, logits_to_keep=1) if step.logits is not None]
    said: list[list[int]] = [[] for _ in choices]
    for step in decode(model, kvs, logits, max_new_tokens, stop=layout.stop, tokenizer=tokenizer):
        for tokens, token in zip(said, step, strict=True):
            tokens += [] if token is None else [token]
    return [text_of(tokenizer, tokens, layout.stop).strip() for tokens in said]
