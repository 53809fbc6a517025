"""Options of a trial. Has no slow imports, so that `workbench trial --help` is fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from workbench import data
from workbench.core.errors import BadInput
from workbench.methods.method_fields import DataName, DeviceName, LayoutName, MethodFields, ModelName, check_choices
from workbench.models import model_card
from workbench.models.model_names import AMPLE, check_length, folder

LEAST = {"samples": 1, "batch": 1, "max_new_tokens": 1, "timed": 1, "seed": 0}


@dataclass(frozen=True, repr=False)
class TrialFields(MethodFields):
    """A method on a model and questions; `store_gib` is the size of the in-memory store of cached blocks."""

    model: ModelName
    data: DataName = "lab"
    samples: Annotated[int, "Maximum number of questions"] = 100
    seed: Annotated[int, "Seed for sampling questions and for the bootstrap"] = 0
    passages: Annotated[
        int | None, "Passages per question, truncated or filled up. Default: 10, or as many as a file has"
    ] = None
    device: DeviceName = "cpu"
    dtype: Annotated[
        str | None, "float32, bfloat16, float16 or float8-products. Default: float32 on cpu, else the checkpoint's"
    ] = None
    batch: Annotated[int, "Maximum batch size"] = 16
    max_new_tokens: Annotated[int, "Maximum tokens per answer"] = 32
    timed: Annotated[int, "Requests timed for time to first token, one at a time"] = 20
    store_gib: float = 2.0
    store: Annotated[
        str | None, "Read cached passages from this folder or URL (`workbench store encode`) and add missing ones"
    ] = None
    faithfulness: Annotated[
        str | None, "Score the share of claims supported by the passages; judge: lab (for its own questions) or a model"
    ] = None
    fidelity: Annotated[bool, "Compare the predictions for every answer with full attention's"] = True
    layout: LayoutName = None
    receipt: Annotated[bool, "Record what each request reused and missed, and its timing (see `workbench trace`)"] = (
        False
    )
    engine: Annotated[
        str, "paged (paged KV, CUDA graphs), contiguous, or auto: paged on a GPU if model and method allow it"
    ] = "auto"


def check_fields(values: Mapping[str, Any]) -> None:
    """Raise BadInput for the first field that can be rejected before slow imports."""
    check_numbers(values)
    check_choices(values)
    if (store := values.get("store")) is not None and (values.get("mode") != "block" or values.get("prepared")):
        raise BadInput(f"store {store!r} is for mode block, and replaces prepared: give one of them")


def check_sizes(values: Mapping[str, Any]) -> None:
    """Raise BadInput for more passages than generated data have, and for more new tokens than a model's context."""
    if (passages := values.get("passages")) is not None and data.is_generated(values["data"]):
        data.load(values["data"], 1, values.get("seed", 0), passages)
    if (count := values.get("max_new_tokens", 0)) > AMPLE:
        check_length(count, model_card.describe(folder(values["model"]))["context"])


def check_numbers(values: Mapping[str, Any]) -> None:
    """Raise BadInput for the first number of a trial that is too small; missing fields are skipped."""
    for name, least in LEAST.items():
        if name in values and not _fits(values[name], least):
            raise BadInput(f"{name} is {values[name]!r}: a whole number of at least {least} is needed")
    if (passages := values.get("passages")) is not None and not _fits(passages, 1):
        raise BadInput(f"passages is {passages!r}: a whole number of at least 1 is needed, or none")
    gib = values.get("store_gib", 1)
    if not isinstance(gib, int | float) or not 0 < gib < float("inf"):
        raise BadInput(f"store_gib is {gib!r}: a positive number is needed")


def _fits(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
