"""Open stores by location: a folder, or a URL that fsspec supports."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.utils.files import is_url, write_text
from workbench.store.files.manifest import MANIFEST
from workbench.store.folder import FolderStore
from workbench.store.remote import RemoteStore, file_system

Where = str | Path  # a folder or a URL


def place_of(text: str) -> Where:
    """Parse a location: URLs stay text, anything else becomes a Path."""
    return text if is_url(text) else Path(text)


def opened(place: Where, kind: Mapping[str, Any] | None = None, new: bool = False) -> FolderStore | RemoteStore:
    """Open the store at a place. Raises BadInput, as `FolderStore` and `RemoteStore` do."""
    return RemoteStore(str(place), kind, new) if is_url(place) else FolderStore(place, kind, new)


def preparation_of(place: Where) -> str | None:
    """Return the preprocessing spec of the blocks at a place; None if there is no store."""
    return opened(place).kind.get("preparation") if is_begun(place) else None


def join_place(place: Where, name: str) -> Where:
    """Join a place and a relative name."""
    return f"{str(place).rstrip('/')}/{name}" if is_url(place) else Path(place) / name


def is_begun(place: Where) -> bool:
    """Return whether a place contains a store."""
    fs, root = _at(place)
    with suppress(OSError):
        return bool(fs.isfile(f"{root}/{MANIFEST}"))
    return False


def _at(place: Where) -> tuple[Any, str]:
    """Return the fsspec file system of a URL or path, and the path in it."""
    if is_url(place):
        return file_system(str(place))
    from fsspec.implementations.local import LocalFileSystem

    return LocalFileSystem(), str(place)


def note(place: Where, name: str, text: str) -> None:
    """Write a text file `name` next to the blocks. Raises BadInput if it cannot be written."""
    if not is_url(place):
        write_text(Path(place) / name, text, durable=True)
        return
    fs, root = file_system(str(place))
    try:
        fs.pipe_file(f"{root}/{name}", text.encode())
    except OSError as problem:
        raise BadInput(f"{place} cannot be written: {problem}") from None


def read_note(place: Where, name: str) -> str | None:
    """Return the content of a text file next to the blocks; None if it cannot be read."""
    fs, root = _at(place)
    try:
        return bytes(fs.cat_file(f"{root}/{name}")).decode(errors="replace")
    except (OSError, ValueError):
        return None


def forget(place: Where, name: str) -> None:
    """Delete a file or folder next to the blocks, if it exists."""
    fs, root = _at(place)
    with suppress(OSError):
        fs.rm(f"{root}/{name}", recursive=True)
