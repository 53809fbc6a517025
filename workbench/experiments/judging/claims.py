"""Judge the claims of papers (`claim_file`) on any results.

    found = results.read(["shipped", "runs/mine"])
    judged = claims.judge(found)            # a row per claim and place (source, model, data) where it was measured
    claims.verdicts(judged, "runs/mine")    # {"fusionrag-fig-16": "contradicted", …}

The 95% interval decides (for times, 5% to 95% of the runs): on the claimed side of its bar it confirms, on the other
side it contradicts. If it includes the bar, or nothing was measured, the claim stays open. For models that name their
training run, it is Student's interval over `RUNS` runs or more; a single run can only keep an item open. Times need
`TIMED` runs per side; a number without an interval decides equality only. Findings of one item, open ones included, are
held to 5% together (Holm 1979).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.experiments.judging.claim_file import Claim, PaperItem, items, papers
from workbench.experiments.judging.claim_numbers import ClaimTables, MeasuredNumber, numbers
from workbench.metrics.answers import Records, Z
from workbench.results import EXPERIMENTS, Results

RUNS, TIMED, LEVEL = 3, 20, 0.05  # minimum training runs and timed runs to decide; risk of a false verdict
TOYS = ("lab-full", "lab-block")  # names of models of the synthetic corpus
OBSERVED = {"answers": "questions", "timings": "runs", "counts": "observations"}  # meaning of n, by table
CONFIRMED, CONTRADICTED, OPEN = "confirmed", "contradicted", "open"
VERDICTS = (CONFIRMED, CONTRADICTED, OPEN)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Verdict on a claim for one (source, model, data); `number` is None if the source has no measurement."""

    claim: Claim
    source: str
    verdict: str
    decides: bool
    number: MeasuredNumber | None = None
    bar: float = 0.0
    needs: str = ""  #: what would decide it

    @property
    def source_name(self) -> str:
        """Model and data, or the device, of the number: "smollm2 on nq"."""
        row = self.number.where if self.number else {}
        model, data = (str(row.get(name) or "") for name in ("model", "data"))
        return " on ".join(filter(None, (model, data))) or str(row.get("device") or "")

    @property
    def stated_after(self) -> bool:
        """Whether the claim was stated or changed after its number had been measured.

        If the claim has only a day, results of that day count as measured before.
        """
        measured, stated = str(self.number.where.get("time") or "") if self.number else "", self.claim.date
        return bool(measured and stated) and (stated >= measured[:10] if len(stated) == 10 else stated > measured)

    @property
    def text(self) -> str:
        """The number with its interval and n, and the claimed side of the bar."""
        named = self.claim.what + (f" ({self.source_name})" if self.source_name else "")
        if self.number is None:
            return f"{named}: {self.needs or self.claim.test}"
        one = self.number
        seeds = {0: "", 1: ", one training run"}.get(one.seeds, f", {one.seeds} training runs")
        after = ", stated or changed after its data" if self.stated_after else ""
        return f"{named}: {self._form(one.value)}{self._ends}, n = {one.n:,}{seeds}; claimed: {self.side}{after}"

    @property
    def short_number(self) -> str:
        """The number with its interval, "+5.3 points (-4.6 to +12.5)"; without a measurement, what to measure."""
        return self.needs if self.number is None else f"{self._form(self.number.value)}{self._ends}"

    @property
    def side(self) -> str:
        """The claimed side of the bar, as "above 0"."""
        side = "exactly" if self.claim.side == "equals" else self.claim.side
        return f"{side} {self._form(self.bar) if self.bar else 0}"

    @property
    def _ends(self) -> str:
        """The interval, as " (-4.6 to +12.5)"; "" if none was measured, or if its ends are printed alike."""
        if self.number is None:
            return ""
        low, high = (self._form(end).removesuffix(" points") for end in (self.number.low, self.number.high))
        if low == high:
            return ""
        return f" ({low} to {high})"

    def _form(self, value: float) -> str:
        if self.claim.form == "points":
            return f"{100 * value:+z.1f} points"
        form = ".2f" if self.claim.form == "x" else self.claim.form
        return f"{value:{form.replace('.', 'z.')}}{'×' * (self.claim.form == 'x')}"  # z: never -0.000


def judge(found: Results, of: Sequence[PaperItem] | None = None) -> list[Judgement]:
    """Judge each claim on each source: one result per place where it was measured, or what to measure.

    `of` are the items; None: all shipped ones.
    """
    of = items() if of is None else of
    tables = ClaimTables(found, {claim.measure for item in of for claim in item.claims})
    judged: list[Judgement] = []
    for item in of:
        of_item = [one for claim in item.claims for one in _judge(claim, tables)]
        judged += _together([_yielding(one, of_item) for one in of_item])
    return judged


