"""Where cached blocks live: keys made of content, stores with a budget."""

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


def __dir__() -> list[str]:
    return sorted(__all__)
