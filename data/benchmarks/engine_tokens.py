"""Greedy tokens of both engines beside each other, and what their differences come from.

    for rows in compared(loaded, trial, prompts, (1, 16)): ...

Where tokens differ, the place is asked once more: of the contiguous path. A gap of at most one step of the dtype
between the logits of the two tokens is a tie; up to `NEAR` steps is what rounding in some layers adds up to. The same
model in fp32 tells what the dtype rounds there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.experiments.judging import engine_margins
from workbench.experiments.trials.trial import Trial
from workbench.methods import Method, finish
from workbench.metrics.fidelity import predict
from workbench.models.loading import Loaded
from workbench.store import UNLIMITED, MemoryStore

NEAR = 8  # steps of the dtype between logits that rounding in the layers before may make
LISTED = 200  # differences that are listed
LIKELY = 20  # tokens of a row whose logits tell what a dtype rounds
PORTION = 50  # prompts between two entries of `compared`
Tokens = list[tuple[int, ...]]


def compared(
    loaded: Loaded,
    trial: Trial,
    prompts: Sequence[Prompt],
    sizes: Sequence[int],
    done: Sequence[dict[str, Any]] = (),
    portion: int = PORTION,
    exact: Loaded | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Yield after every `portion` of prompts how the tokens of pages differ from those of one request at a time.

    One entry of `differences` for each number of requests that pages answer at once; `done` are entries of earlier
    prompts, which are not answered again; `exact` is the same model in fp32. Nothing is timed, so other work may use
    the GPU meanwhile.
    """
    method = trial.method(system=bool(loaded.layout.system))
    ways = [("contiguous", 1), *(("paged", size) for size in sizes)]
    stores = {way: MemoryStore(UNLIMITED) for way in ways}
    rows = list(done)
    for begin in range(rows[0]["questions"] if rows else 0, len(prompts), portion):
        asked = prompts[begin : begin + portion]
        said: list[Tokens] = []
        for engine, size in ways:
            one = replace(trial, batch=size, engine=engine)
            generations = one.answer(asked, loaded, stores[engine, size], None, method)
            said.append([generation.tokens for generation in generations])
        found = [differences(loaded, asked, method, said[0], other, exact) for other in said[1:]]
        if exact is not None:
            pairs = zip(asked, said[0], strict=True)
            moves = [engine_margins.margins(loaded.model, exact.model, one, method, tokens) for one, tokens in pairs]
            both = zip(found, said[1:], strict=True)
            found = [row | {"margins": engine_margins.counted(_alike(moves, said[0], other))} for row, other in both]
        between = [{"between": [list(ways[0]), list(way)]} for way in ways[1:]]
        before: list[dict[str, Any] | None] = [*rows] or [None for _ in found]
        rows = [x | _added(old, new) for x, old, new in zip(between, before, found, strict=True)]
        yield rows


def _alike(moves: Sequence[list[tuple[float, float]]], said: Tokens, others: Tokens) -> list[tuple[float, float]]:
    """Join the margins of the tokens of `said` that other answers have alike, up to the first that differs."""
    answers = zip(moves, said, others, strict=True)
    return [move for found, one, other in answers for move in (found if one == other else found[: _first(one, other)])]


def _first(said: Sequence[int], other: Sequence[int]) -> int:
    """Return where two answers begin to differ."""
    return next(i for i, (a, b) in enumerate(zip_longest(said, other)) if a != b)