def verdict(judged: Iterable[Judgement]) -> str:
    """Return the verdict of an item: a contradicted claim contradicts it, and it is confirmed if all findings are.

    Mechanisms, which tests verify, confirm an item without findings.
    """
    listed = list(judged)
    decided = {one.verdict for one in listed if one.decides}
    if CONTRADICTED in decided:
        return CONTRADICTED
    kinds = {one.claim.kind for one in listed}
    needed = [one.claim for one in listed if one.claim.kind == ("finding" if "finding" in kinds else "mechanism")]
    confirmed = {one.claim.id for one in listed if one.decides and one.verdict == CONFIRMED}
    unconfirmed = [claim for claim in needed if claim.id not in confirmed and not confirmed.intersection(claim.unless)]
    return CONFIRMED if needed and not unconfirmed and OPEN not in decided else OPEN


def verdicts(judged: Iterable[Judgement], source: str) -> dict[str, str]:
    """Return {item: verdict} in one source, for all shipped items."""
    of_item: dict[str, list[Judgement]] = {item.item: [] for item in items()}
    for one in judged:
        if one.source == source:
            of_item.setdefault(one.claim.item, []).append(one)
    return {item: verdict(found) for item, found in of_item.items()}


def count_verdicts(verdicts: Mapping[str, str]) -> str:
    """Return in words how many items have each verdict, and how many are confirmed by tests alone.

    A list of symbols, which claims nothing, is not counted.
    """
    listed = [item for item in items() if item.item in verdicts and not item.only_names]
    found = Counter(verdicts[item.item] for item in listed)
    shown = sum(item.is_mechanism and verdicts[item.item] == CONFIRMED for item in listed)
    words = {name: f"{found[name]} {name}" for name in VERDICTS}
    if shown:
        words[CONFIRMED] += f" ({shown} of them by tests: they show how a method works)"
    return ", ".join(words.values())


def rows(judged: Iterable[Judgement]) -> Records:
    """Return one row per judged claim, as in files and in `--json`."""
    sentences = {item.item: item.sentence for item in items()}
    return [
        {
            **{name: getattr(one.claim, name) for name in ("id", "paper", "item")},
            "sentence": sentences.get(one.claim.item, ""),
            **{name: getattr(one.claim, name) for name in ("what", "kind")},
            **{name: getattr(one, name) for name in ("source", "where", "verdict", "decides")},
            **{name: getattr(one.number, name, None) for name in ("method", "value", "low", "high", "n", "seeds")},
            "stated": one.claim.date,
            "stated_after_its_data": one.stated_after,
            "side": one.claim.side,
            "bar": one.bar,
            "needs": one.needs,
        }
        for one in judged
    ]


def compare(value: float, low: float, high: float, side: str, bar: float) -> str:
    """Compare an interval with a bar, and return the verdict."""
    if side == "equals":
        return CONFIRMED if low == bar == high else CONTRADICTED
    if low > bar or high < bar:
        return CONFIRMED if (low > bar) == (side == "above") else CONTRADICTED
    return CONTRADICTED if low == high else OPEN


def _judge(claim: Claim, tables: ClaimTables) -> list[Judgement]:
    if claim.kind == "mechanism":
        return [Judgement(claim=claim, source=source, verdict=CONFIRMED, decides=True) for source in tables.sources]
    measured = numbers(tables, claim)
    bars = numbers(tables, _claim_of_bar(claim)) if claim.than else []
    judged = [one for number in measured if (one := _judged(claim, number, bars)) is not None]
    without = [source for source in tables.sources if source not in {one.source for one in judged}]
    empty = Judgement(claim=claim, source="", verdict=OPEN, decides=False, bar=claim.bar, needs=_command(claim))
    return judged + [replace(empty, source=source) for source in without]


