"""A progress bar where a person watches, and silence elsewhere."""

from collections.abc import Callable

from tqdm.auto import tqdm

from workbench.app.notebooks import notebook


def progress(label: str) -> Callable[[int, int], None] | None:
    """Return a callback (done, of how many) that moves a bar; None outside a notebook or terminal."""
    if not notebook.is_live():
        return None
    bar = tqdm(desc=label, leave=False)

    def move(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return move
