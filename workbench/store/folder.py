"""Cached blocks in a folder, for as long as the folder lasts.

<folder>/manifest.json      of which model, dtype and preparation the blocks are; a folder holds blocks of one kind only
         *.safetensors      each the keys and values of some blocks; whole or not there
"""

import json
import re
from collections.abc import Mapping
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from workbench.core import renamed
from workbench.core.errors import BadInput
from workbench.core.files import write_atomically, write_text
from workbench.core.kv import KV
from workbench.store.keys import FORMAT_VERSION

MANIFEST = "manifest.json"


class FolderStore:
    """A store on disk; what it hands out is in memory (CPU) and read-only.

    `kind` says what the blocks are of: any JSON object, such as {"model": fingerprint, "preparation": "after_system"};
    it must be that of the folder. Without `kind`, any folder will do. With `new`, a folder that is not there is made.
    Raises BadInput for a folder of another kind, naming what differs, for one that is none, and for a broken file.
    """

    def __init__(self, folder: str | Path, kind: Mapping[str, Any] | None = None, new: bool = False):
        self.folder = Path(folder)
        if new and not (self.folder / MANIFEST).is_file():
            _begin(self.folder, kind or {})
        self.kind = _checked(self.folder, kind)
        self._files: dict[str, Path] = {}
        self._starts: dict[str, int] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            self._register(path)

    def get(self, key: str) -> KV | None:
        """The KV under `key`, read from disk, or None."""
        if (path := self._files.get(key)) is None:
            return None
        with _opened(path) as shard:
            layers = range(int(shard.metadata()["layers"]))
            keys, values = ([shard.get_tensor(f"{key}.{part}.{layer}") for layer in layers] for part in "kv")
        return KV(keys, values, self._starts[key]).lock()

    def put(self, key: str, kv: KV) -> None:
        """Keep `kv` under `key`, in a file of its own."""
        self.write(key, {key: kv})

    def write(self, name: str, blocks: Mapping[str, KV]) -> None:
        """Keep many blocks in one file `<name>.safetensors`, written whole or not at all."""
        tensors: dict[str, Tensor] = {}
        starts, layers = {}, 0
        for key, kv in blocks.items():
            starts[key], layers = kv.start, len(kv.keys)
            for part, run in (("k", kv.keys), ("v", kv.values)):
                tensors |= {f"{key}.{part}.{i}": x.detach().cpu().contiguous() for i, x in enumerate(run)}
        path = self.folder / f"{name}.safetensors"
        metadata = {"starts": json.dumps(starts), "layers": str(layers)}
        write_atomically(path, lambda partial: save_file(tensors, partial, metadata))
        self._files |= dict.fromkeys(starts, path)
        self._starts |= starts

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(path.stat().st_size for path in set(self._files.values()))

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def _register(self, path: Path) -> None:
        with _opened(path) as shard:
            try:
                starts = json.loads((shard.metadata() or {})["starts"])
            except (KeyError, JSONDecodeError):
                raise BadInput(f"{path} holds no cached blocks") from None
        self._files |= dict.fromkeys(starts, path)
        self._starts |= starts


def _begin(folder: Path, kind: Mapping[str, Any]) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} holds something else: a new or empty folder is needed for cached blocks")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / MANIFEST, json.dumps({"format": FORMAT_VERSION, **kind}, indent=1))


def _checked(folder: Path, kind: Mapping[str, Any] | None) -> dict[str, Any]:
    """The folder's manifest."""
    path = folder / MANIFEST
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder} is no folder of cached blocks: it has no {MANIFEST}") from None
    except (OSError, ValueError) as problem:
        raise BadInput(f"{path} is corrupt: {problem}") from None
    wanted = there if kind is None else {"format": FORMAT_VERSION, **kind}
    for name in {**there, **wanted}:
        has, needed = (renamed.spec(x) if isinstance(x, str) else x for x in (there.get(name), wanted.get(name)))
        if has != needed:
            raise BadInput(f"{folder} holds blocks of another {name}: {_short(has)}, and not {_short(needed)}")
    return there


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as problem:
        raise BadInput(f"{path} is corrupt or not readable: {problem}") from None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 and not re.fullmatch(r"[0-9a-f]{32,}", text) else f"{text[:16]}…"
