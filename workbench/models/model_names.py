"""Validate names of models, dtypes and devices without heavy imports, and find model folders."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.errors import BadInput, did_you_mean, format_value, not_allowed
from workbench.core.utils.files import is_dir
from workbench.data import assets
from workbench.models import pretrained

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", "float8-products")
AMPLE = 4096  # max_new_tokens that is accepted for any model
MOST_NEW_TOKENS = 1 << 20  # limit for a model of unknown context


def names() -> list[str]:
    """Return the names of shipped and fetched models."""
    return [*assets.models(), *pretrained.names()]


def folder(name_or_path: str | Path) -> Path:
    """Return the folder of a model by path or name. Raises BadInput if there is none.

    A name is that of a shipped or fetched model, or an `owner/name` in the local Hugging Face cache.
    """
    if not isinstance(name_or_path, str | Path):
        raise BadInput(f"model is {format_value(name_or_path)}: a name or a folder is needed")
    if is_dir(path := Path(name_or_path)):
        return path
    name = str(name_or_path)
    if name in assets.models():
        return assets.model_path(name)
    if name in pretrained.CATALOGUE:
        return pretrained.folder(name)
    if "/" in name and (found := _cached(name)) is not None:
        return found
    shipped, fetched = assets.models(), list(pretrained.CATALOGUE)
    raise BadInput(
        f"unknown model {format_value(name)}: allowed are a checkpoint folder, a shipped "
        f"model ({', '.join(shipped) or 'none'}), one that is fetched ({', '.join(fetched)}) or an owner/name that is "
        f"already in the local Hugging Face cache{did_you_mean(name, shipped + fetched)}"
    )


def check_judge(name: str) -> None:
    """Raise BadInput for a judge (`metrics.faithfulness`) that is neither "lab" nor a model."""
    try:
        if name != "lab":
            folder(name)
    except BadInput as problem:
        raise BadInput(f"unknown judge {name!r}: allowed are lab or a model; {problem}") from None


def check_dtype(name: str) -> None:
    """Raise BadInput for a dtype that `models.load` does not accept."""
    if name not in DTYPES:
        raise not_allowed("dtype", name, DTYPES)


def check_device(name: str) -> None:
    """Raise BadInput for an invalid device name; whether this machine has the device is not checked."""
    if not re.fullmatch(r"(cpu|cuda)(:\d{1,3})?", name):
        raise BadInput(f"unknown device {format_value(name)}: allowed are cpu, cuda and cuda:N")


def device_of(name: "str | torch.device") -> "torch.device":
    """Return the device with this name. Raises BadInput if it is unknown or missing on this machine."""
    name = str(name)
    check_device(name)
    import torch

    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            f"device {name!r} is not there: this machine has {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    return device


def _cached(name: str) -> Path | None:
    """Return the folder of an `owner/name` in the local Hugging Face cache; None if it is missing."""
    from huggingface_hub import snapshot_download  # slow to import
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError, ValueError):
        return None


def check_length(count: int, context: int | None) -> None:
    """Raise BadInput if `count` exceeds both `context` and AMPLE; below AMPLE, answers just end at the context."""
    if count > max(AMPLE, most := context or MOST_NEW_TOKENS):
        whose = "the model's context, prompt included" if context else "the most where the model's context is unknown"
        raise BadInput(f"max_new_tokens is {format_value(count)}: {most:,} is {whose}")
