"""Stores of cached blocks: content keys, memory with a budget, folders, remotes and tiers.

Names are imported on first use: `store.events` and other code without tensors must not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.core.errors import did_you_mean

if TYPE_CHECKING:
    from workbench.store.fetching import Store, collect, fetch
    from workbench.store.folder import FolderStore
    from workbench.store.keys import FORMAT_VERSION, Identity, Key, fingerprint, key_of
    from workbench.store.memory import UNLIMITED, MemoryStore
    from workbench.store.misses import Miss
    from workbench.store.remote import RemoteStore
    from workbench.store.stats import Stats
    from workbench.store.tiering.tier import HostTier, StoreTier
    from workbench.store.tiering.tiered_store import TieredStore
    from workbench.store.urls import opened

__all__ = ["FORMAT_VERSION", "FolderStore", "Identity", "Key", "MemoryStore", "Miss", "RemoteStore", "Stats", "Store"]
__all__ += ["UNLIMITED", "HostTier", "StoreTier", "TieredStore", "collect", "fetch", "fingerprint", "key_of", "opened"]

_NAMES = {  # module → names exported from it
    "fetching": "Store collect fetch",
    "folder": "FolderStore",
    "keys": "FORMAT_VERSION Identity Key fingerprint key_of",
    "memory": "UNLIMITED MemoryStore",
    "misses": "Miss",
    "remote": "RemoteStore",
    "stats": "Stats",
    "tiering.tier": "HostTier StoreTier",
    "tiering.tiered_store": "TieredStore",
    "urls": "opened",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"workbench.store.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, __dir__())}")


def __dir__() -> list[str]:
    return sorted(__all__)
