"""The prompt one can touch, answered beforehand over a grid: a page without a kernel, or an output of a notebook.

A page holds orders of the passages, times selectors, times ratios. What several answers share is stored once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from math import factorial
from os import PathLike
from pathlib import Path
from typing import Any

from workbench.app.explore.editor.answers import PromptAnswers
from workbench.app.explore.editor.choices import FIELDS, LONG, PromptPiece, Wanted, entry, menus, published
from workbench.app.explore.editor.html import MIME, page, summary
from workbench.app.explore.editor.text import PromptReader, piece_id
from workbench.core.errors import BadInput, not_allowed
from workbench.core.utils.files import check_file, write_text
from workbench.methods.registry import is_whole
from workbench.methods.select import check_budget
from workbench.models import model_names
from workbench.models.given import Given, Model, loaded_of, reading_of
from workbench.models.loading import Loaded
from workbench.models.model_names import check_length
from workbench.plots.marks.styles import SELECTORS

RATIOS = (0.05, 0.15, 0.4)
SELECTED = ("none", "query_guided", "answer_guided")
ORDERS = 24
OTHERS = ("prepare", "positions", "sparse")  # what a page's choices have in common
RESULTS = ("text", "answers", "bill", "heat")


def prompt_page(
    model: Model,
    prompt: Given,
    question: str = "",
    *,
    orders: int = ORDERS,
    selectors: Sequence[str] = SELECTED,
    ratios: Sequence[float] = RATIOS,
    **chosen: Any,
) -> "PromptPage":
    """Answer a prompt over a grid and return it as a page that needs no kernel.

    `orders`, `selectors` and `ratios` are those of `answered_page`, the other arguments those of `prompt`.
    """
    return answered_page(*asked(model, prompt, question, **chosen), orders=orders, selectors=selectors, ratios=ratios)


def asked(
    model: Model,
    prompt: Given,
    question: str = "",
    *,
    max_new_tokens: int = 24,
    answers: Sequence[str] = (),
    **chosen: Any,
) -> tuple[PromptAnswers, Wanted, dict[str, Any]]:
    """Return what answers a prompt, what is wanted at first and the menus; arguments as of `prompt`."""
    if not is_whole(max_new_tokens, 1):
        raise BadInput(f"max_new_tokens {max_new_tokens!r}: it is a whole number, 1 or more")
    allowed = {*FIELDS, "ratio", "beside", "place"}
    if unknown := set(chosen) - allowed:
        raise not_allowed("choice", min(unknown), sorted(allowed))
    loaded = loaded_of(model)
    check_length(max_new_tokens, loaded.spec.context)
    reading = reading_of(loaded, prompt, question)
    reader = PromptReader(loaded.tokenizer, loaded.layout)
    blocks = [{"id": piece.id, "text": piece.text, "kind": piece.kind} for piece in reader.pieces(reading)]
    wanted = Wanted.of({"blocks": blocks, "select": "query_guided", **chosen})
    if "beside" not in chosen and wanted.select != "none":
        wanted = replace(wanted, beside=({**wanted.fields, "select": "none", "sparse": "none"},), place=1)
    wanted.method(len(reading.prompt))
    listed = menus(loaded.model)
    bare = wanted.sparse.partition("(")[0]  # the menu's entry of a method has the options that it is asked with
    listed["sparse"] = [{**one, "value": wanted.sparse} if one["value"] == bare else one for one in listed["sparse"]]
    options: dict[str, Any] = {**listed, "methods": published(listed), "source": reading.source}
    options |= {"supporting": [piece_id(number) for number in reading.supporting]}
    options |= {"template": loaded.layout.passage.format(title="A title", text="Write a passage.")}
    options |= {"long": len(reading.prompt) > LONG, "model": _name(loaded), "look": True}
    options["max_new_tokens"] = max_new_tokens
    return PromptAnswers(loaded, reader, answers or reading.answers, max_new_tokens), wanted, options


def _name(loaded: Loaded) -> str:
    """Return what loads a model: the name of a shipped or fetched one, or its folder."""
    path = Path(str(loaded.model.name_or_path))
    return path.name if path.name in model_names.names() else str(path)


@dataclass(frozen=True)
class PromptPage:
    """Answers of one prompt over a grid, as plain JSON values; a notebook shows it without a kernel."""

    data: dict[str, Any]

    @property
    def answered(self) -> int:
        """How many combinations of order, selector and ratio it holds."""
        return sum(len(choices) for choices in self.data["results"].values())

    def result(self, wanted: Wanted) -> dict[str, Any]:
        """Return {text, answers, bill, heat} of one combination. Raises BadInput for one that is not there."""
        found = self.data["results"].get(_order(wanted.pieces), {}).get(_choice(wanted))
        if found is None:
            raise BadInput("this combination of order, selector and ratio is not on the page")
        return {name: self._built(found[name]) for name in RESULTS}

    def records(self) -> list[dict[str, Any]]:
        """Return a record a combination: order, select, ratio, both answers, how far they are apart, and the cost.

        They are those of the first view's method, and of plain reuse, which attends to everything where the page has it
        so: both as prepared, and at the positions, of the first view.
        """
        plain = {**self.data["wanted"], "select": "none", "sparse": "none"}
        dense = _choice_of(plain) in next(iter(self.data["results"].values()))
        records = []
        for order, choices in self.data["results"].items():
            for choice, index in choices.items():
                spec, ratio, *others = choice.split("\t")
                shown = plain if dense and spec == "none" else self.data["wanted"]
                if others != [shown[name] for name in OTHERS]:
                    continue
                answers, bill = self._built(index["answers"]), self._built(index["bill"])
                said = {"answer": answers["method"]["text"], "full": answers["full"]["text"]}
                said |= {"right": answers["method"]["right"], "right_full": answers["full"]["right"]}
                said |= {"kl": answers["kl"], "agree": answers["agree"], "rows": bill["computed"]}
                took = {"flops": bill["flops"]["method"], "flops_full": bill["flops"]["full"], "tokens": bill["length"]}
                records.append({"order": order, "select": spec, "ratio": float(ratio), **said, **took})
        return records

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the page as one HTML file."""
        check_file("path", path)
        path = Path(path)
        if not path.parent.is_dir():
            raise BadInput(f"{path.parent} is no folder: the page cannot be written there")
        write_text(path, page(self.data))
        return path

    def _built(self, index: Any) -> Any:
        if not isinstance(index, list):
            return self.data["values"][index]
        names = self.data["fields"][index[0]]
        return {name: self._built(each) for name, each in zip(names, index[1:], strict=True)}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        wanted = Wanted.of(self.data["wanted"])
        shown, *beside = [self.result(column) for column in wanted.columns]
        for name in ("answers", "bill"):
            shown[name] = shown[name] | {"beside": [one[name] for one in beside]}
        return {
            MIME: self.data,
            "text/html": summary(shown, wanted.names),
            "text/plain": f"a prompt, {self.answered} answers",
        }


