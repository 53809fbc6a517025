"""Whether tokens that two engines answer otherwise are ties in a dtype: by what that dtype does to other tokens.

    bound = largest `moved` of `margins(...)`

The margin of a token is how far apart fp32 holds the two likeliest. The dtype moves it: by how much is measured of the
contiguous engine, on all tokens that both engines answer alike, so what is in question has no part in it. A differing
token is a tie where fp32 holds the two tokens no further apart than this largest move, and pages, asked for the same
place, move them no further either. How many of all tokens have so small a margin says what such a test is worth.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.methods import Method, finish
from workbench.methods.engines import PAGE, choose_engine, pages_of
from workbench.methods.paged.answers import PagedAnswers
from workbench.methods.paged.prefill import prefill
from workbench.methods.paged.request import needed, requests_of
from workbench.methods.sampling import SamplingParams
from workbench.metrics.fidelity import predict
from workbench.models.loading import Loaded
from workbench.store import UNLIMITED, MemoryStore

EDGES = tuple(2.0 ** (i / 2) for i in range(-24, 13))  # logits, by half octaves: how margins are counted


def predicted(model: PreTrainedModel, prompt: Prompt, method: Method, tokens: Sequence[int]) -> Tensor:
    """Return the logits [A, V] of every token of an answer, given those before it, by the contiguous engine."""
    ready = method.begin(model, [prompt], None, len(tokens))
    return predict(model, ready, finish(model, ready), [tuple(tokens)])[0].float()


def margins(
    model: PreTrainedModel, exact: PreTrainedModel, prompt: Prompt, method: Method, tokens: Sequence[int]
) -> list[tuple[float, float]]:
    """Return (margin, moved) of every token of an answer: of the two tokens that `exact`, in fp32, finds likeliest."""
    if not tokens:
        return []
    wanted = predicted(exact, prompt, method, tokens)
    values, two = wanted.topk(2)
    found = predicted(model, prompt, method, tokens).to(wanted.device).gather(1, two)
    margin = values[:, 0] - values[:, 1]
    return list(zip(margin.tolist(), (found[:, 0] - found[:, 1] - margin).abs().tolist(), strict=True))


def counted(found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Summarise `margins`: {answered, moved_most, margin_counts}; counts of margins below each of EDGES, and above."""
    places = torch.bucketize(torch.tensor([margin for margin, _ in found]), torch.tensor(EDGES))
    counts = torch.bincount(places, minlength=len(EDGES) + 1).tolist()
    most = max((moved for _, moved in found), default=0.0)
    return {"answered": len(found), "moved_most": most, "margin_counts": counts}


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Join two summaries."""
    return {
        "answered": one["answered"] + other["answered"],
        "moved_most": max(one["moved_most"], other["moved_most"]),
        "margin_counts": [a + b for a, b in zip(one["margin_counts"], other["margin_counts"], strict=True)],
    }


def share_below(summary: Mapping[str, Any]) -> float:
    """Return the share of answered tokens whose margin is no larger than the largest move, rounded up to an edge."""
    edge = int(torch.bucketize(torch.tensor(summary["moved_most"]), torch.tensor(EDGES)))
    return float(sum(summary["margin_counts"][: edge + 1]) / max(1, summary["answered"]))


def ties(listed: Sequence[Mapping[str, Any]], bound: float) -> int:
    """Count the differences of two tokens that fp32 holds no further apart than `bound`.

    And that pages, where they were asked, move no further.
    """
    return sum(row["exact_gap"] <= bound and row.get("paged_moved", 0.0) <= bound for row in listed)


@torch.no_grad()
def over_pages(loaded: Loaded, prompt: Prompt, method: Method, before: Sequence[int]) -> Tensor | None:
    """Return the logits [V] behind a prompt and some tokens of its answer, by pages; None where they cannot answer."""
    model, store = loaded.model, MemoryStore(UNLIMITED)
    if choose_engine(model, method, [prompt], len(before) + 1).name != "paged":
        return None
    params = SamplingParams(max_new_tokens=len(before) + 2)
    requests = requests_of(model, loaded.tokenizer, [prompt], method, store, params)
    (request,) = requests
    with pages_of(model).use(model):
        runner, blocks = pages_of(model).of(model, needed(request, PAGE))
        answers = PagedAnswers(model, requests)
        try:
            prefill(runner, blocks, requests)
            logits = request.logits
            if before:
                assert request.paged is not None
                (logits,) = runner.prefill([request.paged], [torch.tensor(before)])
        finally:
            answers.release(request)
    assert logits is not None
    return logits.float()
