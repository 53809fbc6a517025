"""Options of `workbench prepare` and `workbench store`, without heavy imports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from workbench.methods.method_fields import PREPARATIONS, DataName, DeviceName, LayoutName, ModelName


@dataclass(frozen=True)
class PreparationFields:
    """Which passages are prepared, how, and where they are kept; `shard` is the number of passages in a file."""

    model: ModelName
    out: Annotated[Path | str, "Folder or URL for the cached passages; run again to go on after an interruption"]
    data: DataName = "lab"
    prepare: Annotated[str, f"{PREPARATIONS}; options in brackets"] = "with_neighbours"
    samples: Annotated[int | None, "Of lab: how many questions to take the passages of"] = None
    seed: Annotated[int, "Of lab: seed of the draw"] = 0
    passages: Annotated[int | None, "Of lab: passages a question"] = None
    device: DeviceName = "cpu"
    dtype: Annotated[str | None, "float32, bfloat16 or float16"] = None
    workers: Annotated[int, "Processes; with --device cuda, dealt out over the GPUs"] = 1
    shard: int = 64
    layout: LayoutName = None
    cluster: Annotated[
        str | None, "Address of a Dask scheduler, or `local`: one of --workers processes is begun here"
    ] = None


@dataclass(frozen=True)
class LookupFields:
    """Which blocks a trial would look up in the folder or at the URL `folder`."""

    folder: str | Path
    model: ModelName
    data: DataName = "lab"
    prepare: Annotated[str | None, "Preparation; without it, that of the folder"] = None
    samples: Annotated[int, "Questions, at most"] = 200
    seed: Annotated[int, "Of lab: seed of the draw"] = 0
    passages: Annotated[int | None, "Passages a question"] = None
    device: DeviceName = "cpu"
    dtype: Annotated[str | None, "float32, bfloat16 or float16"] = None
    layout: LayoutName = None
