"""Options of `workbench prepare` and `workbench store`, without heavy imports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from workbench.methods.method_fields import PREPARATIONS, DataName, DeviceName, LayoutName, ModelName


@dataclass(frozen=True)
class PreparationFields:
    """Which passages are preprocessed, how, and where they are stored; `shard` is the number of passages per file."""

    model: ModelName
    out: Annotated[Path | str, "Folder or URL for the cached passages; rerun to resume after an interruption"]
    data: DataName = "lab"
    prepare: Annotated[str, f"{PREPARATIONS}; options in parentheses"] = "with_neighbours"
    samples: Annotated[int | None, "For lab: number of questions to take passages from"] = None
    seed: Annotated[int, "For lab: sampling seed"] = 0
    passages: Annotated[int | None, "For lab: passages per question"] = None
    device: DeviceName = "cpu"
    dtype: Annotated[str | None, "float32, bfloat16 or float16"] = None
    workers: Annotated[int, "Number of processes; with --device cuda, distributed over the GPUs"] = 1
    shard: int = 64
    layout: LayoutName = None
    cluster: Annotated[
        str | None, "Address of a Dask scheduler, or `local` to start one here with --workers processes"
    ] = None


@dataclass(frozen=True)
class LookupFields:
    """Which blocks a trial would look up in the folder or at the URL `folder`."""

    folder: str | Path
    model: ModelName
    data: DataName = "lab"
    prepare: Annotated[str | None, "Preprocessing. Default: that of the folder"] = None
    samples: Annotated[int, "Maximum number of questions"] = 200
    seed: Annotated[int, "For lab: sampling seed"] = 0
    passages: Annotated[int | None, "Passages per question"] = None
    device: DeviceName = "cpu"
    dtype: Annotated[str | None, "float32, bfloat16 or float16"] = None
    layout: LayoutName = None
