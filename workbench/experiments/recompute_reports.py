"""The report of `workbench bench recompute` read back by the share that is recomputed (FusionRAG, figure 14a)."""

from collections.abc import Mapping
from typing import Any

from workbench.experiments import results
from workbench.experiments.chunk_reports import ratio, timed
from workbench.metrics.answers import Records

WAYS = {  # candidate of a report → what its time contains
    "ours": "rows chosen, cache on the GPU",
    "ours, loaded from host memory": "rows chosen, cache loaded from host memory",
    "ours, random rows, no choice": "rows drawn, no choice",
}
OLD_SHARE = 0.15  # of a report that does not name it


def report() -> Mapping[str, Any]:
    """Return the report; without workloads where it is not committed."""
    return results.read("recompute") if "recompute" in results.names() else {"card": "", "workloads": []}


def by_share() -> Records:
    """Return how many times as fast each share is as stock transformers over the whole prompt.

    Rows {way, name, at (share), ms, against, mean, low, high, runs, choice_ms, loaded_gb}. Reports of earlier versions
    drew the rows of "ours".
    """
    rows = []
    for work in report()["workloads"]:
        candidates, shape = timed(work), work["shape"]
        full = [one for who, one in candidates.items() if who.startswith("transformers")]
        if not full:
            continue
        whole = min(full, key=lambda one: float(one["ms"]))
        share = shape.get("recomputed", OLD_SHARE)
        for who in WAYS.keys() & candidates.keys():
            one, way = candidates[who], who
            if who == "ours" and share and "choice" not in shape:
                way = "ours, random rows, no choice"
            about = {"way": way, "name": WAYS[way], "at": share, "ms": one["ms"], "against": whole["who"]}
            about |= {"choice_ms": one.get("choice_ms"), "loaded_gb": one.get("loaded_gb")}
            rows.append(about | ratio(whole, one))
    return sorted(rows, key=lambda row: (list(WAYS).index(row["way"]), row["at"]))


def missing() -> list[float]:
    """List the shares of figure 14a that are not measured with their choice."""
    there = {row["at"] for row in by_share() if row["way"] == "ours"}
    return [share for share in (0.0, 0.05, OLD_SHARE, 0.3) if share not in there]
