"""Files that appear whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file beside `path`, then move it into place; an earlier file stays until then."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
