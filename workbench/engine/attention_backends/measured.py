"""Which attention is the fastest on a GPU, by measurement: data/benchmarks/attention_backends.json.

`data/benchmarks/attention_backends.py` times our kernels beside cuDNN's and FlashAttention 2, as torch brings them, and
writes a row for every shape: {work, heads, width, length, times: {name: ms}}. A GPU is looked up by its name; one that
is not in the file by another of its compute capability. Where neither is there, the default is taken.

A baseline must be faster than our kernel by GAIN: it also costs a plan for every new length (cuDNN).
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import torch

from workbench.data.assets import ROOT

FILE = ROOT / "benchmarks" / "attention_backends.json"
GAIN = 0.03  # by which a baseline must be faster
NEAR = 1.0  # octaves between the length that is asked for and one that was measured, at most


@cache
def tables(path: Path = FILE) -> Mapping[str, Any]:
    """Read what was measured, by the name of the GPU: {"capability", "rows"}. Empty where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["gpus"]
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def rows_for(name: str, capability: Sequence[int], path: Path = FILE) -> list[dict[str, Any]]:
    """Return the rows of a GPU, or of one of its capability; [] where there are none."""
    known = tables(path)
    if name in known:
        return list(known[name]["rows"])
    alike = [gpu["rows"] for gpu in known.values() if list(gpu["capability"]) == list(capability)]
    return list(alike[0]) if alike else []


def fastest(rows: Sequence[Mapping[str, Any]], work: str, group: int, width: int, length: int, own: str) -> str:
    """Return the name of the fastest backend for `work` at about this length; `own` where it is not measured.

    A row counts where head width and heads of a group are the same, and the length is within an octave.
    """
    alike = [r for r in rows if r["work"] == work and r["width"] == width and r["heads"][0] // r["heads"][1] == group]
    near = min(alike, key=lambda r: abs(log2(r["length"] / length)), default=None)
    if near is None or abs(log2(near["length"] / length)) > NEAR or own not in near["times"]:
        return own
    best = min(near["times"], key=lambda name: near["times"][name])
    return best if near["times"][best] < (1 - GAIN) * near["times"][own] else own


@cache
def choice(device: torch.device, work: str, heads: tuple[int, int], width: int, length: int, own: str) -> str:
    """Return the fastest backend on this device; `own` where nothing is known of it."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return own
    rows = rows_for(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
    return fastest(rows, work, heads[0] // heads[1], width, length, own)
