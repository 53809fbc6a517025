"""The curriculum of the lab model: from one fact a passage to forty passages, one change at a time.

A model does not learn to look facts up by gradient descent on the full task; it learns it on a small task and keeps it.
Each stage therefore changes little, and the next one begins when the answers of this one are right. The whole
vocabulary is in use from the first step on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from workbench.data.lab_corpus.words import LISTS
from workbench.data.lab_corpus.world import Style, World, passages_of
from workbench.data.layouts import LAB, Layout
from workbench.training.common import TensorBatch

ANSWER, REST, NOTHING = 1, 2, 0  # roles of a token: part of an answer, other text, padding


@dataclass(frozen=True)
class Stage:
    """One step of the curriculum."""

    passages: tuple[int, int]  # fewest and most passages of a context
    style: Style
    kinds: dict[str, float]  # weights of the kinds of question
    batch: int = 64  # contexts a step
    questions: int = 8  # asked over each context, one after the other
    recalls: float = 0.0  # share of them that restate a fact instead ("Recall: Ada Kelric works for …")
    years: float = 0.0  # share of them that ask which of two years is first, without a passage to look it up in
    until: float = 0.9  # next stage at this share of answers wholly right
    most: int = 1000  # or after this many steps


_EASY = {"single-hop": 1.0}
_CONTINUED = {"single-hop": 0.6, "continuation": 0.4}
_TWO_HOP = {"single-hop": 0.25, "continuation": 0.25, "two-hop": 0.35, "order": 0.15}
_ALL = {"single-hop": 0.15, "continuation": 0.2, "two-hop": 0.3, "comparison": 0.2, "order": 0.15}

_PLAIN = Style(pronouns=0.0, continued=0.0, aliases=0.0, asides=0.0, alike=1.0)
_UNHINTED = Style(hints=0.0, alike=0.3)
STAGES = (
    Stage((2, 4), replace(_PLAIN, facts=1), _EASY, 256, 4, 0.5, 0.0, 0.90, 3000),
    Stage((2, 4), replace(_PLAIN, facts=2), _EASY, 128, 6, 0.4, 0.1, 0.90, 3000),
    Stage((2, 4), replace(_PLAIN, facts=3, pronouns=0.2, asides=0.3, alike=0.7), _EASY, 128, 8, 0.3, 0.1, 0.90),
    Stage((2, 5), replace(_PLAIN, facts=4, pronouns=0.5, asides=1.0, alike=0.5), _EASY, 96, 8, 0.2, 0.1, 0.90),
    Stage((2, 6), _UNHINTED, _CONTINUED, 96, 8, 0.2, 0.1, 0.90),
    Stage((2, 8), _UNHINTED, _TWO_HOP, 96, 12, 0.1, 0.1, 0.80),
    Stage((2, 12), _UNHINTED, _ALL, 64, 16, 0.1, 0.1, 0.80),
    Stage((1, 40), Style(hints=0.5), _ALL, 64, 16, 0.05, 0.1),
)


@dataclass(frozen=True)
class Batch(TensorBatch):
    """Questions and answers over contexts, a row each; answers are counted over the whole batch."""

    tokens: torch.Tensor  # [B, T] token ids
    roles: torch.Tensor  # [B, T]
    answers: torch.Tensor  # [B, T] which answer a token belongs to, -1: none
    kinds: list[str]  # of answer 0, 1, …


def draw(stage: Stage, rng: Random, tokenizer: PreTrainedTokenizerBase, layout: Layout = LAB) -> Batch:
    """Draw a batch of a stage: contexts of one number of passages, each with several questions and their answers."""
    low, high = stage.passages
    count = round(low * (high / low) ** rng.random())  # as many contexts of 1 to 2 passages as of 20 to 40
    rows = max(8, stage.batch * 8 // max(8, count))
    pieces = [list(_pieces(stage, World(rng, count, stage.style), count, layout)) for _ in range(rows)]
    texts = [text for row in pieces for text, _, _ in row]
    encoded = iter(tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False))
    kinds: list[str] = []
    columns = []  # per row: (token, role, answer) of every token
    for row in pieces:
        columns.append([(tokenizer.bos_token_id, REST, -1)])
        for _, role, kind in row:
            answer = len(kinds) if kind else -1
            kinds += [kind] if kind else []
            columns[-1] += [(token, role, answer) for token in next(encoded).ids]
    width = -(-max(map(len, columns)) // 64) * 64
    tokens, roles, answers = (torch.full((rows, width), fill) for fill in (tokenizer.pad_token_id, NOTHING, -1))
    for r, column in enumerate(columns):
        for tensor, values in zip((tokens, roles, answers), zip(*column, strict=True), strict=True):
            tensor[r, : len(column)] = torch.tensor(values)
    return Batch(tokens, roles, answers, kinds)


def _pieces(stage: Stage, world: World, count: int, layout: Layout) -> Iterator[tuple[str, int, str]]:
    """Yield text, role and kind of question of every piece of a training sequence."""
    rng, context = world.rng, world.context(count)
    yield layout.system, REST, ""
    for passage in passages_of(context):
        yield layout.passage.format(title=passage.title, text=passage.text), REST, ""
    subjects = {kind: about for kind, about in world.questions(context).items() if about and stage.kinds.get(kind)}
    asked: set[Any] = set()  # no question twice: an answer must come from the passages, not from an earlier answer
    for _ in range(stage.questions if subjects else 0):
        kind = rng.choices(list(subjects), [stage.kinds[kind] for kind in subjects])[0]
        about = rng.choice(subjects[kind])
        question = world.ask(kind, about)
        if (key := (kind, *sorted(question.titles)) if kind == "comparison" else id(about)) in asked:
            continue
        asked.add(key)
        if rng.random() < stage.years:
            first, second = sorted(rng.sample(LISTS["year"], 2))
            years = " or ".join(rng.sample((first, second), 2))
            yield layout.question.format(question=f"Which year is first, {years}?"), REST, ""
            yield layout.answer.format(answer=first), ANSWER, "years"
        elif rng.random() < stage.recalls and kind in ("single-hop", "continuation"):
            entity, fact = about
            before, after = rng.choice((fact.said, *fact.relation.says)).split("{o}")
            yield f"Recall: {before.format(s=entity.name).rstrip()}", REST, ""
            yield f" {fact.object}", ANSWER, "recall"
            yield f"{after}\n", REST, ""
        else:
            yield layout.question.format(question=question.text), REST, ""
            yield layout.answer.format(answer=question.answers[0]), ANSWER, kind
