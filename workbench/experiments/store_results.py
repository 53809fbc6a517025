"""What was measured of stores of cached blocks, as rows for figures, and in sentences that follow the numbers."""

from typing import Any

from workbench.experiments.results import names, read
from workbench.metrics.published_numbers import FUSION_RAG

STATES = ("", "hot", "warm", "cold")
MEMORY = ("reuse", "warm")  # runs over blocks in the memory of the host


def serving(device: str = "cpu") -> list[dict[str, Any]]:
    """Return the runs of data/benchmarks/store_serving.py on "cpu" or "cuda", those that were skipped left out.

    Rows: {run, state, mode, ratio, questions, seconds, per_second, ttft, idle, loaded, reused, device}, those over
    blocks on disk with {disk}: what is known of it, {raw, resident, folder}. Raises BadInput where it was not run.
    """
    content = read(f"store-serving-{device}")
    written: dict[str, Any] = next((row for row in content["runs"] if row["run"] == "write"), {})
    disk = {name: written[name] for name in ("raw", "resident", "folder") if name in written}
    about = {state: {"device": content["device"]} | ({"disk": disk} if state == "cold" else {}) for state in STATES}
    return [row | about[row["state"]] for row in content["runs"] if "ttft" in row]


def from_disk(rows: list[dict[str, Any]]) -> str:
    """Say how fast blocks come from the disk, against reading files of it as they are."""
    cold = [row for row in rows if row["state"] == "cold" and row["loaded"].get("disk")]
    if not cold:
        return ""
    rates = [f"{row['loaded']['disk'] / row['seconds'] / 1e9:.2f} ({row['mode']})" for row in cold]
    told = f"From the disk come {max(row['loaded']['disk'] for row in cold) / 1e9:.1f} GB, in GB a second over the"
    told += f" whole run {', '.join(rates)}"
    if raw := cold[0].get("disk", {}).get("raw"):
        told += f"; files read as they are, several at once, {raw['gbps']:.2f}"
    resident = cold[0].get("disk", {}).get("resident")
    if resident is not None:
        told += f". Before a run the system held {resident:.0%} of their pages in memory"
    return f"{told}."


def overlap(rows: list[dict[str, Any]], state: str, ratio: float = 0.0) -> str:
    """Say what loading beside the engine changes, against the engine loading itself."""
    runs = {row["mode"]: row for row in rows if (row["run"], row["state"], row["ratio"]) == ("reuse", state, ratio)}
    if not {"sync", "request"} <= set(runs):
        return f"Serving {state} blocks was not measured."
    sync, together = runs["sync"], runs["request"]
    change = together["ttft"]["mean"] / sync["ttft"]["mean"] - 1
    word = "less" if change < 0 else "more"
    told = f"{sync['questions']} questions at once over {state} blocks: with loads beside the engine, the mean time to"
    told += f" the first token is {abs(change):.0%} {word}"
    return f"{told}, and the engine is idle {together['idle']:.0%} of the time instead of {sync['idle']:.0%}."


def gathered(rows: list[dict[str, Any]], state: str = "warm") -> str:
    """Say what it changes that ready requests wait for loads that are about to end (`serving.gathering`)."""
    runs = {row["mode"]: row for row in rows if (row["run"], row["state"], row["ratio"]) == ("reuse", state, 0.0)}
    if not {"request", "at once"} <= set(runs):
        return ""
    change, before = runs["request"]["ttft"]["mean"] / runs["at once"]["ttft"]["mean"] - 1, runs["at once"]["together"]
    word = "less" if change < 0 else "more"
    return (
        f"That ready requests wait for loads that are about to end makes a prefill one of"
        f" {runs['request']['together']:.1f} requests instead of {before:.1f}, and the time to the first token"
        f" {abs(change):.1%} {word} ({state} blocks)."
    )


def against_baselines(rows: list[dict[str, Any]]) -> str:
    """Say how many times as many answers a second come by reuse from memory as by each baseline, beside the paper's."""
    rates = {(row["run"], row["state"], row["mode"], bool(row["ratio"])): row["per_second"] for row in rows}
    ours = [(rate, mode, chosen) for (run, state, mode, chosen), rate in rates.items() if (run, state) == MEMORY]
    theirs = {run: rate for (run, state, _, _), rate in rates.items() if not state and rate}
    if not ours or not theirs:
        return ""
    best = {chosen: max((rate for rate, _, each in ours if each == chosen), default=None) for chosen in (False, True)}
    ways = {False: "reuse", True: "15% recomputed"}
    said = [
        f"{ways[chosen]} {', '.join(f'{rate / base:.1f} times {name}' for name, base in theirs.items())}"
        for chosen, rate in best.items()
        if rate is not None
    ]
    low, high = FUSION_RAG["throughput"]
    return f"Answers a second over blocks in memory: {'; '.join(said)} (FusionRAG, figure 15: {low} to {high} times)."


def overlap_printed() -> str:
    """Say what FusionRAG prints of its asynchronous scheduler."""
    return (
        f"FusionRAG's scheduler takes {FUSION_RAG['overlap']:.0%} off the time to the first token (figures 11 and 18)."
    )


def eight_bits() -> list[dict[str, Any]]:
    """Return what data/benchmarks/store_int8.py measured, one row a method and score.

    {method, score, mean, low, high, n, bytes, keys, values}: paired difference to blocks as cached; share of the bytes;
    relative deviation of keys and values. BadInput where it was not run.
    """
    rows = []
    for method, entry in read("store-int8")["methods"].items():
        rounded = entry["int8"]
        size = rounded["bytes_kept"] / rounded["bytes_cached"]
        about = {"bytes": size, "keys": rounded["deviation"]["k"], "values": rounded["deviation"]["v"]}
        rows += [{"method": method, "score": score, **gap, **about} for score, gap in entry["difference"].items()]
    return rows


def rounded(rows: list[dict[str, Any]]) -> str:
    """Say what 8 bits cost, of the rows of `eight_bits`."""
    told = []
    for row in rows:
        if row["score"] == "em":
            clear = row["low"] > 0 or row["high"] < 0
            verdict = (
                f"changes exact match by {row['mean']:+.3f}" if clear else "changes exact match by nothing measurable"
            )
            told.append(
                f"{row['method']}: 8 bits take {row['bytes']:.0%} of the bytes and {verdict} "
                f"({row['low']:+.3f} to {row['high']:+.3f}, n = {row['n']})."
            )
    return " ".join(told)


def serving_anywhere() -> list[dict[str, Any]]:
    """Return the runs of `serving` on a GPU where it was measured, else on a CPU, else none."""
    for device in ("cuda", "cpu"):
        if f"store-serving-{device}" in names():
            return serving(device)
    return []
