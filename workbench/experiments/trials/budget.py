"""A charged budget: the ratio at which a method computes at most a share of the prompt's tokens at request time.

    method = within(model, Reuse(select=QueryGuided()), prompts, 0.15)   # .ratio is solved

The charged share is `metrics.cost.charged_share`: question, recomputed tokens and every pass of the selector.
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

STEPS = 10_000  # in which a ratio is solved


def within(model: PreTrainedModel, method: Method, prompts: Sequence[Prompt], charged: float) -> Method:
    """Return the method with the largest ratio whose charged share, mean over `prompts`, is at most `charged`.

    `model` may lie on the meta device. Raises BadInput for a method that recomputes no chosen tokens, and for one that
    computes more before it recomputes any.
    """
    if not isinstance(method, Reuse) or method.select is None:
        raise BadInput(f"charged is {charged}: a method with a selector is needed, whose ratio it sets")
    layers, select = len(layers_of(model, "all")), method.select
    lengths = np.array([len(prompt) for prompt in prompts])
    asked = float(np.mean([len(prompt.question) for prompt in prompts] / lengths))
    scored = float(np.mean([charged_share(select.passes(model, p), layers, len(p)) for p in prompts]))
    if asked + scored > charged:
        raise BadInput(
            f"charged {charged:.3g}: {registry.spec_of(select)} computes {asked + scored:.1%} of a prompt before it "
            f"recomputes a token (selection {scored:.1%}, question {asked:.1%})"
        )

    def share(step: int) -> float:
        chosen = [budget(prompt, step / STEPS, select.system) for prompt in prompts]
        return asked + scored + float(np.mean(chosen / lengths))

    step = bisect_right(range(STEPS + 1), charged + 1e-12, key=share) - 1
    return replace(method, ratio=step / STEPS)
