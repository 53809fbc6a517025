"""Pack a store folder into one tar archive, and unpack it; archives named .tar.zst are compressed with Zstandard."""

import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import zstandard

from workbench.core.errors import BadInput
from workbench.core.utils.files import folder_atomically, need_room, write_atomically, writing
from workbench.store.files import manifest, scrub
from workbench.store.files.block_file import SUFFIX
from workbench.store.files.file_header import NAME
from workbench.store.folder import FolderStore

ENDINGS = (".tar", ".tar.zst")
BESIDE = ("prepared.json", manifest.SUCCESS)  # files that `workbench prepare` writes next to the blocks
Progress = Callable[[int, int], None]  # (files, total)


@dataclass(frozen=True)
class ArchiveContent:
    """Content of an archive; `bytes` is the size of its block files."""

    archive: str
    folder: str
    files: int
    blocks: int
    bytes: int


def pack(folder: Path, archive: Path, progress: Progress | None = None) -> ArchiveContent:
    """Verify the checksums of a folder, and write all its blocks into an archive.

    Raises BadInput for a folder that is no store or has damaged blocks, and for an archive that cannot be written.
    """
    _check_name(archive)
    if archive.resolve().parent == folder.resolve():
        raise BadInput(f"{archive} lies in the folder that is exported: name a file elsewhere")
    found = scrub.verify(folder)
    if not found.intact:
        raise BadInput(f"{folder} is damaged: `workbench store repair` first; {found.findings[0]}")
    paths = [folder / manifest.MANIFEST, *(folder / name for name in BESIDE if (folder / name).is_file())]
    paths += sorted(folder.glob(f"*{SUFFIX}"))

    def write(partial: Path) -> None:
        with partial.open("wb") as opened, _compressed(opened, archive) as out, _tar(out, "w|") as tar:
            for done, path in enumerate(paths, 1):
                tar.add(path, path.name, recursive=False)
                if progress:
                    progress(done, len(paths))

    with writing(archive):
        write_atomically(archive, write, durable=True)
    return ArchiveContent(str(archive), str(folder), found.files, found.blocks, found.bytes)


def unpack(archive: Path, folder: Path) -> ArchiveContent:
    """Unpack an archive into a new folder, which becomes visible after every checksum has been verified.

    Raises BadInput for another kind of file, a damaged or incomplete archive, and a folder that is not empty.
    """
    _check_name(archive)
    if not archive.is_file():
        raise BadInput(f"{archive}: no such file")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is there: a new or empty folder is needed")
    need_room(folder, archive.stat().st_size)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_atomically(folder) as partial:
            _extract(archive, partial)
            found = scrub.verify(partial)
            if not found.intact:
                raise BadInput(f"{archive} is damaged: {found.findings[0]}")
            FolderStore(partial)
    return ArchiveContent(str(archive), str(folder), found.files, found.blocks, found.bytes)


def _extract(archive: Path, folder: Path) -> None:
    """Extract an archive into a folder; only regular files of a store, without subfolders, are accepted."""
    try:
        with archive.open("rb") as opened, _expanded(opened, archive) as data, _tar(data, "r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or not _is_ours(member.name):
                    raise BadInput(f"{archive} holds {member.name!r}, which is no file of cached blocks")
                if (folder / member.name).exists():
                    raise BadInput(f"{archive} holds {member.name!r} more than once")
                with (folder / member.name).open("xb") as out:
                    shutil.copyfileobj(content, out)
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError) as problem:
        raise BadInput(f"{archive} is no whole archive of cached blocks: {problem}") from None


def _tar(data: Any, mode: Literal["r|", "w|"]) -> tarfile.TarFile:
    return tarfile.open(fileobj=data, mode=mode, format=tarfile.PAX_FORMAT)


def _is_ours(name: str) -> bool:
    if name in (manifest.MANIFEST, *BESIDE):
        return True
    return name.endswith(SUFFIX) and NAME.fullmatch(name.removesuffix(SUFFIX)) is not None


def _check_name(archive: Path) -> None:
    if not archive.name.endswith(ENDINGS):
        raise BadInput(f"{archive}: an archive ends in {' or '.join(ENDINGS)}")


@contextmanager
def _compressed(opened: IO[bytes], archive: Path) -> Iterator[Any]:
    if archive.suffix != ".zst":
        yield opened
        return
    with zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(opened, closefd=False) as out:
        yield out


@contextmanager
def _expanded(opened: IO[bytes], archive: Path) -> Iterator[Any]:
    if archive.suffix != ".zst":
        yield opened
        return
    with zstandard.ZstdDecompressor().stream_reader(opened, closefd=False) as data:
        yield data
