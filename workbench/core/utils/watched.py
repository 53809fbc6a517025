"""What a long call from Python is at: a bar where a person watches, in a terminal or in a notebook."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.core.utils.stages import are_heard, heard

Progress = Callable[[int, int], None]  # (done, of how many)
BATCH = "WORKBENCH_BATCH"  # environment variable: set in kernels that no person watches
OPENED = ("JPY_SESSION_NAME", "COLAB_RELEASE_TAG")  # set in kernels that a person opens


@contextmanager
def watched(what: str, given: Progress | None = None) -> Iterator[Progress | None]:
    """Yield `given`, or a bar of its own where a person watches and nothing else shows how far it is."""
    is_open = sys.stderr.isatty() or any(name in os.environ for name in OPENED)
    if given or are_heard() or os.environ.get(BATCH) or not is_open:
        yield given
        return
    from tqdm.auto import tqdm  # slow to import

    with tqdm(desc=f"{what}: loading", leave=False) as bar, heard(lambda at: bar.set_description(f"{what}: {at}")):

        def move(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield move