def _judged(claim: Claim, number: MeasuredNumber, bars: Sequence[MeasuredNumber]) -> Judgement | None:
    bar = claim.bar
    if claim.than:
        places = [other for other in bars if _place(other) == _place(number)]
        if not places:
            return None
        bar = places[0].high if claim.side == "above" else places[0].low
    outcome = compare(number.value, number.low, number.high, claim.side, bar)
    short = [name for name, least in claim.reach.items() if float(number.where[name]) < least]
    needs = _more(claim, number, bar) if outcome == OPEN else ""
    if short:
        outcome = OPEN
        needs = f"{short[0]} {claim.reach[short[0]]:,.0f} is claimed, {float(number.where[short[0]]):,.0f} measured"
    if claim.table != "answers" and number.low == number.high and claim.side != "equals":
        outcome, needs = OPEN, "no interval was measured"
    decides = claim.kind == "finding"
    least = max(claim.least, TIMED if claim.table == "timings" else 1)
    if decides and number.n < least:
        decides, needs = False, f"at least {least} {OBSERVED[claim.table]} needed, {number.n} measured"
    if decides and str(number.where.get("model") or "").startswith(TOYS):
        decides, needs = False, "models of a synthetic corpus do not decide: measure a model that reads real text"
    keeps_open = outcome == OPEN and number.seeds == 1 and claim.over == "questions"  # all that a single run may do
    if decides and 0 < number.seeds < RUNS and not keeps_open:
        decides, needs = False, f"at least {RUNS} training runs needed, {number.seeds} measured"
    if decides and number.beside is not None and not _within(number.beside, claim.telling):
        decides, needs = False, f"the baseline scores {number.beside:.0%}, too low or high to distinguish methods"
    source = str(number.where["source"])
    return Judgement(claim=claim, source=source, verdict=outcome, decides=decides, number=number, bar=bar, needs=needs)


def _together(of_item: list[Judgement]) -> list[Judgement]:
    """Apply Holm's correction to the findings that decide an item in one source: those that fail become open."""
    risks = {i: _risk(one) for i, one in enumerate(of_item) if one.decides and _has_interval(one)}
    for source in {of_item[i].source for i in risks}:
        own = sorted((i for i in risks if of_item[i].source == source), key=lambda i: risks[i])
        for rank, i in enumerate(own):
            if risks[i] * (len(own) - rank) > LEVEL:
                needs = f"not significant after Holm correction over the {len(own)} findings of this item"
                for failed in own[rank:]:
                    if of_item[failed].verdict != OPEN:
                        of_item[failed] = replace(of_item[failed], verdict=OPEN, needs=needs)
                break
    return of_item


def _has_interval(one: Judgement) -> bool:
    """Return whether an interval was compared with a bar, so that it counts as a test of its item."""
    return one.number is not None and one.claim.side != "equals" and one.number.low < one.number.high


def _risk(one: Judgement) -> float:
    """Return the two-sided p-value of a number against its bar, assuming that the interval is a normal one."""
    number = one.number
    assert number is not None
    beyond = (number.low - one.bar) if number.value > one.bar else (one.bar - number.high)
    half = (number.value - number.low) if number.value > one.bar else (number.high - number.value)
    return math.erfc((1 + beyond / half) * Z / math.sqrt(2)) if half else 0.0


def _place(number: MeasuredNumber) -> tuple[Any, ...]:
    return tuple(str(number.where.get(name)) for name in ("source", "model", "data", "device"))


def _within(value: float, bounds: Mapping[str, float]) -> bool:
    return bounds.get("least", value) <= value <= bounds.get("most", value)


def _claim_of_bar(claim: Claim) -> Claim:
    """Return the claim whose number is the bar: `than` replaces values of the selectors."""
    than = dict(claim.than or {})
    right = None if claim.right is None else {**claim.right, **{k: v for k, v in than.items() if k in claim.right}}
    scope = {**claim.scope, **{k: v for k, v in than.items() if k in claim.scope}}
    return replace(claim, left={**claim.left, **than}, right=right, scope=scope, than=None)


def _yielding(one: Judgement, of_item: Sequence[Judgement]) -> Judgement:
    """Return a claim that does not decide if one that it yields to (`unless`) decides in the same source."""
    others = [other for other in of_item if other.claim.id in one.claim.unless and other.source == one.source]
    return replace(one, decides=False) if any(other.decides for other in others) else one


def _command(claim: Claim) -> str:
    """Return what to measure if there is no measurement."""
    command = EXPERIMENTS.get(claim.experiment, "")
    what = f"{claim.measure or 'times'} of {claim.experiment}"
    return f"{what}: `{command}` measures it" if command else f"{what} is not measured"


def _more(claim: Claim, number: MeasuredNumber, bar: float) -> str:
    """Return how many observations would decide, if the value stays the same."""
    away, half = abs(number.value - bar), max(number.high - number.value, number.value - number.low)
    if not away or number.n < 2:
        return "the interval includes the threshold"
    needed = f"{number.n * (half / away) ** 2 * 1.1:,.0f} {OBSERVED[claim.table]}"
    return f"the interval includes the threshold: about {needed} would decide, if the value stays the same"


__all__ = [
    "CONFIRMED",
    "CONTRADICTED",
    "OPEN",
    "VERDICTS",
    "Claim",
    "Judgement",
    "PaperItem",
    "compare",
    "count_verdicts",
    "items",
    "judge",
    "papers",
    "rows",
    "verdict",
    "verdicts",
]
