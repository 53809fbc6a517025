"""Speedups of methods that were timed apart from their answers, all in one run (`data/benchmarks/method_ttft.py`)."""

from dataclasses import dataclass

from workbench.results import Results, expand_settings

SAME = 0.02  # tolerance of the charged share against that of the answers


@dataclass(frozen=True)
class TimedApart:
    """Methods timed in one run; `about` says on what, `found` has of each its charged share and its speedup."""

    about: str
    found: dict[str, tuple[float, float]]

    def speedup(self, method: str, charged: float | None) -> float | None:
        """Return full attention's time to first token over a method's, where it charged as much; None otherwise."""
        share, speedup = self.found.get(method, (0.0, 0.0))
        return speedup if speedup and charged is not None and abs(share - charged) <= SAME else None


def timed_apart(found: Results) -> dict[str, TimedApart]:
    """Return what was timed, by source; nothing of a source whose full attention was not."""
    counts = found.counts("methods")
    shares = counts[counts.measure == "charged_share"].set_index(["source", "model", "method"]).value
    timed: dict[str, TimedApart] = {}
    for (source, model), rows in expand_settings(found.timings("methods"), "length").groupby(["source", "model"]):
        ms = rows.set_index("method").ms
        if "full" in ms:
            about = f"{model} over {rows.length.iloc[0]:,.0f} tokens, {rows.device.iloc[0]}"
            known = shares[source, model]
            both = ms.index.intersection(known.index)
            timed[source] = TimedApart(about, {name: (known[name], ms["full"] / ms[name]) for name in both})
    return timed
