"""Readable method names for rows of result tables, and columns that figures group by."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput, not_allowed
from workbench.methods import registry
from workbench.methods.presets import METHODS
from workbench.metrics.measures import MEASURES, Measure
from workbench.plots.marks.styles import SELECTORS, SeriesStyle, looks_of


def measure_of(name: str, table: pd.DataFrame) -> Measure:
    """Return a measure by its column. Raises BadInput if it is unknown or missing from the table."""
    if name not in MEASURES:
        raise not_allowed("metric", name, MEASURES)
    columns = [name, f"{name}_low", f"{name}_high"]
    if not set(columns) <= set(table.columns) or not table[name].notna().any():
        raise BadInput(f"the table has no metric {name!r}: its trials were run without it")
    return MEASURES[name]


FIELDS = ("mode", "positions", "prepare", "select", "ratio", "correct", "attend", "sparse", "chunk")


def with_method_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Add columns that describe every row's method, and drop the ratio of methods that select no tokens.

    name         in words, e.g. "Full Reuse + answer-guided at 15%"
    neighbours   number of neighbours in preprocessing, 0 for the system prompt only; None for other preprocessings
    embedder     the embedder that finds neighbours
    cached       the preprocessing in words
    rule         the sparse method without options, e.g. "compact(over=bfla)"; "" if dense
    """
    rows = rows.assign(ratio=rows.ratio.where(~rows["select"].isin(["", "none"]) | rows.correct.map(_chooses)))
    fields = list(FIELDS)
    number = rows.groupby(fields, sort=False, dropna=False).ngroup()
    methods = rows.loc[~number.duplicated(), fields].astype(object)
    known = [_columns(each) for each in methods.where(methods.notna(), None).to_dict("records")]
    added = pd.DataFrame(known, columns=["name", "neighbours", "embedder", "cached", "rule"])
    return rows.assign(**{name: added[name].take(number).set_axis(rows.index) for name in added})


def in_words(method: Mapping[str, Any]) -> str:
    """Return a method's name from its `FIELDS` that differ from the defaults."""
    row = {name: method.get(name) for name in FIELDS} | {"mode": method.get("mode", "block")}
    if row["select"] in (None, "", "none") and not _chooses(row["correct"]):
        row["ratio"] = None
    return _columns(row)[0]


@cache
def _chooses(spec: Any) -> bool:
    """Return whether a correction selects tokens to recompute; an unknown one does not."""
    if not isinstance(spec, str) or spec in ("", "none"):
        return False
    from workbench.methods import correct  # imports torch

    try:
        return correct.from_spec(spec).chooses
    except BadInput:
        return False


TITLES = {  # of preprocessings, corrections and attention rules: published names, or words
    "agent_kv_shift": "AgentKVShift",
    "ape": "APE",
    "behind_document": "behind a document",
    "chosen": "chosen keys",
    "fuse": "fused with fresh keys",
    "kvcomm": "KVCOMM",
    "link0": "Link0",
    "packet": "KV Packet",
    "relax_kv": "RelaxKV",
}


def spec_title(spec: str) -> str:
    """Return a spec with its method's title, as in "APE(scale=0.8)"; without a title it stays unchanged."""
    name, bracket, options = spec.partition("(")
    return TITLES.get(name, name) + bracket + options


def cached(prepare: str) -> str:
    """Describe what a preprocessing conditions blocks on."""
    name, options = registry.parse(prepare or "independent")
    behind = {"after_system": "the system prompt", "with_neighbours": _near(options)}.get(name)
    return f"after {behind}" if behind else "alone" if name == "independent" else spec_title(prepare)


def sparse_look(spec: str) -> SeriesStyle:
    """Return the style of a sparse method: CompactAttention has its selector's colour, dotted."""
    return next(iter(looks_of([spec]).values()))


def _columns(method: Mapping[str, Any]) -> tuple[str, int | None, str, str, str]:
    name, options = registry.parse(method["prepare"] or "independent")
    count = {"after_system": 0, "with_neighbours": int(options.get("n", 10))}.get(name)
    embedder = str(options.get("embedder", "tfidf"))
    found = _name(method, name, options), count, embedder, cached(method["prepare"])
    return *found, _rule(method["sparse"] or "none")


def _name(method: Mapping[str, Any], prepare: str, options: Mapping[str, Any]) -> str:
    at = "" if method["ratio"] is None else f" at {method['ratio']:.0%}"
    if title := _published(tuple(method[name] or PLAIN.get(name, "none") for name in PUBLISHED)):
        return title + at
    words = [_mode(method, prepare, options)]
    if method["select"] not in (None, "", "none"):
        words.append(SELECTORS.name_of(method["select"]) + at)
    words += [spec_title(method[name]) for name in ("correct", "attend") if method[name] not in (None, "", "none")]
    if _chooses(method["correct"]) and method["select"] in (None, "", "none"):
        words[1] += at
    if method["sparse"] not in (None, "", "none"):
        dense = method["mode"] == "full" and len(words) == 1
        words = [method["sparse"]] if dense else [*words, method["sparse"]]
    chunk = f" in chunks of {method['chunk']:.0f}" if method["chunk"] else ""
    return " + ".join(words) + chunk


PUBLISHED = ("mode", "positions", "prepare", "select", "correct", "attend", "sparse", "chunk")
PLAIN = {"positions": "re-encoded", "prepare": "independent"}


@cache
def _published(fields: tuple[Any, ...]) -> str:
    """Return the title of the published correction or attention rule with these `PUBLISHED` fields, or ""."""
    for one in METHODS.values():
        its = tuple(one.fields.get(name, PLAIN.get(name, "none")) for name in PUBLISHED)
        if its == fields and ("correct" in one.fields or "attend" in one.fields):
            return one.title
    return ""


def _mode(method: Mapping[str, Any], prepare: str, options: Mapping[str, Any]) -> str:
    if method["mode"] != "block":
        return {"full": "full attention"}.get(method["mode"], method["mode"])
    if method["positions"] in ("naive", "shared"):
        return {"naive": "naive positions (PromptCache)", "shared": "shared positions"}[method["positions"]]
    if prepare == "with_neighbours":
        return _near(options)
    return {"after_system": "Full Reuse", "independent": "independent blocks"}.get(prepare) or spec_title(
        method["prepare"]
    )


def _near(options: Mapping[str, Any]) -> str:
    n, by = options.get("n", 10), options.get("embedder", "tfidf")
    return f"{n} neighbour{'s' if n != 1 else ''}" + (f" by {by}" if by != "tfidf" else "")


def _rule(spec: str) -> str:
    name, options = registry.parse(spec)
    if name in ("none", "dense"):
        return ""
    return f"{name}(over={_rule(str(options['over']))})" if "over" in options else name
