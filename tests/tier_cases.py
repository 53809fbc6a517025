"""Small blocks and a store of them that tests of tiers share."""

import torch

from workbench.core.kv import KV
from workbench.store.tiering.tier import HostTier, StoreTier
from workbench.store.tiering.tiered_store import TieredStore

KEYS = "abcdefgh"


def kv_of(tokens: int, fill: float = 0.0) -> KV:
    """16 bytes a token."""
    return KV([torch.full((1, tokens, 2), float(fill))], [torch.full((1, tokens, 2), -float(fill))])


class Shelf:
    """A store that removes blocks."""

    def __init__(self):
        self.held, self.broken = {}, False

    def get(self, key):
        return self.held.get(key)

    def put(self, key, kv):
        if self.broken:
            raise OSError("no space left on device")
        self.held[key] = kv

    def remove(self, key):
        if self.broken:
            raise OSError("read-only file system")
        del self.held[key]

    def __iter__(self):
        return iter(list(self.held))


def two(host: int, disk: int | None = None, **options) -> TieredStore:
    return TieredStore([HostTier(host), StoreTier(Shelf(), disk)], **options)
