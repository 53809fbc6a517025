"""KV whose tensors are pages of a file, and what is made of it by who keeps it.

A store hands pages out by default, as a hit is then read once and not copied. That is safe for a short while:

- files of blocks are never written into: they are written whole under another name and renamed, and a reader of pages
  keeps the file that it opened
- the pages are read in and verified before they are handed out, and a page that cannot be read is an error there
- what is written to them stays in the process

For long it is not: pages that the system drops are read again later, unverified, and a disk that fails, or a program
that writes into files in place, is then no miss but an end of the process. So whoever keeps a block takes `owned`.
"""

import sys
from dataclasses import dataclass

from workbench.core.kv import KV

POPULATES = sys.platform == "linux"  # elsewhere an unreadable page is found too late, and mapped files stay as they are


@dataclass
class MappedKV(KV):
    """Keys and values that are pages of a file: to be read, or copied, at once."""


def owned(kv: KV) -> KV:
    """Return read-only KV in memory of its own: itself where it is that already, else a copy."""
    return kv if kv.read_only and not isinstance(kv, MappedKV) else kv.clone().lock()
