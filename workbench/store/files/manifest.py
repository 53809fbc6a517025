"""Manifests: the properties that all blocks of a folder share (model, dtype, preprocessing)."""

import json
import logging
import re
from collections.abc import Mapping, Set
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from workbench.core.errors import BadInput
from workbench.core.utils.files import check_place, sync, write_new, write_text, writing
from workbench.core.utils.versions import versions
from workbench.store.files import MANIFEST as MANIFEST
from workbench.store.files.block_file import SUFFIX
from workbench.store.files.file_header import Contents, Unusable, contents, open_without_atime
from workbench.store.keys import FORMAT_VERSION

log = logging.getLogger(__name__)
SAMPLED = 64  # maximum number of files whose headers are checked if the manifest is damaged
CHECKSUM, MADE, TOKENIZER = "checksum", "made", "tokenizer"
MODEL_NAME = "model_name"  # for messages; missing in manifests of earlier versions, and never compared
SUCCESS = "_SUCCESS"  # marks a completely filled folder; lists its block files, one per line


class Damaged(ValueError):
    """Raised for a manifest that is not a JSON object, or whose checksum is wrong."""


class MissingManifest(Damaged):
    """Raised for a manifest that is missing or empty; the identities in the block files are then checked."""


def opened(folder: Path, kind: Mapping[str, Any] | None, new: bool, durable: bool) -> dict[str, Any]:
    """Return the kind of a folder, which must equal `kind` unless it is None; with `new`, create a missing folder.

    A damaged manifest is rewritten if `kind` is given and the blocks' identities agree with it. Raises BadInput for a
    missing folder, another kind, and a manifest that cannot be restored.
    """
    try:
        if new and not (folder / MANIFEST).is_file():
            _create(folder, kind or {}, durable)
        stored = read_kind(folder)
    except PermissionError as problem:
        raise BadInput(f"{folder} must not be read: {problem.strerror}") from None
    except Damaged as problem:
        if kind is None:
            raise BadInput(f"{folder / MANIFEST} is corrupt: {problem}; what names the model writes it anew") from None
        _check_blocks(folder, kind, problem)
        log.warning("damaged: %s: %s; it is rewritten", folder / MANIFEST, problem)
        stored = {"format": FORMAT_VERSION, **kind}
        try:
            with writing(folder / MANIFEST):
                write_text(folder / MANIFEST, text(stored), durable)
        except BadInput as refused:
            log.warning("%s", refused)
    return check_kind(folder, stored, kind)


def _check_blocks(folder: Path, kind: Mapping[str, Any], problem: Damaged) -> None:
    """Raise BadInput if the folder has blocks of another model or dtype than `kind`, from the files' headers."""
    checked = 0
    for path in islice(sorted(folder.glob(f"*{SUFFIX}")), SAMPLED):
        with suppress(Unusable, OSError), open_without_atime(path) as opened_file:
            check_identities(folder, header := contents(opened_file), kind, problem)
            checked += len(header.identities)
    if isinstance(problem, MissingManifest) and not checked:
        raise BadInput(f"{folder} holds something else: a new or empty folder is needed for cached blocks")


def check_identities(place: Path | str, header: Contents, kind: Mapping[str, Any], problem: Damaged) -> None:
    """Raise BadInput if a file next to a corrupt manifest has blocks of another model or dtype than `kind`."""
    for identity in header.identities.values():
        for name in ("model", "dtype"):
            has, needed = getattr(identity, name), kind.get(name)
            if needed is not None and has != needed:
                raise BadInput(
                    f"{place}/{MANIFEST} is corrupt ({problem}), and its blocks are of another {name}: {_short(has)}, "
                    f"and not {_short(needed)}; nothing is changed"
                )


