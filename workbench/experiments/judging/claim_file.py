"""Claims of papers as data: `data/claims.json` has every numbered table and figure, with a row for each finding.

Papers whose figures are not all followed (CacheBlend, EPIC, newer methods), and this workbench, have single claims.

{"papers": {name: title}, "methods": {name: selector}, "items": [{item, sentence, published, missing, claims: […]}]}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from workbench.core.errors import BadInput, shorten
from workbench.core.utils.annotations import check_fields
from workbench.data.assets import ROOT
from workbench.experiments.judging.claim_numbers import ANSWERS, ROWS, ClaimScope
from workbench.results.schema import MEASURES

FILE = ROOT / "claims.json"
KINDS = {"fig": "Figure", "table": "Table", "claim": "Claim"}  # kinds of items, by prefix of their ids
SELECTORS = ("left", "right", "full", "scope", "than")
HOW: Mapping[str, Any] = {"answers": ANSWERS, "counts": ROWS, "timings": ("ratio",), "": ()}  # statistics by table


@dataclass(frozen=True, kw_only=True)
class Claim(ClaimScope):
    """One finding of a paper's item: which number is claimed to be on which side of which bar.

    kind    "finding" decides its item; "shown" is only displayed; "mechanism" is verified by a test of our own code
    bar     a number; with `than`, the near end of the interval of the same number where `than` replaces selectors
    least   minimum number of observations to decide; results with fewer are only shown
    telling bounds {"least", "most"} of the right side's mean, outside of which a comparison is uninformative
    reach   columns that must be as large as the paper's own, else the claim stays open
    unless  ids of claims of this item: if one of them decides, this one is only shown
    form    number format: "points", "x" (a ratio), or a format specification
    test    of a mechanism: the test that verifies it
    stated  when it was last changed, "2026-11-24T09:30:00 3fa9c1d2": the time in UTC, or the day, and the `digest` of
            its content
    """

    id: str
    item: str
    what: str
    kind: Literal["mechanism", "finding", "shown"] = "finding"
    side: Literal["above", "below", "equals"] = "above"
    bar: float = 0.0
    than: Mapping[str, Any] | None = None
    least: int = 1
    telling: Mapping[str, float] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)
    unless: tuple[str, ...] = ()
    form: str = ".3g"
    test: str = ""
    stated: str = ""

    @property
    def paper(self) -> str:
        """The first word of the item."""
        return self.item.partition("-")[0]

    @property
    def date(self) -> str:
        """When the claim was stated: "2026-11-24T09:30:00", or a day."""
        return self.stated.partition(" ")[0]


@dataclass(frozen=True, kw_only=True)
class PaperItem:
    """A numbered table, figure or claim of a paper: its statement in one sentence, its published numbers, its claims.

    `missing` states what of it is out of reach, and why. `same_as` names an item of another version that claims the
    same. `only_names` is true for a list of symbols, which claims nothing.
    """

    item: str  #: "fusionrag-fig-16"; notebook cells name the items that they answer
    sentence: str
    published: str = ""
    missing: str = ""
    same_as: str = ""
    only_names: bool = False
    claims: tuple[Claim, ...] = ()

    @property
    def paper(self) -> str:
        """The first word of the item."""
        return self.item.partition("-")[0]

    @property
    def is_mechanism(self) -> bool:
        """Whether the item shows how a method works, which tests of our own code verify, and has no finding."""
        kinds = {claim.kind for claim in self.claims}
        return "mechanism" in kinds and "finding" not in kinds

    @property
    def name(self) -> str:
        """The paper's name of the item: "Figure 16"."""
        _, kind, number = self.item.split("-")
        return f"{KINDS[kind]} {number}"


