"""Training examples from the samples of a file: as they are, or mixed into fresh contexts.

Example `i` of a source is a pure function of its settings and `i`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from workbench.core.errors import BadInput
from workbench.data.layouts import Layout
from workbench.data.sample import Passage, Sample
from workbench.training.tuning.text.example import Example, Limits, OwnAnswers, example

GOLDEN = 0.6180339887498949  # its multiples, modulo 1, spread evenly over [0, 1): so do any n neighbours among them


class Files:
    """Samples of a file, each once an epoch, in an order of every epoch's own; all are checked when this is made.

    own       which of them the model answers itself; `answered` then says what it answered
    overlap   record of the check that no text is scored on, for the card
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        layout: Layout,
        tokenizer: PreTrainedTokenizerBase,
        limits: Limits,
        seed: int = 0,
        own: OwnAnswers | None = None,
        overlap: dict[str, Any] | None = None,
    ):
        self.samples, self.layout, self.tokenizer, self.seed = samples, layout, tokenizer, seed
        self.limits, self.own, self.overlap = limits, own, overlap
        self.own_answers: Sequence[tuple[int, ...]] | None = None if own is None else [()] * len(samples)
        digest = hashlib.sha256()
        for sample in samples:
            longest = None if own is None else [(0,) * own.tokens if own.wanted(sample) else ()]
            self._check(example([sample], layout, tokenizer, longest))
            digest.update(repr(sample).encode())
        self.identity = f"{len(samples)} samples {digest.hexdigest()[:16]}"
        self._epoch, self._order = -1, list(range(len(samples)))

    def _check(self, longest: Example) -> None:
        """Refuse the example of a sample that does not fit, its longest own answer included."""
        self.limits.check(longest)

    def unanswered(self) -> list[int]:
        """Return the places of the samples that the model is to answer itself."""
        return [i for i, sample in enumerate(self.samples) if self.own and self.own.wanted(sample)]

    def alone(self, i: int) -> Sample:
        """Return sample `i` with the passages over which the model answers it."""
        return self.samples[i]

    def answered(self, own: Sequence[tuple[int, ...]]) -> None:
        """Take the model's own answers, token ids, one a sample (() for none)."""
        self.own_answers = own

    def _example(self, numbers: Sequence[int], samples: Sequence[Sample]) -> Example:
        own = self.own_answers and [self.own_answers[j] for j in numbers]
        return example(samples, self.layout, self.tokenizer, own)

    def __getitem__(self, i: int) -> Example:
        epoch, place = divmod(i, len(self.samples))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self.samples)))
            Random(f"tune {self.seed} epoch {epoch}").shuffle(self._order)
        j = self._order[place]
        return self._example([j], [self.samples[j]])


class Mixed(Files):
    """Contexts that are drawn afresh from the samples of a file, with several questions over each.

    A context takes samples in random order, each with the passages that answer it (those in `supporting_titles`; where
    none are named, all), as long as they fit the number of passages; it asks the questions of those samples, and the
    passages come in random order. The number of passages spreads as in `Lab`. A context that is too long loses
    samples.
    """

    def __init__(self, *given: Any, passages: tuple[int, int], questions: int = 8, **more: Any):
        low, high = passages
        if not 1 <= low <= high:
            raise BadInput(f"mix is {low}-{high}: a range of at least 1 is needed")
        if questions < 1:
            raise BadInput(f"questions is {questions}: at least 1 a context is needed")
        self.passages, self.questions = passages, questions
        self.parts: list[tuple[Passage, ...]] = []
        super().__init__(*given, **more)
        for sample in self.samples:
            named = tuple(passage for passage in sample.ctxs if passage.title in sample.supporting_titles)
            self.parts.append(named or sample.ctxs)
        self.identity += f", mixed {low}-{high} passages, {questions} questions"

    def __getitem__(self, i: int) -> Example:
        rng, (low, high) = Random(f"tune mix {self.seed} {i}"), self.passages
        share = (GOLDEN * i + Random(f"tune mix {self.seed}").random()) % 1
        chosen = self._chosen(rng, round(low * (high / low) ** share))
        order = rng.random()
        while True:
            passages = list(dict.fromkeys(chain.from_iterable(self.parts[j] for j in chosen)))
            Random(order).shuffle(passages)
            asked = chosen[: self.questions]
            found = self._example(asked, [replace(self.samples[j], ctxs=tuple(passages)) for j in asked])
            if found.length <= self.limits.length or len(chosen) == 1:
                return found
            chosen = chosen[:-1]

    def alone(self, i: int) -> Sample:
        """Return sample `i` with the passages that answer it."""
        return replace(self.samples[i], ctxs=self.parts[i])

    def _chosen(self, rng: Random, count: int) -> list[int]:
        chosen, held = list[int](), set[Passage]()
        for j in rng.sample(range(len(self.samples)), min(len(self.samples), 4 * count)):
            more = held.union(self.parts[j])
            if len(more) <= count or not chosen:
                chosen, held = [*chosen, j], more
            if len(held) >= count:
                break
        return chosen
