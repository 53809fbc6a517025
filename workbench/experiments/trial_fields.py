"""What a trial is asked for; nothing heavy is imported, so that `workbench trial --help` is there at once."""

from dataclasses import dataclass
from typing import Annotated

from workbench.methods.method_fields import DataName, DeviceName, LayoutName, MethodFields, ModelName


@dataclass(frozen=True)
class TrialFields(MethodFields):
    """A method on a model and questions; `store_gib` is the budget of the store of cached blocks."""

    model: ModelName
    data: DataName = "lab"
    samples: Annotated[int, "Questions to answer, at most"] = 200
    seed: Annotated[int, "Seed of the draw of samples and of the bootstrap"] = 0
    passages: Annotated[
        int | None, "Passages a question, cut or filled in; without it 10, or as many as a file has"
    ] = None
    device: DeviceName = "cpu"
    dtype: Annotated[str | None, "float32, bfloat16 or float16; without it, float32 on cpu, else the checkpoint's"] = (
        None
    )
    batch: Annotated[int, "Questions answered together, at most"] = 16
    max_new_tokens: Annotated[int, "Most tokens of an answer"] = 32
    timed: Annotated[int, "Requests whose time to first token is measured, one at a time"] = 20
    store_gib: float = 2.0
    store: Annotated[
        str | None, "Take cached passages from this folder or URL (`workbench store encode`), and keep what it lacks"
    ] = None
    faithfulness: Annotated[
        str | None, "Judge of the share of claims that passages support: lab (its own questions) or a model"
    ] = None
    fidelity: Annotated[bool, "Compare the predictions of every answer with those of full attention"] = True
    layout: LayoutName = None
    receipt: Annotated[bool, "Add to the record what every request reused, missed and took (`workbench trace`)"] = False
    engine: Annotated[
        str, "paged (pages, captured steps), contiguous, or auto: paged on a GPU wherever model and method allow"
    ] = "auto"
