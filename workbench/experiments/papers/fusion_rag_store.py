"""FusionRAG's system half: Alternative Path (figure 10), the scheduler (11, 15, 18) and tiers (19).

Runs of data/benchmarks/store_serving.py decide where there are any; replays on a simulated clock, which take their
times from a GPU's reports, decide elsewhere and are shown beside.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.experiments.paper_workload import FIELDS, PATH
from workbench.experiments.papers import structure
from workbench.experiments.papers.evidence import counted
from workbench.experiments.papers.verdicts import Finding, Findings, leading
from workbench.experiments.simulated_machine import GB, Machine
from workbench.experiments.store_replay import Replayed, replay, requests_of
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.metrics.seeds import mean_over_seeds
from workbench.results import expanded, read, scores, varied

MACHINE = Machine({"GPU": 1.4 * GB, "host": 1.4 * GB, "disk": 4 * GB}, per_second=20.0)


def alternative_path() -> Findings:
    """Find a chunk behind other chunks, and simulate the workload of section 5.3.3; its sizes are ours."""
    counts = varied(expanded(read().counts("workload")), FIELDS)
    path = counts[(counts.method == PATH) & (counts.varied == "usual")].set_index("measure")
    found = structure.alternative_path()
    for name, what in (("storage_saved", "storage less than a prefix cache's"), ("hit_rate", "look-ups that hit")):
        mean, low, high, n = path.loc[name, ["value", "low", "high", "n"]]
        printed = FUSION_RAG[name]
        found.append(Finding(what, mean, low, high, int(n), "computed", "above", printed, ".1%", decides=False))
    return found


def _beside(run: Replayed) -> tuple[int, int]:
    """Return how many loads took time while the engine ran, and how many there are."""
    loads = [event for event in run.events if event.what == "load" and event.seconds > 0]
    spans = [event for event in run.events if event.what == "run"]
    beside = [load for load in loads if any(load.at < one.end - 1e-9 and one.at < load.end - 1e-9 for one in spans)]
    return len(beside), len(loads)


def overlapping() -> Findings:
    """Count loads beside a running engine in both modes, and compare the times to the first token."""
    requests = requests_of(1.0, 24, 80, 6)
    (sync, of_sync), (both, of_both) = (_beside(replay(requests, MACHINE, mode, range(80))) for mode in _BOTH)
    return [
        counted("loads while the engine runs, synchronous", sync, of_sync, 0),
        counted("loads while the engine runs, asynchronous", both, of_both, 0, "above"),
        *scheduler(),
    ]


_BOTH: Any = ("sync", "request")


def scheduler() -> Findings:
    """Compare the mean time to the first token with loads by the engine and beside it."""
    real = []
    for device, rows in served():
        for state in ("cold", "warm"):
            modes = [_run(rows, "reuse", state, mode) for mode in ("sync", "request")]
            if all(modes):
                one, other = (float(row["ttft_ms"]) for row in modes if row)
                what = f"sync over async, time to the first token, {state} blocks, {device}"
                real.append(_ratio(what, one / other, modes[0], 1.0, _label(device)))
    high, low = (
        _simulated("sync over async, time to the first token", "sync", "request", "ttft_ms", 1.0, busy)
        for busy in (True, False)
    )
    return [*leading(real, [high]), replace(low, decides=False)]


def throughput() -> Findings:
    """Compare answers a second with 15% recomputed and by full prefill."""
    bar, real = FUSION_RAG["throughput"][0], []
    for device, rows in served():
        ours, full = _run(rows, "reuse", "warm", "request", True), _run(rows, "full prefill", "", "request")
        if ours and full:
            what = f"answers a second over full prefill's, warm blocks, 15% recomputed, {device}"
            real.append(_ratio(what, ours["per_second"] / full["per_second"], full, bar, _label(device)))
    what = "answers a second over full prefill's, 15% of 27K recomputed"
    return leading(real, [_simulated(what, "request", "full prefill", "per_second", bar)])


def tiers() -> Findings:
    """Compare the time to the first token over blocks in host memory and on disk with full prefill."""
    found = []
    for device, rows in served():
        full = _run(rows, "full prefill", "", "request")
        for state, place in (("warm", "host memory"), ("cold", "disk")):
            if full and (ours := _run(rows, "reuse", state, "request")):
                ratio = full["ttft_p50"] / ours["ttft_p50"]
                found.append(
                    _ratio(
                        f"full prefill{_fewer(full, ours)} over reuse from {place}, {device}",
                        ratio,
                        ours,
                        1.0,
                        _label(device),
                    )
                )
    return found


def _fewer(full: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Say how many questions a baseline was asked, where these wait for fewer others."""
    asked = int(full["n"])
    return "" if asked >= ours["n"] else f" of {asked} questions at once"


def served() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the measured devices with their runs."""
    runs = scores(read().counts("serving"))
    kinds = {device: "cuda" if device.startswith("NVIDIA") else "cpu" for device in runs.device}
    return [
        (kind, [row | json.loads(row["setting"]) for row in runs[runs.device == device].to_dict("records")])
        for device, kind in kinds.items()
    ]


def unmeasured() -> str:
    """Say that times under load are not measured, where they are not."""
    return "" if served() else "times on a device under load: requests were served on a simulated clock"


def _label(device: str) -> Any:
    return "shape" if device == "cuda" else "lab"


def _run(
    rows: Sequence[Mapping[str, Any]], run: str, state: str, mode: str, recomputed: bool = False
) -> Mapping[str, Any] | None:
    wanted = (run, state, mode, recomputed)
    return next(
        (row for row in rows if (row["method"], row["kind"], row.get("scheduler"), row["ratio"] > 0) == wanted), None
    )


def _ratio(what: str, value: float, row: Mapping[str, Any] | None, bar: float, label: Any) -> Finding:
    """Return a ratio of two runs of one process; it has no interval."""
    return Finding(what, value, value, value, int(row["n"]) if row else 1, label, "above", bar, "x")


def _simulated(what: str, one: str, other: str, field: str, bar: float, busy: bool = True) -> Finding:
    """Compare two candidates of the replay at the highest rate of requests, or at the lowest, seed by seed."""
    rows = read().counts("replay")
    most = rows["at"].max() if busy else rows["at"].min()
    wide = rows[(rows["at"] == most) & (rows.measure == field)].pivot(index="seed", columns="method", values="value")
    mean, half = mean_over_seeds(wide[one] / wide[other])
    what = f"{what}, {most:g} requests a second, simulated clock"
    return Finding(what, mean, mean - half, mean + half, len(wide), "computed", "above", bar, "x")
