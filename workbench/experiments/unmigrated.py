"""Committed reports of `workbench bench` that are not in tables yet, read as rows of tables."""

from collections.abc import Iterator
from typing import Any

from workbench.experiments import results
from workbench.results import SHIPPED, Results


def with_files(found: Results) -> Results:
    """Return results with the rows of committed reports, where the shipped tables are read and lack them."""
    if SHIPPED not in found.sources or len(found.timings("bench").query("source == @SHIPPED")):
        return found
    return found.with_rows("timings", _timings(), SHIPPED)


def _timings() -> Iterator[dict[str, Any]]:
    for name in results.names():
        report = results.read(name)
        for work in report.get("workloads", []) if isinstance(report, dict) and "card" in report else []:
            for one in work["contestants"]:
                if one.get("ms"):
                    numbers = {key: one.get(key) for key in ("ms", "p5", "p95", "runs", "least", "most")}
                    about = {"experiment": "bench", "workload": work["name"], "candidate": one["who"]}
                    yield {**about, **numbers, "setting": {"report": name, **work["shape"]}, "device": report["card"]}
