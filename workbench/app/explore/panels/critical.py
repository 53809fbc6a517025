"""Choose a question, a selector and a ratio; see the recomputed tokens on the text, and the answer."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import torch
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, number_slider, slider
from workbench.app.explore.prompts import selector_menu, view_of
from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.data.sample import Sample
from workbench.engine.assembly import assemble
from workbench.engine.decoding import by_request, decode, text_of
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.methods import registry, select
from workbench.methods.prepare import Prepare
from workbench.metrics.answers import exact_match
from workbench.metrics.kv.kv_deviation import full_attention_kv, repair
from workbench.models.loading import Loaded
from workbench.models.model_names import check_length
from workbench.plots.kv.deviation import repaired
from workbench.plots.marks.styles import SELECTORS, reuse_name
from workbench.plots.tokens.chosen_tokens import Choice, coloured
from workbench.store import MemoryStore


def critical_explorer(loaded: Loaded, samples: Sequence[Sample], prepare: Prepare, max_new_tokens: int = 24) -> VBox:
    """Explore the sample, the selector and the percentage of recomputed tokens; one store holds all passages."""
    store, cached = MemoryStore(), reuse_name(registry.spec_of(prepare))

    def draw(number: int, spec: str, percent: int) -> go.Figure:
        view = view_of(loaded, samples, number)
        kv = assemble(loaded.model, view.prompt, prepare(loaded.model, [view.prompt], store)[0])
        scores = select.from_spec(spec)(loaded.model, view.prompt, kv)
        rows = select.choose(scores, view.prompt, percent / 100)
        choices = [rows[:0], rows, torch.arange(view.prompt.starts[-1])]
        reuse, partly, full = answers(loaded, view.prompt, kv, choices, max_new_tokens)
        right = "right" if exact_match(partly, view.answers) else "wrong"
        return coloured(
            {SELECTORS.name_of(spec): Choice(scores.numpy(), rows.numpy())},
            view.tokens,
            view.block_of,
            marked=view.supporting,
            title=f"“{partly}” ({right})",
            notice=f"“{view.question}” With {len(rows)} tokens recomputed the answer is “{partly}”; {cached} says "
            f"“{reuse}”, full attention “{full}”. Expected: {', '.join(view.answers) or 'unknown'}.",
            caption=f"{view.opening}. Colour: rank of the score; framed: recomputed; ★: needed for the answer.",
        )

    percent = slider("recomputed (%)", 15, 0, 100)
    return explorer([number_slider("question", samples), selector_menu("answer_guided"), percent], draw)


def answers(loaded: Loaded, prompt: Prompt, kv: KV, choices: Sequence[torch.Tensor], max_new_tokens: int) -> list[str]:
    """Return the answer with each of `choices` [R] recomputed over the assembled cache `kv`.

    The cache stays unchanged; all choices run in one packed batch.
    """
    model, tokenizer, layout = loaded
    check_length(max_new_tokens, loaded.spec.context)
    kvs = [kv.clone(max_new_tokens) for _ in choices]
    plans = [Plan(torch.cat((rows, prompt.question))) for rows in choices]
    requests = [PrefillRequest(prompt.tokens, plan, own) for plan, own in zip(plans, kvs, strict=True)]
    logits = [step.logits for step in prefill_many(model, requests, logits_to_keep=1) if step.logits is not None]
    steps = decode(model, kvs, logits, max_new_tokens, stop=layout.stop, tokenizer=tokenizer)
    return [text_of(tokenizer, tokens, layout.stop).strip() for tokens in by_request(steps, len(choices))]


def repair_explorer(loaded: Loaded, samples: Sequence[Sample], cached: Mapping[str, Sequence[Sequence[KV]]]) -> VBox:
    """Explore `cached`: preparation → KV of the context blocks of every sample's prompt."""
    model = loaded.model

    def draw(number: int, preparation: str, spec: str, percent: int) -> go.Figure:
        view = view_of(loaded, samples, number)
        prompt = view.prompt
        kv = assemble(model, prompt, cached[preparation][number])
        rows = select.choose(select.from_spec(spec)(model, prompt, kv), prompt, percent / 100)
        (left,) = repair(model, prompt, kv, [rows], full_attention_kv(model, prompt))
        return repaired(preparation, left, view, SELECTORS.name_of(spec), percent / 100)

    controls = [number_slider("question", samples), menu(list(cached), "cached"), selector_menu("kv_deviation")]
    return explorer([*controls, slider("recomputed (%)", 15, 0, 100)], draw)
