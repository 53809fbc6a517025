"""Progress bars of long calls from Python, in interactive terminals and notebooks."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

from workbench.core.utils.stages import are_heard, stages_reported_to

if TYPE_CHECKING:
    from tqdm.auto import tqdm

Progress = Callable[[int, int], None]  # (done, total)
BATCH = "WORKBENCH_BATCH"  # environment variable of unattended notebook runs
UNCOUNTED = "{desc}"  # format of a bar without a known total
OPENED = ("JPY_SESSION_NAME", "COLAB_RELEASE_TAG")  # set in interactive notebook kernels


@contextmanager
def bar(label: str) -> Iterator["tqdm[Any]"]:
    """Yield a tqdm bar that is removed at the end of the block, also from a saved notebook."""
    from tqdm.auto import tqdm  # slow to import

    handle = None
    with tqdm(desc=label, leave=False, delay=1, bar_format=UNCOUNTED) as shown:  # shown after a second
        shown.delay = 0
        if container := getattr(shown, "container", None):
            from IPython.display import display

            handle, shown.displayed = display(container, display_id=True), True
        shown.refresh()
        yield shown
    if handle:
        handle.update({"text/html": ""}, raw=True)


def move(shown: "tqdm[Any]", done: int, total: int) -> None:
    """Set a bar to `done` of `total`."""
    if shown.total != total:
        shown.bar_format = None
        shown.set_description(shown.desc.removesuffix(": "), refresh=False)  # tqdm appends a colon
        shown.reset(total)
    shown.update(done - shown.n)


@contextmanager
def progress_shown(what: str, given: Progress | None = None) -> Iterator[Progress | None]:
    """Yield `given`, or the progress function of a new bar if the session is interactive and no other is shown."""
    is_open = sys.stderr.isatty() or any(name in os.environ for name in OPENED)
    if given or are_heard() or os.environ.get(BATCH) or not is_open or current_thread() is not main_thread():
        yield given
        return
    with bar(f"{what}: loading") as shown:

        def describe(at: str) -> None:
            (shown.set_description if shown.total else shown.set_description_str)(f"{what}: {at}")

        with stages_reported_to(describe):
            yield partial(move, shown)
