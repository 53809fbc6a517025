"""How many answers a folder of cached blocks loses or gets wrong after faults; needs no GPU.

    python -m tests.stress.run_store_faults                      about twenty minutes
    python -m tests.stress.run_store_faults --share 0.01         a hundredth of everything, to see that it works
    python -m tests.stress.run_store_faults --folder /mnt/nvme   files on another disk than the temporary one

Writes counts of experiment "faults": a writer killed 1,000 times (SIGKILL), 2,000 single bits flipped in every
class of bytes, power lost 1,000 times with all that was not fsynced, 10,000 sequences of up to 200 operations drawn by
hypothesis beside a dictionary, and 100,000 operations on ever new keys in one process, whose memory is watched.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.stress.folder_machine import STEPS, stateful_part
from tests.stress.power_loss import losses
from tests.stress.store_faults import Count, flips, kills, soak
from workbench.core.utils.runner import Workers
from workbench.experiments.trials.record import versions
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

EACH = 100  # sequences of a task


def stateful(runs: int, workers: int) -> Count:
    """Carry out sequences that hypothesis draws, in several processes."""
    whole = Count("stateful operations", about={"runs": runs, "steps": STEPS})
    with Workers(workers) as processes:
        for _, outcome in processes.run(part, [(first, min(EACH, runs - first)) for first in range(0, runs, EACH)]):
            whole.add(outcome.value())
    return whole


def part(given: tuple[int, int]) -> Count:
    """Carry out some sequences from the first seed on, without a warning for every damaged block."""
    logging.disable()
    return stateful_part(*given)


def main() -> None:
    """Count the answers after every fault, and write as each ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where files are written; without it, a temporary folder")
    parser.add_argument("--share", type=float, default=1.0, help="of the numbers above")
    parser.add_argument("--only", nargs="*", help="kills, flips, losses, soak, stateful")
    parser.add_argument("--workers", type=int, default=2, help="processes that carry out sequences")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a forked process has no threads of torch's
    logging.disable()  # of every damaged block

    def times(whole: int) -> int:
        return max(10, round(whole * args.share))

    faults: dict[str, Callable[[Path], Count]] = {
        "kills": partial(kills, times=times(1000)),
        "flips": partial(flips, times=times(10_000)),
        "losses": partial(losses, times=times(1000)),
        "soak": partial(soak, steps=times(100_000)),
        "stateful": lambda _: stateful(times(10_000), args.workers),
    }
    for name in args.only or faults:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            begin = time.perf_counter()
            count = faults[name](Path(folder, "store"))
        spent = round(time.perf_counter() - begin, 1)
        print(f"{name}: {count}, {spent} s", flush=True)
        setting = {"fault": count.fault, "share": args.share}
        with Writer(args.out, f"faults@{name}", method=name, setting=setting, versions=versions(), **this_run()) as out:
            out.counts(counts(count, spent))


def counts(count: Count, seconds: float) -> list[dict[str, Any]]:
    """Return a row of `results.Count` a number."""
    numbers = {name: getattr(count, name) for name in ("tried", "found", "missed", "lost", "wrong")}
    rows = [{"measure": name, "value": float(value)} for name, value in (numbers | {"seconds": seconds}).items()]
    return rows + [{"measure": name, "kind": "about", "value": float(value)} for name, value in count.about.items()]


if __name__ == "__main__":
    main()