def check_kind(place: Path | str, stored: dict[str, Any], kind: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the kind of a manifest, which must equal `kind` unless it is None. Raises BadInput, naming what differs.

    Manifests of earlier versions do not name the tokenizer, which is then not compared.
    """
    expected = stored if kind is None else {"format": FORMAT_VERSION, **kind}
    other_dtype = "dtype" in stored and "dtype" in expected and stored["dtype"] != expected["dtype"]
    for name in {**stored, **expected}:
        if name == "model" and other_dtype:
            continue  # fingerprints cover the dtype
        if name in (MADE, MODEL_NAME) or (name == TOKENIZER and (name not in stored or name not in expected)):
            continue
        has, needed = stored.get(name), expected.get(name)
        if has != needed:
            one, other = (describe(name, each) for each in (stored, expected))
            raise BadInput(f"{place} holds blocks of another {name}: {one}, and not {other}")
    return {name: value for name, value in stored.items() if name != MADE}


def describe(name: str, kind: Mapping[str, Any]) -> str:
    """Return a property of a kind as text: the model by its name if that is known, float32 without "torch."."""
    text = _short(kind.get(name))
    called = kind.get(MODEL_NAME) if name == "model" else None
    return f"{called} ({text})" if isinstance(called, str) and called else text


def read_kind(folder: Path) -> dict[str, Any]:
    """Return the kind in a folder's manifest. Raises Damaged, and BadInput if the folder is no store."""
    try:
        return parsed((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder} is no folder of cached blocks: it has no {MANIFEST}") from None
    except PermissionError as problem:
        raise BadInput(f"{folder / MANIFEST} must not be read: {problem.strerror}") from None
    except OSError as problem:
        raise Damaged(str(problem)) from None


def parsed(data: bytes) -> dict[str, Any]:
    """Parse a manifest and return its kind. Raises Damaged."""
    try:
        entries = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise Damaged(str(problem)) from None
    if not isinstance(entries, dict):
        raise Damaged("it is no JSON object")
    if entries.pop(CHECKSUM, None) not in (None, checksum(entries)):
        raise Damaged("its checksum is wrong")
    if "format" not in entries:
        raise MissingManifest("it names no format")
    return entries


def files_of(folder: Path) -> set[str]:
    """Return the names of the block files that a finished `workbench prepare` wrote; an empty set otherwise."""
    try:
        return set((folder / SUCCESS).read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return set()


def forget_files(folder: Path, names: Set[str]) -> None:
    """Remove deleted files from the list in `_SUCCESS`, so that `verify` does not report them as missing."""
    if names & (known := files_of(folder)):
        write_text(folder / SUCCESS, "".join(f"{name}\n" for name in sorted(known - names)))


def text(kind: Mapping[str, Any]) -> str:
    """Return the text of a manifest for blocks of `kind`, with the package versions of this process."""
    entries = {"format": FORMAT_VERSION, **kind, MADE: versions()}
    return json.dumps({**entries, CHECKSUM: checksum(entries)}, indent=1)


def _create(folder: Path, kind: Mapping[str, Any], durable: bool) -> None:
    check_place("folder", folder)
    if folder.exists() and (not folder.is_dir() or not all(map(_is_leftover, folder.iterdir()))):
        if (folder / MANIFEST).is_file():
            return  # another process has just created the store
        _check_blocks(folder, kind, MissingManifest("it is gone"))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if durable:
            sync(folder.parent)
    with writing(folder / MANIFEST):
        write_new(folder / MANIFEST, text(kind), durable)


def _is_leftover(path: Path) -> bool:
    """Return whether a file is a partial manifest, perhaps of a killed process."""
    return path.name.startswith(f".{MANIFEST}.")


def checksum(kind: Mapping[str, Any]) -> int:
    """Return the CRC-32 of a JSON object, independent of the order of its keys."""
    return crc32(json.dumps(kind, sort_keys=True).encode())


def _short(value: Any) -> str:
    text = value.removeprefix("torch.") if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 and not re.fullmatch(r"[0-9a-f]{32,}", text) else f"{text[:16]}…"
