"""Options of `workbench serve-bench`. Has no slow imports, so that `--help` is fast."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated

from workbench.core.errors import BadInput, not_allowed
from workbench.experiments.trials.trial_fields import check_numbers
from workbench.methods.method_fields import SELECTORS, DataName, DeviceName, LayoutName, ModelName, check_schedulers

BASELINES = {"full": "full prefill", "prefix": "prefix caching", "reordered": "reordered prefix caching"}
STARTS = ("cold", "warm", "hot", "empty")


@dataclass(frozen=True, kw_only=True)
class ServeFields:
    """Questions that the scheduler serves, and how. Raises BadInput for a value that is not allowed."""

    model: ModelName = "lab-full"
    data: DataName = "lab"
    samples: Annotated[int, "Maximum number of questions"] = 24
    passages: Annotated[
        int | None, "Passages per question, truncated or filled up. Default: 10, or as many as a file has"
    ] = None
    mode: Annotated[
        str, "Comma-separated scheduler modes: sync, request (asynchronous per request), layer (per layer)"
    ] = "sync,request,layer"
    baselines: Annotated[
        str,
        "Comma-separated baselines: full (full prefill), prefix (automatic prefix caching as in vLLM and SGLang), "
        "reordered (prefix caching with passages reordered for the longest hit, as in ContextPilot and CacheWeaver)",
    ] = "none"
    rate: Annotated[float | None, "Questions per second, arriving at random. Default: all arrive at once"] = None
    start: Annotated[
        str | None,
        "Initial location of cached blocks: cold (disk), warm (memory), hot (pages), empty (encoded when missed). "
        "Default: cold; with --baselines, which start with nothing cached, empty",
    ] = None
    select: Annotated[str, f"Which cached tokens to recompute: {SELECTORS}"] = "none"
    ratio: Annotated[float | None, "With --select: share of the passage tokens to recompute"] = 0.15
    engine: Annotated[str, "paged, contiguous, or auto: paged on a GPU if model and method allow it"] = "auto"
    batch: Annotated[int, "Maximum batch size"] = 8
    loaders: Annotated[int, "Number of block-loading threads"] = 2
    max_new_tokens: Annotated[int, "Maximum tokens per answer"] = 8
    device: DeviceName = "cpu"
    dtype: Annotated[
        str | None, "float32, bfloat16, float16 or float8-products. Default: float32 on cpu, else the checkpoint's"
    ] = None
    layout: LayoutName = None
    seed: Annotated[int, "Seed for sampling questions and for arrival times"] = 0

    def __post_init__(self) -> None:
        check_numbers(vars(self))
        check_schedulers(self.modes)
        check_baselines(self.without_reuse)
        if self.start is None:
            object.__setattr__(self, "start", "empty" if self.without_reuse else "cold")
        check_load(self.batch, self.loaders, self.max_new_tokens, str(self.start), self.rate)

    @property
    def modes(self) -> list[str]:
        """Scheduler modes by name, without duplicates."""
        return list(dict.fromkeys(name.strip() for name in self.mode.split(",")))

    @property
    def without_reuse(self) -> list[str]:
        """Baselines by name, without duplicates."""
        return [] if self.baselines == "none" else list(dict.fromkeys(map(str.strip, self.baselines.split(","))))


def check_baselines(names: Sequence[str]) -> None:
    """Raise BadInput for an unknown baseline."""
    if odd := [name for name in names if name not in BASELINES]:
        raise not_allowed("baseline", odd[0], [*BASELINES])


def check_load(batch: int, loaders: int, max_new_tokens: int, start: str, rate: float | None) -> None:
    """Raise BadInput for the first of these values that is not allowed."""
    for name, value in (("batch", batch), ("loaders", loaders), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            raise BadInput(f"{name} is {value!r}: a whole number of at least 1 is needed")
    if start not in STARTS:
        raise not_allowed("start", start, STARTS)
    if rate is not None and not (isfinite(rate) and rate > 0):
        raise BadInput(f"rate is {rate!r}: a positive number of questions per second is needed")
