"""Shared by the scripts of this folder: options with defaults, and writers of result rows with their origin."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from workbench.core.blocks import Block, Prompt
from workbench.experiments.trials.record import device_name, versions
from workbench.metrics.answers import bootstrap
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER


def options(about: str | None, **defaults: Any) -> Namespace:
    """Parse the command line: one option per default, of its type; several values for a list, a flag for False.

    `out`, the results folder, and `threads` are added. None means an optional text.
    """
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    for name, default in {"out": FOLDER, **defaults}.items():
        one = default[0] if isinstance(default, list) else default
        kind: dict[str, Any] = {"type": str if one is None else type(one) if not isinstance(one, Path) else Path}
        kind |= {"nargs": "+"} if isinstance(default, list) else {}
        kind = {"action": "store_true"} if default is False else kind
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=f"default: {default}", **kind)
    given = parser.parse_args()
    if "threads" in given:
        torch.set_num_threads(given.threads)
    return given


def writer(given: Namespace, part: str, device: str | torch.device = "cpu", **origin: Any) -> Writer:
    """Return the writer of a part of the results folder: its rows name the device, the versions and the command."""
    about = {"device": device_name(torch.device(device)) if device else "", "versions": versions(), **this_run()}
    return Writer(given.out, part, **{**about, **origin})


def mean_of(values: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Return the mean of one number per question as row fields {value, low, high, n}, with a 95% bootstrap interval."""
    low, high = bootstrap(values, seed)
    return {"value": fmean(values), "low": low, "high": high, "n": len(values)}


def prompt_of(ids: Tensor, block: int, question: int) -> Prompt:
    """Return a prompt of tokens [N]: blocks of `block` tokens, then the last `question` tokens."""
    runs = (*ids[:-question].split(block), ids[-question:])
    return Prompt(tuple(Block(tuple(run.tolist())) for run in runs))


def name_of(model: str) -> str:
    """Return a model's name, or that of the folder it was trained in."""
    path = Path(model)
    return path.parent.name if path.name == "model" else path.name


def checksum(pool: Any, cached: Any) -> int:
    """Return the CRC-32 of a block's keys and values in its pages."""
    slots, found = pool.slots(cached).to(pool.device), 0
    for layer in (*pool.keys, *pool.values):
        found = crc32(layer[:, slots].contiguous().cpu().view(torch.uint8).numpy().tobytes(), found)
    return found