class GridPool:
    """JSON values by number, each once; an object is the number of its fields and the numbers of their values."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.fields: list[tuple[str, ...]] = []
        self._known: dict[str, int] = {}

    def put(self, value: dict[str, Any]) -> list[int]:
        """Put the values of an object and return what stands for it."""
        names = tuple(value)
        if names not in self.fields:
            self.fields.append(names)
        return [self.fields.index(names), *(self._number(each) for each in value.values())]

    def _number(self, value: Any) -> int:
        text = json.dumps(value)
        if text not in self._known:
            self._known[text] = len(self.values)
            self.values.append(value)
        return self._known[text]


def answered_page(
    work: PromptAnswers,
    wanted: Wanted,
    options: dict[str, Any],
    *,
    orders: int = ORDERS,
    selectors: Sequence[str] = SELECTED,
    ratios: Sequence[float] = RATIOS,
    progress: Callable[[int, int], None] | None = None,
) -> PromptPage:
    """Answer a prompt over a grid.

    orders     most orders of the passages: their own order, then ever more changed ones; where these are all, each
               passage is left out once, too
    selectors  that choose what is recomputed; "none" and "all" have no ratio
    ratios     shares that are recomputed

    Raises BadInput for an unknown selector or a ratio outside 0 to 1.
    """
    _check(wanted, orders, selectors, ratios)
    first = _first(wanted, selectors, ratios)
    grid = [replace(first, select=spec, ratio=ratio) for spec in selectors for ratio in _ratios(spec, ratios)]
    choices = {_choice(one): replace(one, beside=(), place=0) for one in (*grid, *first.columns)}
    arranged = arrangements(wanted.pieces, orders)
    work.warm_up(wanted)  # so that times are those of a model at work, over blocks that are cached
    pool, results, done = GridPool(), dict[str, dict[str, Any]](), 0
    for pieces in arranged:
        of_order = results.setdefault(_order(pieces), {})
        for name, choice in choices.items():
            last = dict(work.stages(replace(choice, pieces=pieces)))
            del last["text"]["prompt"]
            of_order[name] = {kind: pool.put(last[kind]) for kind in RESULTS}
            done += 1
            if progress:
                progress(done, len(arranged) * len(choices))
    return PromptPage(
        {
            "options": {**options, **_menus(options, selectors, first), "ratios": list(ratios), "editable": False}
            | {"note": _note(arranged, len(choices)), "methods": [], "look": False},
            "wanted": first.to_json(),
            "results": results,
            "choices": len(choices),
            "values": pool.values,
            "fields": [list(names) for names in pool.fields],
        }
    )


def _first(wanted: Wanted, selectors: Sequence[str], ratios: Sequence[float]) -> Wanted:
    """Return what a page shows first: what is wanted, or what is nearest to it on the page."""
    spec = wanted.select if wanted.select in selectors else selectors[0]
    return replace(wanted, select=spec, ratio=min(ratios, key=lambda ratio: abs(ratio - wanted.ratio)), revision=0)


def _ratios(spec: str, ratios: Sequence[float]) -> Sequence[float]:
    return ratios if _has_ratio(spec) else (0.0,)


def _note(arranged: Sequence[tuple[PromptPiece, ...]], choices: int) -> str:
    """Say what a page holds."""
    whole = max(map(len, arranged))
    orders = sum(len(pieces) == whole for pieces in arranged)
    less = f", {len(arranged) - orders} without one of them" if orders < len(arranged) else ""
    return (
        f"Answered beforehand: {orders} {'order' if orders == 1 else 'orders'} of the passages{less}, each with "
        f"{choices} choices of selector and ratio. With a kernel, workbench.explore.prompt(model, prompt) also edits "
        "and adds passages, and answers any order."
    )


def arrangements(pieces: Sequence[PromptPiece], most: int) -> list[tuple[PromptPiece, ...]]:
    """Return the orders of the passages, at most `most`; where those are all, also the prompt without each passage."""
    passages = [piece for piece in pieces if piece.kind == "passage"]
    head = tuple(piece for piece in pieces if piece.kind == "system")
    tail = tuple(piece for piece in pieces if piece.kind == "question")
    orders = list(islice(permutations(passages), most))
    if len(passages) > 1 and len(orders) == factorial(len(passages)):
        orders += [tuple(kept for kept in passages if kept is not left_out) for left_out in passages]
    return [(*head, *order, *tail) for order in orders]


def _check(wanted: Wanted, orders: int, selectors: Sequence[str], ratios: Sequence[float]) -> None:
    if orders < 1 or not selectors or not ratios:
        raise BadInput(f"orders {orders}, {len(selectors)} selectors, {len(ratios)} ratios: one of each at least")
    for ratio in ratios:
        check_budget(ratio)
    for spec in selectors:
        replace(wanted, select=spec).method()


def _menus(options: dict[str, Any], selectors: Sequence[str], first: Wanted) -> dict[str, Any]:
    """Return menus with what the page holds."""
    menus = {
        name: [one for one in options[name] if one["value"] == getattr(first, name)]
        or [entry(getattr(first, name), "")]
        for name in FIELDS
    }
    return menus | {"select": [entry(spec, SELECTORS.name_of(spec)) for spec in selectors]}


def _has_ratio(spec: str) -> bool:
    return spec.partition("(")[0] not in ("none", "all")


def _order(pieces: Sequence[PromptPiece]) -> str:
    return " ".join(piece.id for piece in pieces)


def _choice(wanted: Wanted) -> str:
    return _choice_of(wanted.fields)


def _choice_of(fields: Mapping[str, Any]) -> str:
    ratio = fields["ratio"] if _has_ratio(fields["select"]) else 0
    return "\t".join((fields["select"], f"{ratio:g}", *(fields[name] for name in OTHERS)))
