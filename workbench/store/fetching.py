"""Look up blocks in a store, and encode the misses."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.errors import BadInput, format_value
from workbench.core.kv import KV
from workbench.core.utils import annotations
from workbench.core.utils.stages import stage
from workbench.engine.encoding import encode_many
from workbench.models.spec import attach
from workbench.store.keys import fingerprint, key_of


@runtime_checkable
class Store(Protocol):
    """Any object that stores read-only KV under content keys."""

    def get(self, key: str) -> KV | None:
        """Return the KV under `key`, or None."""

    def put(self, key: str, kv: KV) -> None:
        """Store `kv` under `key`."""


def checked(store: Any) -> Store:
    """Return `store`. Raises BadInput for an object without `get` and `put`, and for a class in place of a store."""
    if isinstance(store, type) or not isinstance(store, Store):
        raise BadInput(
            f"store is {format_value(store)}: a store is needed, as MemoryStore(2**30) or FolderStore(a folder)"
        )
    return store


@annotations.checked
def fetch(
    model: PreTrainedModel, blocks: Sequence[Block], store: Store, after: Sequence[Sequence[Block]] = ()
) -> list[KV]:
    """Return the KV of every block: hits from `store`, misses encoded in one packed pass and stored.

    `after[i]` are the blocks before block i that it attends to. A block that is requested twice is encoded once.
    """
    checked(store)
    before = list(after) or [()] * len(blocks)
    if len(before) != len(blocks):
        raise BadInput(f"`after` has {len(before)} entries for {len(blocks)} blocks: give one list of blocks for each")
    attach(model)  # may raise: before any look-up
    model_key, dtype = fingerprint(model), model.dtype
    keys = [key_of(model_key, dtype, block, past) for block, past in zip(blocks, before, strict=True)]

    def encoded(missing: list[int]) -> list[KV]:
        if missing:
            stage(f"encoding {len(missing)} block{'s' * (len(missing) > 1)}")
        return encode_many(model, [blocks[i] for i in missing], [before[i] for i in missing])

    return collect(store, keys, encoded)


def collect(store: Store, keys: Sequence[str], make: Callable[[list[int]], Sequence[KV]]) -> list[KV]:
    """Return the KV under every key: hits from `store`, misses computed by `make` and stored.

    `make` receives the indices of missing keys, each key once, and returns the KV of each.
    """
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    kvs = {key: kv for key in first if (kv := store.get(key)) is not None}
    missing = [i for key, i in sorted(first.items(), key=lambda item: item[1]) if key not in kvs]
    for i, kv in zip(missing, make(missing), strict=True):
        kvs[keys[i]] = kv.lock()
        store.put(keys[i], kv)
    for i, key in enumerate(keys):
        if first[key] != i:
            store.get(key)  # repeated look-ups are counted as hits
    return [kvs[key] for key in keys]