def digest(row: Mapping[str, Any], methods: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return an eight-character hash of the fields that decide a claim; texts and dates are left out.

    A method's name is replaced by its selector in `methods`, so that a changed selector changes its claims.
    """
    content = {name: value for name, value in row.items() if name not in ("id", "item", "what", "stated")}
    content |= {name: _selector(content[name], methods) for name in SELECTORS if content.get(name) is not None}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


@cache
def load(path: Path = FILE) -> tuple[Mapping[str, str], tuple[PaperItem, ...]]:
    """Return {paper: title} and the items of a file of claims. Raises BadInput for an invalid row."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        papers, methods, rows = (content[name] for name in ("papers", "methods", "items"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise BadInput(f"{shorten(path)} is not a file of claims: {shorten(problem)}") from None
    items = tuple(_item(row, methods, path) for row in rows)
    for item in items:
        ids = [claim.id for claim in item.claims]
        if double := [one for one in ids if ids.count(one) > 1]:
            raise BadInput(f"{shorten(path)}: claim {double[0]} occurs twice")
        if unknown := {other for claim in item.claims for other in claim.unless} - set(ids):
            raise BadInput(f"{shorten(path)}: unless names {min(unknown)!r}, which {item.item} does not have")
        if item.paper not in papers:
            raise BadInput(f"{shorten(path)}: {item.item} is of no paper there; papers are {', '.join(papers)}")
    return papers, items


def papers() -> Mapping[str, str]:
    """Return {paper: title}."""
    return load()[0]


def items() -> tuple[PaperItem, ...]:
    """Return all tables, figures and claims, by paper."""
    return load()[1]


def _item(row: Mapping[str, Any], methods: Mapping[str, Any], path: Path) -> PaperItem:
    name = row.get("item") if isinstance(row, Mapping) else None
    parts = name.split("-") if isinstance(name, str) else []
    if len(parts) != 3 or parts[1] not in KINDS or not parts[2].isdecimal():
        raise BadInput(
            f"{shorten(path)}: an item is named {name!r}; {', '.join(f'PAPER-{kind}-N' for kind in KINDS)} is needed"
        )
    try:
        claims = tuple(_claim({"item": name, **one}, methods) for one in row["claims"])
        item = PaperItem(**{**row, "claims": claims})
        check_fields(item)
    except (BadInput, TypeError, KeyError) as problem:
        raise BadInput(f"{shorten(path)}, {name}: {shorten(problem)}") from None
    if not claims and not item.missing:
        raise BadInput(f"{shorten(path)}, {name}: an item without claims has to say what is missing")
    return item


def _claim(row: Mapping[str, Any], methods: Mapping[str, Any]) -> Claim:
    if odd := sorted(set(row) - {each.name for each in fields(Claim)}):
        raise BadInput(f"{odd[0]!r} is no field of a claim")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    for name in SELECTORS:
        if values.get(name) is not None:
            values[name] = _selector(values[name], methods)
    claim = Claim(**values)
    check_fields(claim)
    if claim.stated and claim.stated.partition(" ")[2] != digest(row, methods):
        raise BadInput(f"{claim.id} was changed since it was stated: run data/benchmarks/state_claims.py to date it")
    if claim.kind == "mechanism":
        if not claim.test:
            raise BadInput(f"{claim.id} is a mechanism: the test that holds it is needed")
    elif claim.how not in HOW[claim.table]:
        raise BadInput(
            f"{claim.id} asks for {claim.how!r} of table {claim.table!r}: allowed are {', '.join(HOW[claim.table])}"
        )
    elif (claim.right is None) != (claim.how == "value"):
        raise BadInput(f"{claim.id} asks for {claim.how!r}: only 'value' has no right side")
    elif claim.table == "answers" and claim.measure not in MEASURES:
        raise BadInput(f"{claim.id} speaks of {claim.measure!r}, which is no score of answers")
    return claim


def _selector(wanted: Any, methods: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a selector in which a method's name, alone or as `like`, is replaced by the method's fields."""
    selector = {"like": wanted} if isinstance(wanted, str) else dict(wanted)
    name = selector.pop("like", None)
    if name is not None and name not in methods:
        raise BadInput(f"method {name!r} is not among {', '.join(methods)}")
    return {**(methods[name] if name is not None else {}), **selector}