def _added(before: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Add entries of `differences`; questions are counted on."""
    if before is None:
        return more
    if "margins" in more and "margins" in before:
        more = more | {"margins": engine_margins.added(before["margins"], more["margins"])}
    counts = {name: before[name] + count for name, count in more.items() if isinstance(count, int)}
    listed = [row | {"question": before["questions"] + row["question"]} for row in more["listed"]]
    kept = {"margins": more["margins"]} if "margins" in more else {}
    return counts | kept | {"listed": sorted([*before["listed"], *listed], key=lambda row: -row["steps"])[:LISTED]}


def differences(
    loaded: Loaded,
    prompts: Sequence[Prompt],
    method: Method,
    said: Tokens,
    others: Tokens,
    exact: Loaded | None = None,
) -> dict[str, Any]:
    """Compare two engines' greedy tokens: {questions, equal, tie, near, apart, listed}.

    With `exact`, the same model in fp32, also `rounded`: differences of two tokens that fp32 holds no further apart
    than twice what the dtype moves a logit of that row.
    """
    differing = [i for i, (one, other) in enumerate(zip(said, others, strict=True)) if one != other]
    listed = [
        _difference(loaded, exact.model if exact else None, prompts[i], method, said[i], others[i]) | {"question": i}
        for i in differing
    ]
    counts = {kind: sum(row["kind"] == kind for row in listed) for kind in ("tie", "near", "apart")}
    counts |= {"rounded": sum(row["exact_gap"] <= 2 * row["rounding"] for row in listed)} if exact else {}
    listed.sort(key=lambda row: -row["steps"])
    return {"questions": len(said), "equal": len(said) - len(differing), **counts, "listed": listed[:LISTED]}


def _difference(
    loaded: Loaded,
    exact: PreTrainedModel | None,
    prompt: Prompt,
    method: Method,
    said: Sequence[int],
    other: Sequence[int],
) -> dict[str, Any]:
    """Tell by how much the first two tokens that differ do: {at, gap, steps, kind}.

    With `exact` also {exact_gap, rounding, moved, paged_moved}: by how much the contiguous engine, and pages, move the
    fp32 gap.

    An end token is none of an answer: it stands for the likeliest token that the other path did not take.
    """
    model, at = loaded.model, _first(said, other)
    a, b = (answer[at] if at < len(answer) else None for answer in (said, other))
    logits = _at(model, prompt, method, said[:at]).float()
    first = int(logits.argmax()) if a is None else a
    second = int(logits.topk(2).indices[1 if first == int(logits.argmax()) else 0]) if b is None else b
    if a is None and first == second:
        first = int(logits.topk(2).indices[1])
    gap = abs(float(logits[first] - logits[second]))
    largest = float(logits[[first, second]].abs().max())
    steps = gap / _step(largest, model.dtype)
    kind = "tie" if steps <= 1 else "near" if steps <= NEAR else "apart"
    found = {"at": at, "gap": gap, "steps": steps, "kind": kind}
    if exact is not None:
        wanted = _at(exact, prompt, method, said[:at]).float()
        exact_gap = float(wanted[first] - wanted[second])
        found |= {"exact_gap": abs(exact_gap), "rounding": rounding(logits, wanted)}
        found["moved"] = abs(float(logits[first] - logits[second]) - exact_gap)
        paged = engine_margins.over_pages(loaded, prompt, method, said[:at])
        if paged is not None:
            found["paged_moved"] = abs(float(paged[first] - paged[second]) - exact_gap)
    return found


def rounding(logits: Tensor, exact: Tensor) -> float:
    """Return by how much a dtype moves the likeliest logits of a row [V] at most, apart from what all move."""
    likely = exact.topk(min(LIKELY, len(exact))).indices
    moved = (logits - exact)[likely]
    return float((moved - moved.mean()).abs().max())


def _at(model: PreTrainedModel, prompt: Prompt, method: Method, before: Sequence[int]) -> Tensor:
    """Return the logits [V] behind a prompt and some tokens of its answer, by the contiguous path."""
    ready = method.begin(model, [prompt], None, len(before) + 1)
    logits = finish(model, ready)
    return predict(model, ready, logits, [(*before, 0)])[0][-1]


def _step(size: float, dtype: torch.dtype) -> float:
    """Return the distance of two neighbouring numbers of a dtype at this size."""
    _, exponent = torch.frexp(torch.tensor(max(size, 1e-30)))
    return float(torch.finfo(dtype).eps * 2.0 ** (int(exponent) - 1))
