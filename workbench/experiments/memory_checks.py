"""compute-sanitizer over the cases of kernels: what it finds, one process for each kernel and tool.

memcheck   reads and writes outside of what was allocated; torch's cache of allocations is off, so that each is one
racecheck  accesses to shared memory that no barrier keeps apart. It does not follow memory barriers (mbarrier), by
           which warps of the kernels for Hopper hand tiles on, and names them too, as in FlashAttention
           (AI/RACECHECK_TMA_HAZARD.md), and reductions of Triton (its issue 7264). `tests/kernels/ahead_of_time.py`
           looks instead whether each arrival stands behind a barrier of the warps that wrote
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from time import perf_counter
from typing import Any

from workbench.experiments import results

TOOLS = ("memcheck", "racecheck")
CACHE_OFF = {"memcheck": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}}
SANITIZER = "compute-sanitizer"
COUNTS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")  # hazards: as many as are printed
FOUND = {
    "memcheck": "memcheck found errors: {}.",
    "racecheck": "racecheck names hazards in {}: it does not follow the memory barriers by which warps hand tiles on, "
    "and in the compiled kernels for Hopper each arrival at one stands behind a barrier of the warps that wrote.",
}
SHOWN = 12  # lines of the first errors that are kept


def checked(tool: str, name: str, command: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run a command under a tool: {tool, name, errors, right, seconds, output}.

    errors  what the tool counted; None where it did not come to its end within `seconds`
    right   whether the command itself ended well
    output  first lines of the errors; the end of what was said, where there is no count
    """
    begin = perf_counter()
    whole = [SANITIZER, "--tool", tool, "--print-limit", "3", *command]
    try:
        done = subprocess.run(
            whole,
            env=os.environ | CACHE_OFF.get(tool, {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        said, right = done.stdout, not done.returncode
    except subprocess.TimeoutExpired as late:
        said, right = (late.stdout or b"").decode(errors="replace"), False
    errors = counted(said)
    found = [line for line in said.splitlines() if line.startswith("=====")] if errors else []
    output = found[:SHOWN] if errors else [] if errors == 0 and right else said.splitlines()[-SHOWN:]
    taken = perf_counter() - begin
    return {"tool": tool, "name": name, "errors": errors, "right": right, "seconds": taken, "output": output}


def counted(said: str) -> int | None:
    """Return how many errors or hazards a tool says that it found; None where it says nothing of it."""
    found = COUNTS.findall(said)
    return sum(int(count) for pair in found for count in pair if count) if found else None


def of_kernels(kernels: Sequence[str], tools: Sequence[str], jobs: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Check the cases of kernels under tools, `jobs` processes at a time; yield what `checked` returns as they end."""
    work = [(tool, name) for tool in tools for name in kernels]
    with ThreadPoolExecutor(jobs) as pool:
        running = []
        for tool, name in work:
            command = [sys.executable, "-m", "workbench", "bench", name, "--check"]
            running.append(pool.submit(checked, tool, name, command, seconds))
        for done in as_completed(running):
            yield done.result()


def sentence(kept: dict[str, Any] | None = None) -> str:
    """Say what `data/benchmarks/memory_checks.py` kept; that it has not been run where there is nothing."""
    if kept is None:
        if "memory-checks" not in results.names():
            return "compute-sanitizer has not been run over all kernels."
        kept = results.read("memory-checks")
    said = []
    for tool in TOOLS:
        rows = [row for row in kept["rows"] if row["tool"] == tool]
        ended = [row for row in rows if row["errors"] is not None]
        wrong = [row for row in ended if row["errors"]]
        odd = [f"`{row['name']}`" + f" ({row['errors']:,})" * (tool == "memcheck") for row in wrong]
        late = [f"`{row['name']}`" for row in rows if row["errors"] is None]
        if ended:
            named = ", ".join(f"`{row['name']}`" for row in ended if not row["errors"])
            said.append(f"{tool} found no error over the cases of {named}." if named else "")
            said.append(FOUND[tool].format(", ".join(odd)) if odd else "")
        said.append(f"{tool} did not come to its end: {', '.join(late)}." if late else "")
    return " ".join([f"compute-sanitizer on one {kept['device']}:", *filter(None, said)])
