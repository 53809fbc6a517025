"""The prompt editor over precomputed answers: a grid of passage orders, selectors and ratios."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, permutations
from math import factorial
from pathlib import Path
from time import perf_counter
from typing import Any

from workbench.app.explore.editor.answers import PromptAnswers
from workbench.app.explore.editor.choices import FIELDS, LONG, EditorRequest, PromptPiece, entry, menus, published
from workbench.app.explore.editor.stored import RESULTS, GridPool, PromptPage, choice_of, has_ratio, order_of
from workbench.app.explore.editor.text import PromptReader, piece_id
from workbench.core.errors import BadInput, not_allowed
from workbench.core.utils.stages import stage
from workbench.methods.registry import is_whole
from workbench.methods.select import check_budget
from workbench.models import model_names
from workbench.models.given import Given, Model, loaded_of, reading_of
from workbench.models.loading import Loaded
from workbench.models.model_names import check_length
from workbench.plots.marks.styles import SELECTORS, SPARSE_METHODS

RATIOS = (0.05, 0.15, 0.4)
SELECTED = ("none", "query_guided", "answer_guided")
ORDERS = 24


def prompt_page(
    model: Model,
    prompt: Given,
    question: str = "",
    *,
    orders: int = ORDERS,
    selectors: Sequence[str] = SELECTED,
    ratios: Sequence[float] = RATIOS,
    sparse_methods: Sequence[str] = (),
    **chosen: Any,
) -> PromptPage:
    """Answer a prompt over a grid, and return a page that needs no kernel.

    `orders`, `selectors`, `ratios` and `sparse_methods` are those of `answered_page`, the other arguments those of
    `prompt`.
    """
    grid: dict[str, Any] = {
        "orders": orders,
        "selectors": selectors,
        "ratios": ratios,
        "sparse_methods": sparse_methods,
    }
    return answered_page(*first_request(model, prompt, question, **chosen), **grid)


def first_request(
    model: Model,
    prompt: Given,
    question: str = "",
    *,
    max_new_tokens: int = 24,
    answers: Sequence[str] = (),
    **chosen: Any,
) -> tuple[PromptAnswers, EditorRequest, dict[str, Any]]:
    """Return the answering engine, the first request and the menus; arguments as of `prompt`."""
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
    wanted = EditorRequest.of({"blocks": blocks, "select": "query_guided", **chosen})
    if "beside" not in chosen and wanted.select != "none":
        wanted = replace(wanted, beside=({**wanted.fields, "select": "none", "sparse": "none"},), place=1)
    wanted.method(len(reading.prompt))
    listed = menus(loaded.model)
    bare = wanted.sparse.partition("(")[0]  # a method's menu entry includes its options
    listed["sparse"] = [{**one, "value": wanted.sparse} if one["value"] == bare else one for one in listed["sparse"]]
    options: dict[str, Any] = {**listed, "methods": published(listed), "source": reading.source}
    options |= {"supporting": [piece_id(number) for number in reading.supporting]}
    options |= {"template": loaded.layout.passage.format(title="A title", text="Write a passage.")}
    options |= {"around": {name: _around(getattr(loaded.layout, name)) for name in ("passage", "question")}}
    options |= {"long": len(reading.prompt) > LONG, "model": _name(loaded), "look": True}
    options["max_new_tokens"] = max_new_tokens
    return PromptAnswers(loaded, reader, answers or reading.answers, max_new_tokens), wanted, options


def _around(template: str) -> list[str]:
    """Return the texts before, between and after the fields of a layout's template."""
    return template.format(title="\0", text="\0", question="\0").split("\0")


def _name(loaded: Loaded) -> str:
    """Return a name that `models.load` accepts: of a shipped or fetched model, or its folder."""
    path = Path(str(loaded.model.name_or_path))
    return path.name if path.name in model_names.names() else str(path)


