"""Verify a whole store, and describe its content."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils.files import sync, write_atomically, writing
from workbench.store.files import block_file, manifest, quarantine
from workbench.store.files.block_file import SUFFIX, Contents, Unusable
from workbench.store.files.file_header import open_without_atime
from workbench.store.remote import RemoteStore, Unreachable

Progress = Callable[[int, int], None]  # (files read, total)


@dataclass(frozen=True)
class Finding:
    """A file, or a block of it, that cannot be served."""

    file: str
    block: str | None  #: key of the block; None: the whole file
    kind: str  #: "damaged", "gone" (missing), "foreign" (no block file) or "later" (of a later version)
    detail: str

    def __str__(self) -> str:
        return f"{self.file}{f', block {self.block}' if self.block else ''}: {self.kind}: {self.detail}"


@dataclass(frozen=True)
class Scrub:
    """Result of `verify`. Blocks and bytes include damaged ones.

    removed   files that were quarantined
    kept      number of intact blocks in these files, which were rewritten
    """

    folder: str
    files: int
    blocks: int
    bytes: int
    findings: tuple[Finding, ...]
    removed: tuple[str, ...]
    kept: int = 0

    @property
    def intact(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not any(finding.kind in ("damaged", "gone") for finding in self.findings)


def verify(folder: Path, repair: bool = False, progress: Progress | None = None) -> Scrub:
    """Verify every checksum of a folder; with `repair`, quarantine damaged files.

    A quarantined file is rewritten with its intact blocks; the others are encoded again on the next request, or by
    `workbench store encode`. Missing files that were not evicted are reported, as are files of later versions or other
    kinds, which are left unchanged. Raises BadInput for a folder that is no store.
    """
    findings, blocks, size = _check_manifest(folder), 0, 0
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    for done, path in enumerate(paths, 1):
        found, known = _check_file(path)
        findings += found
        if known is not None:
            blocks += len(known.starts)
            size += known.state[2]
        if progress:
            progress(done, len(paths))
    lost = sorted(manifest.files_of(folder) - {path.name for path in paths})
    findings += [Finding(name, None, "gone", "it was there when the folder was filled") for name in lost]
    damaged = {finding.file for finding in findings if finding.kind == "damaged"} - {manifest.MANIFEST}
    kept = _quarantine(folder, [finding for finding in findings if finding.file in damaged]) if repair else 0
    removed = tuple(sorted(damaged)) if repair else ()
    return Scrub(str(folder), len(paths), blocks, size, tuple(findings), removed, kept)


def describe(folder: Path) -> dict[str, Any]:
    """Describe the content of a folder, from its files' headers. Raises BadInput for a folder that is no store."""
    findings, files = _check_manifest(folder), []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            with open_without_atime(path) as opened:
                files.append(block_file.contents(opened))
        except (Unusable, FileNotFoundError) as problem:
            fault = problem if isinstance(problem, Unusable) else Unusable("it is not there")
            findings.append(Finding(path.name, None, fault.kind, fault.detail))
    identities = [identity for known in files for identity in known.identities.values()]
    tokens = [known.tensors[f"{key}.k.0"].shape[1] for known in files for key in known.starts]
    return {
        "folder": str(folder),
        "kind": {} if findings and findings[0].file == manifest.MANIFEST else manifest.read_kind(folder),
        "files": len(files),
        "blocks": len(tokens),
        "tokens": sum(tokens),
        "bytes": sum(known.state[2] for known in files),
        "models": sorted({identity.model for identity in identities}),
        "dtypes": sorted({str(place.dtype) for known in files for place in known.tensors.values()}),
        "made": [dict(each) for each in sorted({tuple(known.made.items()) for known in files if known.made})],
        "set_aside": [vars(finding) for finding in findings],
    }


