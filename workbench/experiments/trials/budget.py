"""Charged budgets: solve for the ratio at which a method computes at most a given share of the prompt at request time.

    method = within(model, Reuse(select=QueryGuided()), prompts, 0.15)   # .ratio is solved

The charged share is `metrics.cost.charged_share`: question, recomputed tokens and all passes of the selector.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.engine.attention_maps import layers_of
from workbench.methods import Method, registry
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select import budget
from workbench.metrics.cost import charged_share
from workbench.store import UNLIMITED, MemoryStore

STEPS = 10_000  # resolution of a solved ratio: 1 / STEPS
TRIED = 8  # prompts on which a correction is run, because its rows depend on its cache


def said(charged: float | None) -> str:
    """Return the prefix of error messages about this budget; "" without one."""
    return "" if charged is None else f"charged {charged:.3g}"


def within(model: PreTrainedModel, method: Method, prompts: Sequence[Prompt], charged: float) -> Method:
    """Return the method with the largest ratio whose charged share, mean over `prompts`, is at most `charged`.

    `model` may be on the meta device, except for a correction, which is run on the first prompts. Raises BadInput for a
    method that recomputes no selected tokens, and for one that exceeds `charged` before it recomputes any.
    """
    if not isinstance(method, Reuse) or not (method.select or (method.correct and method.correct.chooses)):
        raise BadInput(f"charged is {charged}: a method with a selector is needed, whose ratio it sets")
    layers, select = len(layers_of(model, "all")), method.select
    lengths = np.array([len(prompt) for prompt in prompts])
    question = float(np.mean([len(prompt.question) for prompt in prompts] / lengths))
    choosing = [one for one in (select, method.correct) if one]
    passes = [[run for one in choosing for run in one.passes(model, prompt)] for prompt in prompts]
    scored = float(np.mean([charged_share(runs, layers, len(p)) for runs, p in zip(passes, prompts, strict=True)]))
    if question + scored > charged:
        names = [registry.spec_of(one).partition("(")[0] for one in choosing]
        raise BadInput(
            f"{said(charged)}: {' and '.join(names)} computes {question + scored:.1%} of a "
            f"prompt before a token is recomputed (selection {scored:.1%}, question {question:.1%}): "
            + ("charge more" if question + scored < 1 else "more than full attention, at any budget")
        )

    def share(step: int) -> float:
        chosen = [budget(prompt, step / STEPS, choosing[0].system) for prompt in prompts]
        return question + scored + float(np.mean(chosen / lengths))

    is_run = method.correct is not None and model.device.type != "meta"
    few, store = prompts[:TRIED], MemoryStore(UNLIMITED)

    def charged_at(step: int) -> float:
        ready = replace(method, ratio=step / STEPS).begin(model, few, store)
        return float(np.mean([charged_share(one.passes, layers, len(p)) for one, p in zip(ready, few, strict=True)]))

    step = bisect_right(range(STEPS + 1), charged + 1e-12, key=charged_at if is_run else share) - 1
    return replace(method, ratio=max(0, step) / STEPS)
