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


def message_prefix(charged: float | None) -> str:
    """Return the prefix of error messages about this budget; "" without one."""
    return "" if charged is None else f"charged {charged:.3g}"


def fit_to_budget(model: PreTrainedModel, method: Method, prompts: Sequence[Prompt], charged: float) -> Method:
    """Return the method with the largest ratio whose charged share, mean over `prompts`, is at most `charged`.

    `model` may be on the meta device, except for a correction, whose cost is measured on the first prompts. Raises
    BadInput for a method that recomputes no selected tokens, and for one that exceeds `charged` before recomputation.
    """
    if not isinstance(method, Reuse) or not (method.select or (method.correct and method.correct.chooses)):
        raise BadInput(f"charged is {charged}: a method with a selector is needed, whose ratio it sets")
    layers, select = len(layers_of(model, "all")), method.select
    lengths = np.array([len(prompt) for prompt in prompts])
    question = np.array([len(prompt.question) for prompt in prompts]) / lengths
    choosing = [one for one in (select, method.correct) if one]
    passes = [[run for one in choosing for run in one.passes(model, prompt)] for prompt in prompts]
    selection = np.array([charged_share(runs, layers, len(p)) for runs, p in zip(passes, prompts, strict=True)])
    asked, scored = float(question.mean()), float(selection.mean())
    if asked + scored > charged:
        running = [one for one in choosing if one.passes(model, prompts[0])] or choosing
        names = [registry.spec_of(one).partition("(")[0] for one in running]
        raise BadInput(
            f"{message_prefix(charged)}: {' and '.join(names)} computes {asked + scored:.1%} of a "
            f"prompt before a token is recomputed (selection {scored:.1%}, question {asked:.1%}): "
            + ("charge more" if asked + scored < 1 - 1e-9 else "no less than full attention, at any budget")
        )

    tried = method.correct is not None and model.device.type != "meta"
    few, store = prompts[: TRIED if tried else 0], MemoryStore(UNLIMITED)

    def share(step: int) -> float:
        chosen = [budget(prompt, step / STEPS, choosing[0].system) for prompt in prompts]
        each = question + selection + chosen / lengths
        if not tried:
            return float(each.mean())
        ready = replace(method, ratio=step / STEPS).begin(model, few, store)
        found = [charged_share(one.passes, layers, len(p)) for one, p in zip(ready, few, strict=True)]
        return float(each.mean() + np.mean(found - each[: len(few)]))  # what a correction adds, of few prompts

    step = bisect_right(range(STEPS + 1), charged + 1e-12, key=share) - 1
    return replace(method, ratio=max(0, step) / STEPS)
