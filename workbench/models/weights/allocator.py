"""Memory that the C library keeps instead of giving it back to the system.

A request over cached blocks fills as much memory as its keys and values take and frees it with its answer. By default
glibc returns that memory, and the next request pays for every page: over 2,048 cached tokens of the shipped model
a fifth of the time to the first token. Torch keeps freed memory on a GPU in any case.
"""

import ctypes
import sys

KEPT = 1 << 30  # bytes of freed memory that stay with the process, at most
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt (malloc.h)


def keep_freed() -> bool:
    """Keep up to `KEPT` freed bytes for the next allocation, in this process; false where there is no glibc."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all([mallopt(_MMAP_THRESHOLD, KEPT), mallopt(_TRIM_THRESHOLD, KEPT)])