def verify_remote(url: str, repair: bool = False, progress: Progress | None = None) -> Scrub:
    """Fetch every block of a remote store and verify its checksums; with `repair`, delete damaged blocks.

    Raises BadInput for a URL that is no store or cannot be reached.
    """
    store = RemoteStore(url)
    listed, findings = store.block_sizes(), list[Finding]()
    for done, key in enumerate(listed, 1):
        try:
            store.fetch_block(key)
        except Unusable as problem:
            findings.append(Finding(f"{key}{SUFFIX}", key, problem.kind, problem.detail))
        except (Unreachable, FileNotFoundError) as problem:
            raise BadInput(f"{url} cannot be verified: {problem}") from None
        if progress:
            progress(done, len(listed))
    damaged = tuple(finding.file for finding in findings if finding.kind == "damaged") if repair else ()
    for name in damaged:
        store.remove(name.removesuffix(SUFFIX), "it was damaged")
    lost = {key for _, keys in store.notes() for key in keys} - set(listed)
    findings += [Finding(f"{key}{SUFFIX}", key, "gone", "it was there when the store was filled") for key in lost]
    if repair and (lost or damaged):
        store.forget_written(lost | {name.removesuffix(SUFFIX) for name in damaged})
    return Scrub(url, len(listed), len(listed), sum(listed.values()), tuple(findings), damaged)


def describe_remote(url: str) -> dict[str, Any]:
    """Describe the content of a remote store, from its file names. Raises BadInput as `verify_remote` does."""
    store = RemoteStore(url)
    listed = store.block_sizes()
    counts = {"files": len(listed), "blocks": len(listed), "tokens": None, "bytes": sum(listed.values())}
    return {"folder": url, "kind": store.kind, **counts, "made": [], "set_aside": []}


def _check_manifest(folder: Path) -> list[Finding]:
    try:
        manifest.read_kind(folder)
    except manifest.Damaged as problem:
        return [Finding(manifest.MANIFEST, None, "damaged", f"{problem}; what names the model writes it anew")]
    return []


def _check_file(path: Path) -> tuple[list[Finding], Contents | None]:
    findings: list[Finding] = []
    known = None
    try:
        with open_without_atime(path) as opened:
            known = block_file.contents(opened)
            for key in known.blocks():
                try:
                    block_file.block(opened, key, known)
                except Unusable as problem:
                    findings.append(Finding(path.name, str(key), problem.kind, problem.detail))
    except FileNotFoundError:
        pass  # deleted after the folder was listed
    except Unusable as problem:
        findings.append(Finding(path.name, None, problem.kind, problem.detail))
    except OSError as problem:
        findings.append(Finding(path.name, None, "damaged", str(problem)))
    return findings, known


def _quarantine(folder: Path, findings: Iterable[Finding]) -> int:
    """Quarantine damaged files and rewrite them with their intact blocks; return the number of intact blocks."""
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        by_file.setdefault(finding.file, []).append(finding)
    if not by_file:
        return 0
    kept = 0
    try:
        with writing(folder):
            for name, found in by_file.items():
                quarantine.keep(folder / name, "; ".join(finding.detail for finding in found))
                kept += _rewrite_without(folder / name, {finding.block for finding in found})
            sync(folder)
    except BadInput as problem:
        raise BadInput(f"damaged files of {folder} cannot be set aside: {problem.__cause__ or problem}") from None
    return kept


def _rewrite_without(path: Path, damaged: Container[str | None]) -> int:
    """Rewrite a file without its damaged blocks, or delete it if none is intact; return how many are left."""
    blocks: dict[str, KV] = {}
    made: dict[str, str] = {}
    try:
        with open_without_atime(path) as opened:
            known = block_file.contents(opened)
            made = known.made
            blocks = {key: block_file.block(opened, key, known) for key in known.blocks() if str(key) not in damaged}
    except (Unusable, OSError):  # damaged header: the blocks cannot be identified
        blocks = {}
    if not blocks:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, lambda partial: block_file.save(partial, blocks, made), durable=True)
    return len(blocks)