def answered_page(
    work: PromptAnswers,
    wanted: EditorRequest,
    options: dict[str, Any],
    *,
    orders: int = ORDERS,
    selectors: Sequence[str] = SELECTED,
    ratios: Sequence[float] = RATIOS,
    sparse_methods: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    expected_seconds: float = 0.0,
) -> PromptPage:
    """Answer a prompt over a grid.

    orders            maximum number of passage orders: the original, then increasingly changed ones; if these are all
                      there are, also the prompt without each passage
    selectors         selectors of recomputed tokens; "none" and "all" have no ratio
    ratios            shares of recomputed tokens
    sparse_methods    sparse methods of the menu, beside the requested one and none
    expected_seconds  seconds that one answer takes, where known: for the time left

    Raises BadInput for an unknown selector or sparse method, or a ratio outside 0 to 1.
    """
    _check(wanted, orders, selectors, ratios, sparse_methods)
    first = _first(wanted, selectors, ratios)
    tiles = list(dict.fromkeys(("none", first.sparse, *(each for each in sparse_methods if each != "dense"))))
    grid = [
        replace(first, select=spec, ratio=ratio, sparse=sparse)
        for sparse in tiles
        for spec in selectors
        for ratio in _ratios(spec, ratios)
    ]
    choices = {choice_of(one): replace(one, beside=(), place=0) for one in (*grid, *first.columns)}
    arranged = arrangements(wanted.pieces, orders)
    total = len(arranged) * len(choices)
    ends = perf_counter() + expected_seconds * (total + len(wanted.columns))
    said = [""]

    def say(at: str = f"caching the passages; then {total:,} answers") -> None:
        """Report a stage with the time left, once a second at most."""
        if (text := f"{at}{about_left(ends - perf_counter())}") != said[-1]:
            said[:] = [text]
            stage(text)

    say()
    work.warm_up(wanted, say)  # times are then those of a warm model over cached blocks
    pool, results, done = GridPool(), dict[str, dict[str, Any]](), 0
    if progress:
        progress(0, total)
    for number, pieces in enumerate(arranged, 1):
        of_order = results.setdefault(order_of(pieces), {})
        for name, choice in choices.items():
            at = f"order {number} of {len(arranged)}, {choice.name}"
            if done:  # the bar shows the time left from here on
                stage(at)
            else:
                say(at)
            last = dict(work.stages(replace(choice, pieces=pieces)))
            del last["text"]["prompt"]
            of_order[name] = {kind: pool.add_values(last[kind]) for kind in RESULTS}
            done += 1
            if progress:
                progress(done, total)
    return PromptPage(
        {
            "options": {**options, **_menus(options, selectors, first, tiles), "ratios": list(ratios)}
            | {"note": _note(arranged, len(choices)), "orders": list(results)}
            | {"methods": [], "look": False, "editable": False},
            "wanted": first.to_json(),
            "results": results,
            "choices": len(choices),
            "values": pool.values,
            "fields": [list(names) for names in pool.fields],
        }
    )


def about_left(seconds: float) -> str:
    """Return an estimate as the end of a sentence; "" without one."""
    return f", about {seconds:,.0f} s left" if seconds >= 1 else ""


def _first(wanted: EditorRequest, selectors: Sequence[str], ratios: Sequence[float]) -> EditorRequest:
    """Return the page's first view: the requested one, or the nearest on the page."""
    spec = wanted.select if wanted.select in selectors else selectors[0]
    return replace(wanted, select=spec, ratio=min(ratios, key=lambda ratio: abs(ratio - wanted.ratio)), revision=0)


def _ratios(spec: str, ratios: Sequence[float]) -> Sequence[float]:
    return ratios if has_ratio(spec) else (0.0,)


def _note(arranged: Sequence[tuple[PromptPiece, ...]], choices: int) -> str:
    """Return a sentence on what the page holds."""
    whole = max(map(len, arranged))
    orders = sum(len(pieces) == whole for pieces in arranged)
    less = f", {len(arranged) - orders} with one passage removed" if orders < len(arranged) else ""
    return (
        f"Precomputed: {orders} {'order' if orders == 1 else 'orders'} of the passages{less}, each with {choices} "
        "choices of selector, ratio and sparse attention. In a running notebook, workbench.explore.prompt(model, "
        "prompt) also edits and adds passages and answers any order."
    )


def arrangements(pieces: Sequence[PromptPiece], most: int) -> list[tuple[PromptPiece, ...]]:
    """Return at most `most` orders of the passages; if these are all, also the prompt without each passage."""
    passages = [piece for piece in pieces if piece.kind == "passage"]
    head = tuple(piece for piece in pieces if piece.kind == "system")
    tail = tuple(piece for piece in pieces if piece.kind == "question")
    orders = list(islice(permutations(passages), most))
    if len(passages) > 1 and len(orders) == factorial(len(passages)):
        orders += [tuple(kept for kept in passages if kept is not left_out) for left_out in passages]
    return [(*head, *order, *tail) for order in orders]


def _check(
    wanted: EditorRequest, orders: int, selectors: Sequence[str], ratios: Sequence[float], sparse_methods: Sequence[str]
) -> None:
    if orders < 1 or not selectors or not ratios:
        raise BadInput(f"orders {orders}, {len(selectors)} selectors, {len(ratios)} ratios: one of each at least")
    for ratio in ratios:
        check_budget(ratio)
    for spec in selectors:
        replace(wanted, select=spec).method()
    for spec in sparse_methods:
        replace(wanted, sparse=spec).method()


def _menus(
    options: dict[str, Any], selectors: Sequence[str], first: EditorRequest, tiles: Sequence[str]
) -> dict[str, Any]:
    """Return menus reduced to what the page holds."""
    menus = {
        name: [one for one in options[name] if one["value"] == getattr(first, name)]
        or [entry(getattr(first, name), "")]
        for name in FIELDS
    }
    titles = {one["value"]: one["title"] for one in options["sparse"]}
    sparse = [entry(spec, titles.get(spec, SPARSE_METHODS.name_of(spec))) for spec in tiles]
    return menus | {"select": [entry(spec, SELECTORS.name_of(spec)) for spec in selectors], "sparse": sparse}
