"""What the blocks of a folder have in common: model, dtype, preparation."""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from workbench.core import renamed
from workbench.core.errors import BadInput
from workbench.core.files import sync, write_text, writing
from workbench.store.keys import FORMAT_VERSION

log = logging.getLogger(__name__)
MANIFEST, CHECKSUM = "manifest.json", "checksum"


class Damaged(ValueError):
    """A manifest that is no JSON object, or whose checksum is wrong."""


def opened(folder: Path, kind: Mapping[str, Any] | None, new: bool, durable: bool) -> dict[str, Any]:
    """Return the kind of a folder, which must be `kind`; with `new`, make the folder where it is not there.

    A damaged manifest is written anew where the kind is given: blocks say themselves what they are of.
    Raises BadInput.
    """
    if new and not (folder / MANIFEST).is_file():
        _begin(folder, kind or {}, durable)
    try:
        there = read(folder)
    except Damaged as problem:
        if kind is None:
            raise BadInput(f"{folder / MANIFEST} is corrupt: {problem}; what names the model writes it anew") from None
        log.warning("damaged: %s: %s; it is written anew", folder / MANIFEST, problem)
        there = {"format": FORMAT_VERSION, **kind}
        try:
            _write(folder, there, durable)
        except BadInput as refused:
            log.warning("%s", refused)
    wanted = there if kind is None else {"format": FORMAT_VERSION, **kind}
    for name in {**there, **wanted}:
        has, needed = (renamed.spec(x) if isinstance(x, str) else x for x in (there.get(name), wanted.get(name)))
        if has != needed:
            raise BadInput(f"{folder} holds blocks of another {name}: {_short(has)}, and not {_short(needed)}")
    return there


def read(folder: Path) -> dict[str, Any]:
    """Return what the manifest says. Raises BadInput where there is none, and Damaged."""
    try:
        there = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder} is no folder of cached blocks: it has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise Damaged(str(problem)) from None
    if not isinstance(there, dict):
        raise Damaged("it is no JSON object")
    if there.pop(CHECKSUM, None) not in (None, _checksum(there)):
        raise Damaged("its checksum is wrong")
    return there


def _begin(folder: Path, kind: Mapping[str, Any], durable: bool) -> None:
    if folder.exists() and (not folder.is_dir() or not all(map(_is_leftover, folder.iterdir()))):
        raise BadInput(f"{folder} holds something else: a new or empty folder is needed for cached blocks")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if durable:
            sync(folder.parent)
    _write(folder, {"format": FORMAT_VERSION, **kind}, durable)


def _is_leftover(path: Path) -> bool:
    """Return whether a process has begun to write a manifest, and perhaps been killed over it."""
    return path.name.startswith(f".{MANIFEST}.")


def _write(folder: Path, kind: Mapping[str, Any], durable: bool) -> None:
    with writing(folder / MANIFEST):
        write_text(folder / MANIFEST, json.dumps({**kind, CHECKSUM: _checksum(kind)}, indent=1), durable)


def _checksum(kind: Mapping[str, Any]) -> int:
    return crc32(json.dumps(kind, sort_keys=True).encode())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 and not re.fullmatch(r"[0-9a-f]{32,}", text) else f"{text[:16]}…"
