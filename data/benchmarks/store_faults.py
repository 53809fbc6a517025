"""How many answers a folder of cached blocks loses or gets wrong after faults; needs no GPU.

    python data/benchmarks/store_faults.py                      about twenty minutes
    python data/benchmarks/store_faults.py --share 0.01         a hundredth of everything, to see that it works
    python data/benchmarks/store_faults.py --folder /mnt/nvme   files on another disk than the temporary one

Writes store-faults.json: a writer killed 1,000 times (SIGKILL), 2,000 single bits flipped in every class of bytes,
power lost 1,000 times with all that was not fsynced, 10,000 sequences of 200 random operations beside a
model in memory, 10,000 sequences of up to 200 drawn by hypothesis (its package is needed), and 100,000 operations on
ever new keys in one process, whose memory is watched. Sequences run in several processes; what was stopped goes on.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from workbench.experiments import store_operations
from workbench.experiments.power_loss import losses
from workbench.experiments.record import versions
from workbench.experiments.results import read_json, write_json
from workbench.experiments.store_faults import Count, as_row, flips, kills, soak
from workbench.experiments.store_operations import in_parts

ROOT = Path(__file__).resolve().parents[2]


def stateful(first: int, runs: int) -> Count:
    """Carry out sequences that hypothesis draws."""
    sys.path.insert(0, str(ROOT))
    from tests.folder_machine import stateful_part

    logging.disable()
    return stateful_part(first, runs)


def operations_part(first: int, runs: int) -> Count:
    """Carry out sequences of random operations, without a warning for every damaged block."""
    logging.disable()
    return store_operations.operations_part(first, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where files are written; without it, a temporary folder")
    parser.add_argument("--share", type=float, default=1.0, help="of the numbers above")
    parser.add_argument(
        "--only", nargs="*", help="kills, flips, losses, soak, operations, stateful; the other rows stay"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that carry out operations")
    parser.add_argument(
        "--parts", type=Path, default=ROOT / "runs" / "store-faults", help="of sequences, until they end"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a forked process has no threads of torch's
    logging.disable()  # of every damaged block

    def times(whole: int) -> int:
        return max(10, round(whole * args.share))

    faults: dict[str, Callable[[Path], Count]] = {
        "kills": partial(kills, times=times(1000)),
        "flips": partial(flips, times=times(2000)),
        "losses": partial(losses, times=times(1000)),
        "soak": partial(soak, steps=times(100_000)),
        "operations": lambda _: in_parts(operations_part, times(10_000), args.parts / "operations", args.workers),
        "stateful": lambda _: in_parts(stateful, times(10_000), args.parts / "stateful", args.workers),
    }
    out = args.out / "store-faults.json"
    for name in args.only or faults:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            begin = time.perf_counter()
            row = {"name": name} | as_row(faults[name](Path(folder, "store")), time.perf_counter() - begin)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        before = read_json(out)["rows"] if out.exists() else []
        rows = {each["name"]: each for each in before} | {name: row | {"share": args.share, "versions": versions()}}
        command = "python data/benchmarks/store_faults.py"
        write_json(out, {"command": command, "rows": [rows[each] for each in faults if each in rows]})


if __name__ == "__main__":
    main()
