"""Names of models, and the folders that they stand for: no heavy import, so that a wrong name is told at once."""

from pathlib import Path

from workbench.core.errors import BadInput, meant, shown
from workbench.core.utils.files import is_dir
from workbench.data import assets
from workbench.models import pretrained


def names() -> list[str]:
    """Return the names of the models that are shipped or fetched."""
    return [*assets.models(), *pretrained.names()]


def folder(name_or_path: str | Path) -> Path:
    """Return the folder of a path or of a model's name.

    The model is shipped, fetched, or an `owner/name` in the local Hugging Face cache.
    """
    if not isinstance(name_or_path, str | Path):
        raise BadInput(f"model is {shown(name_or_path)}: a name or a folder is needed")
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
        f"unknown model {shown(name)}: allowed are a checkpoint folder, a shipped "
        f"model ({', '.join(shipped) or 'none'}), one that is fetched ({', '.join(fetched)}) or an owner/name that is "
        f"already in the local Hugging Face cache{meant(name, shipped + fetched)}"
    )


def _cached(name: str) -> Path | None:
    """Return the folder of an `owner/name` in the local Hugging Face cache; None without one."""
    from huggingface_hub import snapshot_download  # takes its time
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError, ValueError):
        return None
