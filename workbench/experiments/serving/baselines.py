"""Serving baselines without block reuse: full prefill, prefix caching, and prefix caching with reordered passages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from workbench.core.blocks import Block, Prompt
from workbench.experiments.serving.serve_bench import measure
from workbench.experiments.serving.serve_fields import BASELINES, check_baselines
from workbench.experiments.serving.served import Served
from workbench.experiments.simulation.simulated_caches import ReorderedPrefixCache
from workbench.methods.modes.full import Full
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.methods.serving.prefix import PrefixEngine
from workbench.models.loading import Loaded


def measure_baselines(
    loaded: Loaded,
    prompts: Sequence[Prompt],
    names: Sequence[str],
    *,
    system: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> list[Served]:
    """Serve all prompts once under each of the named baselines, and return a `Served` for each.

    Each starts with nothing cached and gives each request a contiguous KV. `options` are `rate`, `batch`, `loaders`,
    `max_new_tokens` and `seed` of `measure`. Passages are reordered after the first `system` blocks.

    Raises BadInput, before any work, for a value that is not allowed.
    """
    check_baselines(names)
    fixed: dict[str, Any] = {"start": "empty", "engine": "contiguous"}
    served = []
    for number, name in enumerate(names):
        if progress is not None:
            progress(number, len(names))
        ordered = reordered(prompts, system) if name == "reordered" else prompts
        engine = ContiguousEngine if name == "full" else PrefixEngine
        (run,) = measure(loaded, ordered, ["request"], Full(), contiguous=engine, **fixed, **options)
        served.append(replace(run, method=BASELINES[name]))
    return served


def reordered(prompts: Sequence[Prompt], system: int = 0) -> list[Prompt]:
    """Return prompts with their passages in the order that a reordering prefix cache gives them, request by request."""
    numbers: dict[Block, int] = {}
    cache, result = ReorderedPrefixCache(), list[Prompt]()
    for prompt in prompts:
        found = cache.serve([numbers.setdefault(block, len(numbers)) for block in prompt.context[system:]])
        known = list(numbers)
        result.append(Prompt((*prompt.blocks[:system], *(known[number] for number, _ in found), prompt.blocks[-1])))
    return result
