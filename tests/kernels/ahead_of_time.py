"""Compile the kernels that are written for Hopper, for Hopper, on any machine: `python -m tests.kernels.ahead_of_time`.

They have no interpreter, so this is what a machine without such a GPU can say of them. Prints a line of JSON each.
"""

import json
import re
from itertools import product
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import compile as compiled
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from workbench.kernels._pages import hopper as _pages_hopper
from workbench.kernels._select import hopper as _choose_hopper
from workbench.kernels._shared import linear_hopper
from workbench.kernels._tiles import hopper as _tiles_hopper

BARRIER = re.compile(r"\b(bar|barrier)\.(cta\.)?sync\b")
TOUCHED = re.compile(r"\b(st|ld|stmatrix|ldmatrix)\.[\w.:]*shared")
ARRIVAL = re.compile(r"\bmbarrier\.arrive\.(?!expect_tx)")
STRIDES = [f"{x}_{part}" for x, part in product(("q", "out"), ("batch", "head", "token"))]
NUMBERS = ["count", "capacity", "row_tiles", "together", "lists", "queries", "pages", "splits"]


def tile(dtype: str, box: list[int]) -> str:
    """Type of a tensor descriptor."""
    layout = gl.NVMMASharedLayout(128, 8 if dtype.startswith("fp8") else 16, rank=len(box))
    return f"tensordesc<{dtype}{box},{layout}>"


def tiled_types(dtype: str, box: list[int]) -> dict[str, str]:
    """`types` of kept tiles, whose queries come 64 rows at a time."""
    return types(dtype, box, dtype) | {"q": tile(dtype, [1, 1, 64, box[-1]])}


def types(dtype: str, box: list[int], out: str) -> dict[str, str]:
    """Types of all arguments of both kernels, by name."""
    tables = "indptr indices table positions first page_max shifts".split()
    found = {
        "q": f"*{dtype}",
        "out": f"*{out}",
        "keys": tile(dtype, box),
        "values": tile(dtype, box),
        "lse": "*fp32",
        "inv_freq": "*fp32",
    }
    found |= {"rows": "*i64", "at_rows": "*i64", "scale": "fp32"} | dict.fromkeys(tables, "*i32")
    return found | dict.fromkeys(NUMBERS, "i32") | dict.fromkeys([*STRIDES, "out_split"], "i64")


def build(kernel: Any, known: dict[str, str], constants: dict[str, Any], most: int = 0) -> Any:
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else known[name] for name in names}
    wide = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] == "*"}
    source = GluonASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, wide)
    if most:
        return compiled(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": most})
    most = 128 if constants.get("ROTATE") else 168  # registers of a thread, as `launch` asks for
    if constants.get("CONSUMERS", 1) == 1 and "N" in constants and "LISTED" not in constants:
        most = 112 if constants["ROTATE"] else 128
    return compiled(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": most})


def main() -> None:
    common: dict[str, Any] = {"GROUP": 4, "STAGES": 2}
    tiled = common | {"HEADS": 32, "SHARED": 1, "STRIDED": False, "PAIRED": False, "N": 128}
    moved = common | {"PAGE": 128, "N": 128, "INTERLEAVED": False, "ROTATE": True, "SPLIT": True}
    moved |= {"CONSUMERS": 2, "PDL": False, "EARLY": False}
    few = moved | {"HALF": 64, "CONSUMERS": 1, "PDL": True, "EARLY": True}
    for name, kernel, known, constants in (
        ("kept tiles", _tiles_hopper, tiled_types("bf16", [1, 1, 64, 128]), tiled | {"LISTED": True, "SIZE": 64}),
        (
            "pairs of query tiles",
            _tiles_hopper,
            tiled_types("bf16", [1, 1, 64, 128]),
            tiled | {"LISTED": True, "SIZE": 64, "PAIRED": True},
        ),
        ("dense, fp16", _tiles_hopper, tiled_types("fp16", [1, 1, 128, 64]), tiled | {"LISTED": False, "SIZE": 128}),
        ("shifted pages", _pages_hopper, types("bf16", [1, 128, 128], "fp32"), moved | {"HALF": 64}),
        ("part of narrow heads rotates", _pages_hopper, types("bf16", [1, 128, 64], "fp32"), moved | {"HALF": 16}),
        ("few rows, overlapped", _pages_hopper, types("bf16", [1, 64, 128], "fp32"), few | {"PAGE": 64}),
    ):
        found = build(kernel._attend, known, constants)
        report(name, found)
    known = types("bf16", [1, 1, 64, 128], "bf16") | dict.fromkeys(["width", "channels", "rows"], "i32")
    known |= dict.fromkeys(["x", "weight"], tile("bf16", [64, 128]))
    shape = {"BOX": 64, "BOXES": 2, "K": 128, "ROWS": 64, "STAGES": 4, "GATED": True, "PDL": True}
    report("gated products", build(linear_hopper._linear, known, shape))
    counts = "count row_squares blocks most heads first_head".split()
    shape = {"GROUP": 4, "STRIDE": 8, "PER": 16, "D": 128, "N": 256, "STAGES": 4}
    for name, dtype, channels in (("squares", "bf16", 64), ("squares, float8", "fp8e4nv", 128)):
        known = {"sums": "*fp32", "rows": "*i64", "order": "*i32", "scale": "fp32"} | dict.fromkeys(counts, "i32")
        known |= {name: tile(dtype, [1, 1, 1, n, channels]) for name, n in (("q", 64), ("keys", 256))}
        report(name, build(_choose_hopper._squares, known, shape, 168))


def report(name: str, found: Any) -> None:
    """Print what is known of a compiled kernel."""
    ptx = found.asm["ptx"]
    facts = {"shared": found.metadata.shared, "products": ptx.count("wgmma.mma_async.sync")}
    arrivals, early = handed_on(ptx)
    print(json.dumps({"kernel": name, "arrivals": arrivals, "early": early} | facts), flush=True)


def handed_on(ptx: str) -> tuple[int, int]:
    """Return how often warps arrive at a memory barrier, and how often of those without a barrier of their group since
    they last touched shared memory: one thread arrives for all, so the others' writes might not be seen by who waits.
    """
    arrivals = early = 0
    touched = False
    for line in ptx.splitlines():
        if BARRIER.search(line):
            touched = False
        elif TOUCHED.search(line):
            touched = True
        elif ARRIVAL.search(line):
            arrivals += 1
            early += touched
    return arrivals, early


if __name__ == "__main__":
    main()
