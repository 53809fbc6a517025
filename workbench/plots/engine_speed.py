"""Both engines of `generate` beside each other: questions and tokens a second, and whether they say the same."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import engine_margins, results
from workbench.plots.table import table

Row = Mapping[str, Any]
WRONG = ("pages lost", "pinned", "changed", "apart")
NOTHING = "nothing"  # was beside a run
STATES = {"cold": "blocks encoded", "warm": "blocks in the store"}


def engines_beside(kept: Row | None = None) -> go.Figure | None:
    """Tabulate what `data/benchmarks/engines.py` kept; None where it has not been run."""
    if kept is None:
        if "engines" not in results.names():
            return None
        kept = results.read("engines")
    rows: list[list[str]] = []
    groups: list[int] = []
    alike: dict[str, list[Row]] = {}
    for unit in kept["units"].values():
        alike.setdefault(f"{unit['model']}, {unit['dtype']}, {unit['method']}", []).append(unit)
    for label, units in alike.items():
        groups.append(len(rows))
        rows.append([label, *[""] * 5])
        rows += [list(row) for unit in units for row in _lines(unit)]
    return table(
        ["at a time", "contiguous", "pages", "times", "same tokens", "ties"],
        rows,
        groups=groups,
        widths=[3.2, 1.3, 1.3, 0.9, 1.4, 1],
        title="One engine over contiguous caches, one over pages",
        notice=notice(kept),
        caption=f"{kept['device']}. Questions a second of whole answers, tokens a second of decoding alone. Same "
        "tokens: greedy answers without any difference; ties: others whose first two differing tokens are at most one "
        f"step of the dtype apart.{_beside(kept['units'].values())} data/benchmarks/engines.py.",
    )


def notice(kept: Row) -> str:
    """Say how much faster pages decode and answer, and how many answers differ by more than a tie."""
    said = []
    for size in kept["sizes"]:
        times = [paged / plain for u in kept["units"].values() for plain, paged in _decoding(u, size)]
        if times:
            how = "One request at a time" if size == 1 else f"{size} at a time"
            said.append(f"{how}, pages decode {_span(times)} times as many tokens a second.")
    pairs = [pair for unit in kept["units"].values() for pair in _pairs(unit)]
    if pairs:
        asked, differ = sum(p["questions"] for p in pairs), sum(p["questions"] - p["equal"] for p in pairs)
        apart = differ - sum(p["tie"] for p in pairs)
        said.append(
            f"Of {asked:,} answers {differ:,} differ"
            + (f", {apart:,} of them by more than a tie." if apart else ", all of them ties." if differ else ".")
        )
    held = [pair for pair in pairs if "rounded" in pair and pair["equal"] < pair["questions"]]
    if held:
        said.append(_against_fp32(held))
    return " ".join(said) or "Nothing was measured."


def _against_fp32(pairs: list[Row]) -> str:
    """Say how many differences the same model in fp32 finds to be ties, and how many tokens could be."""
    differ = sum(p["questions"] - p["equal"] for p in pairs)
    known = all("margins" in p for p in pairs)
    ties = sum(engine_margins.ties(p["listed"], p["margins"]["moved_most"]) if known else p["rounded"] for p in pairs)
    what = f"all {differ:,}" if ties == differ else f"{ties:,} of {differ:,}"
    said = f"By the same model in fp32, the two tokens of {what} that were held against it are no further apart than "
    if not known:
        return said + "the dtype's rounding moves them."
    most, share = (max(x) for x in zip(*((p["margins"]["moved_most"], _share(p)) for p in pairs), strict=True))
    answered = sum(p["margins"]["answered"] for p in pairs)
    return said + (
        f"the dtype moves the two likeliest of {answered:,} tokens that are answered alike ({most:.2f} at most); "
        f"{share:.0%} of those have so small a margin."
    )


def _share(pair: Row) -> float:
    return engine_margins.share_below(pair["margins"])


def soaked(kept: Row | None = None) -> go.Figure | None:
    """Tabulate what `python -m tests.stress.soak` kept; None where it has not been run."""
    if kept is None:
        if "soak" not in results.names():
            return None
        kept = results.read("soak")
    counts = kept["counts"]
    names = {
        "requests": "requests",
        "waves left": "waves that were left in the middle",
        "blocks come": "blocks that came, of those looked at",
        "blocks gone": "blocks that went",
        "pages lost": "pages without an owner",
        "pinned": "blocks that stayed pinned",
        "checksums": "checksums of shared pages",
        "changed": "checksums that changed",
        "compared": "answers compared with the contiguous engine",
        "equal": "the same tokens",
        "drawn otherwise": "drawn otherwise",
        "tie": "ties",
        "near": "nearly ties",
        "apart": "other tokens",
    }
    rows = [[words, f"{counts.get(name, 0):,}"] for name, words in names.items()]
    rows += [[name[7:], f"{count:,}"] for name, count in counts.items() if name.startswith("method ")]
    before, now = kept["bytes"]["after five waves"], kept["bytes"]["now"]
    rows += [[f"GiB of the {name}", f"{before[name] / 2**30:.2f} → {now[name] / 2**30:.2f}"] for name in now]
    wrong = [words for name, words in names.items() if name in WRONG and counts.get(name)]
    verdict = f"Something is wrong: {', '.join(wrong)}." if wrong else "No page was lost, and no shared page changed."
    return table(
        ["over one pool", "how many"],
        rows,
        title="Mixed requests over one pool, blocks coming and going",
        notice=f"{counts['requests']:,} requests in {kept['seconds'] / 60:,.0f} minutes. {verdict}",
        caption=f"{kept['model']}, {kept['dtype']}, {kept['device']}; {kept['pages']:,} pages.{_beside([kept])} "
        "python -m tests.stress.soak.",
    )


def _beside(runs: Iterable[Row]) -> str:
    """Name other work that the GPU did meanwhile: times of such runs are too long."""
    others = {run["beside"] for run in runs if run.get("beside", NOTHING) != NOTHING}
    return (
        f" Beside other work on the GPU ({'; '.join(sorted(others))}), so times of these are too long."
        if others
        else ""
    )


def _lines(unit: Row) -> Iterator[tuple[str, str, str, str, str, str]]:
    pairs = {pair["between"][1][1]: pair for pair in _pairs(unit)}
    speed = unit.get("speed", ())
    for size, state in dict.fromkeys((row["batch"], row["store"]) for row in speed):
        at = {row["engine"]: row for row in speed if (row["batch"], row["store"]) == (size, state)}
        plain, paged = (at[name]["questions_per_s"] for name in ("contiguous", "paged"))
        pair = pairs.get(size) if state == "warm" else None
        same = (f"{pair['equal']:,} of {pair['questions']:,}", f"{pair['tie']:,}") if pair else ("", "")
        yield f"{size}, {STATES[state]}: questions/s", f"{plain:,.1f}", f"{paged:,.1f}", f"{paged / plain:.1f}", *same
    for size, pair in pairs.items() if not speed else ():
        same = f"{pair['equal']:,} of {pair['questions']:,}", f"{pair['tie']:,}"
        yield f"{size}, beside one contiguous: same answers", "", "", "", *same
    for size in dict.fromkeys(row["batch"] for row in unit.get("decoding", ())):
        for plain, paged in _decoding(unit, size):
            yield f"{size}, decoding: tokens/s", f"{plain:,.0f}", f"{paged:,.0f}", f"{paged / plain:.1f}", "", ""


def _decoding(unit: Row, size: int) -> Iterator[tuple[float, float]]:
    at = {row["engine"]: row["tokens_per_s"] for row in unit.get("decoding", ()) if row["batch"] == size}
    if len(at) == 2:
        yield at["contiguous"], at["paged"]


def _pairs(unit: Row) -> list[Row]:
    """Return what was compared between the engines, not between batches of one."""
    return [pair for pair in unit.get("tokens", ()) if pair["between"][0][0] != pair["between"][1][0]]


def _span(times: list[float]) -> str:
    low, high = min(times), max(times)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
