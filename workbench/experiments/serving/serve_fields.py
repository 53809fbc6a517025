"""What `workbench serve-bench` is asked for; nothing heavy is imported, so that its `--help` is there at once."""

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
    samples: Annotated[int, "Questions to serve, at most"] = 24
    passages: Annotated[
        int | None, "Passages a question, cut or filled in; without it 10, or as many as a file has"
    ] = None
    mode: Annotated[
        str, "Scheduler modes, with commas between: sync, request (asynchronous by request), layer (by layer)"
    ] = "sync,request,layer"
    baselines: Annotated[
        str,
        "Beside the modes, with commas between: full (full prefill), prefix (automatic prefix caching, as vLLM's and "
        "SGLang's), reordered (prefix caching, passages in the order of which it finds most: ContextPilot, CacheWeaver)"
        ". Default: none",
    ] = "none"
    rate: Annotated[float | None, "Questions a second, at random moments; without it, all arrive at once"] = None
    start: Annotated[
        str, "Where cached blocks are at first: cold (disk), warm (memory), hot (pages), empty (encoded when missed)"
    ] = "cold"
    select: Annotated[str, f"Which cached tokens are recomputed: {SELECTORS}. Default: none"] = "none"
    ratio: Annotated[float | None, "With --select: recompute this share of the tokens of all passages"] = 0.15
    engine: Annotated[str, "paged, contiguous, or auto: paged on a GPU wherever model and method allow"] = "auto"
    batch: Annotated[int, "Questions computed together, at most"] = 8
    loaders: Annotated[int, "Threads that load blocks"] = 2
    max_new_tokens: Annotated[int, "Most tokens of an answer"] = 8
    device: DeviceName = "cpu"
    dtype: Annotated[
        str | None, "float32, bfloat16, float16 or float8-products; without it, float32 on cpu, else the checkpoint's"
    ] = None
    layout: LayoutName = None
    seed: Annotated[int, "Seed of the draw of samples and of the moments of arrival"] = 0

    def __post_init__(self) -> None:
        check_numbers(vars(self))
        check_schedulers(self.modes)
        check_baselines(self.without_reuse)
        check_load(self.batch, self.loaders, self.max_new_tokens, self.start, self.rate)

    @property
    def modes(self) -> list[str]:
        """The scheduler modes by name, each once."""
        return list(dict.fromkeys(name.strip() for name in self.mode.split(",")))

    @property
    def without_reuse(self) -> list[str]:
        """The baselines by name, each once."""
        return [] if self.baselines == "none" else list(dict.fromkeys(map(str.strip, self.baselines.split(","))))


def check_baselines(names: Sequence[str]) -> None:
    """Raise BadInput for a name that is no baseline's."""
    if odd := [name for name in names if name not in BASELINES]:
        raise not_allowed("baseline", odd[0], [*BASELINES])


def check_load(batch: int, loaders: int, max_new_tokens: int, start: str, rate: float | None) -> None:
    """Raise BadInput for the first of these that cannot be served."""
    for name, value in (("batch", batch), ("loaders", loaders), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            raise BadInput(f"{name} is {value!r}: a whole number of at least 1 is needed")
    if start not in STARTS:
        raise not_allowed("start", start, STARTS)
    if rate is not None and not (isfinite(rate) and rate > 0):
        raise BadInput(f"rate is {rate!r}: a positive number of questions a second is needed")
