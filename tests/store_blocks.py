"""Blocks, and files of them that no store has written, that tests of stores share."""

import json
from pathlib import Path

import torch

from tests.random_models import block_of
from workbench.core.kv import KV
from workbench.store import FolderStore, key_of
from workbench.store.files import block_file, file_header


def kv_of(seed: int, tokens: int = 3, layers: int = 2) -> KV:
    generator = torch.Generator().manual_seed(seed)
    run = [torch.randn(1, tokens, 2, generator=generator) for _ in range(2 * layers)]
    return KV(run[:layers], run[layers:], seed)


def same(one: KV | None, other: KV) -> bool:
    pairs = zip(one.tensors(), other.tensors(), strict=True) if one else ()
    equal = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    return one is not None and one.start == other.start and equal


def key_for(seed: int, tokens: int = 3) -> str:
    """A key of a block that begins at `seed`, as `kv_of(seed)` does."""
    return key_of("model", torch.float32, block_of(tokens, seed), [block_of(seed, 99)] if seed else [])


def one_block(folder: Path, kind: dict[str, str] | None = None) -> tuple[FolderStore, Path]:
    """Make a new folder with one block, `kv_of(1)` under its key; return the store and the file of the block."""
    store = FolderStore(folder, kind, new=True)
    store.put(key_for(1), kv_of(1))
    return store, folder / f"{key_for(1)}.safetensors"


def folder_with(folder: Path, blocks: dict[str, KV]) -> Path:
    """A folder with a file of blocks as they are given, whatever is wrong with them."""
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"format": 2, "model": "m"}, indent=1))
    block_file.save(folder / "shard.safetensors", blocks)
    return folder


def rewritten(path: Path, change) -> None:
    """Write a file with other metadata, whose own checksum is right."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    entries = {name: text for name, text in header["__metadata__"].items() if name != "header"}
    change(entries)
    header["__metadata__"] = entries | {"header": str(file_header.of_entries(entries))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
