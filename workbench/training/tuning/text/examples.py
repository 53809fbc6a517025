"""Training examples: contexts of blocks with questions and answers as token ids, from a file or from new lab worlds.

Example `i` of a source is a pure function of its settings and `i`, so the order depends neither on the number of
processes that draw nor on interruptions.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from math import inf
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from workbench import data
from workbench.core.errors import BadInput, not_allowed
from workbench.data import layouts
from workbench.data.lab_corpus import samples as lab
from workbench.data.lab_corpus.samples import MOST_PASSAGES
from workbench.data.lab_corpus.world import World, passages_of
from workbench.data.layouts import Layout
from workbench.data.sample import Passage, Sample
from workbench.training.tuning.text.data_fields import DataFields
from workbench.training.tuning.text.overlap import without_overlap


@dataclass(frozen=True)
class QuestionAnswer:
    """Token ids of a question and its answer, which includes the end that the layout gives answers."""

    question: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """Context blocks (token ids) and questions over them; each question attends to the context only."""

    id: str
    context: tuple[tuple[int, ...], ...]
    questions: tuple[QuestionAnswer, ...]
    system: int = 0  #: number of leading blocks that are not passages

    @cached_property
    def tokens(self) -> int:
        """Tokens of the context and of all questions over it, as packed in one mode."""
        return sum(map(len, self.context)) + sum(len(qa.question) + max(0, len(qa.answer) - 1) for qa in self.questions)

    @cached_property
    def length(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return sum(map(len, self.context)) + max(len(qa.question) + len(qa.answer) for qa in self.questions)


@dataclass(frozen=True)
class Limits:
    """Maximum tokens of a prompt with its answer, and of a block (None: unlimited)."""

    length: int
    block: int | None = None

    def check(self, example: Example) -> Example:
        """Return the example. Raise BadInput, with its name, length and the limit, if it does not fit."""
        if example.length > self.length:
            raise BadInput(
                f"sample {example.id!r} has {example.length} tokens with its answer, the limit is {self.length}: raise "
                "--max-length or leave it out"
            )
        longest = max(map(len, example.context))
        if self.block and longest > self.block:
            raise BadInput(
                f"sample {example.id!r} has a block of {longest} tokens, over the model's sliding window of "
                f"{self.block}: cut it into shorter blocks, or train in mode full"
            )
        return example


@dataclass(frozen=True)
class OwnAnswers:
    """Samples that the model itself answers before training, greedily under full attention.

    which   "missing": those without a gold answer; "all"
    tokens  maximum tokens of an answer
    """

    which: str
    tokens: int

    def answers_itself(self, sample: Sample) -> bool:
        """Return whether the model answers this sample itself."""
        return self.which == "all" or not _is_answered(sample)


def _is_answered(sample: Sample) -> bool:
    return bool(sample.answers and sample.answers[0].strip())


def example(
    samples: Sequence[Sample],
    layout: Layout,
    tokenizer: PreTrainedTokenizerBase,
    own: Sequence[Sequence[int]] | None = None,
) -> Example:
    """Return an example of samples that share their passages.

    own   token ids of the model's own answer to each sample (() for none), in addition to the gold answer or in its
          place; None: raise BadInput, naming it, for a sample without a gold answer
    """
    for sample in samples:
        if own is None and not _is_answered(sample):
            raise BadInput(f"sample {sample.id!r} has no answer: training needs one")
    prompts = layout.prompts(samples, tokenizer)
    gold = [layout.answer.format(answer=s.answers[0]) if _is_answered(s) else "" for s in samples]
    encoded = layouts.encode(gold, tokenizer)
    questions = []
    for prompt, *answers in zip(prompts, encoded, own or [()] * len(samples), strict=True):
        known = [tuple(answer) for answer in answers if answer] or [()]
        questions += [QuestionAnswer(prompt.blocks[-1].tokens, answer) for answer in known]
    context = tuple(block.tokens for block in prompts[0].context)
    return Example(samples[0].id, context, tuple(questions), int(bool(layout.system)))


GOLDEN = 0.6180339887498949  # its multiples modulo 1, any n consecutive ones, are spread evenly over [0, 1)


class Files:
    """Samples of a file, each once per epoch, shuffled in each epoch. The constructor checks all samples.

    own       samples that the model answers itself; `answered` sets the answers
    overlap   record of the check for overlap with evaluation data, for the card
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
            longest = None if own is None else [(0,) * own.tokens if own.answers_itself(sample) else ()]
            limits.check(example([sample], layout, tokenizer, longest))  # with its longest answer
            texts = (f"{each.name}={getattr(sample, each.name)!r}" for each in fields(sample))
            digest.update(f"Sample({', '.join(texts)})".encode())
        self.identity = f"{len(samples)} samples {digest.hexdigest()[:16]}"
        self._epoch, self._order = -1, list(range(len(samples)))

    def unanswered(self) -> list[int]:
        """Return the indices of the samples that the model has to answer itself."""
        return [i for i, sample in enumerate(self.samples) if self.own and self.own.answers_itself(sample)]

    def sample_alone(self, i: int) -> Sample:
        """Return sample `i` with the passages over which the model answers it."""
        return self.samples[i]

    def set_answers(self, own: Sequence[tuple[int, ...]]) -> None:
        """Set the model's own answers, token ids, one per sample (() for none)."""
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
    """Contexts drawn from the samples of a file, with several questions over each.

    A context takes samples in random order, each with the passages that answer it (those in `supporting_titles`, or all
    if none are named), as long as they fit the number of passages. It asks the questions of these samples, with the
    passages in random order. The number of passages is distributed as in `Lab`. A context that is too long drops
    samples.
    """

    def __init__(self, *args: Any, passages: tuple[int, int], questions: int = 8, **more: Any):
        low, high = passages
        if not 1 <= low <= high:
            raise BadInput(f"mix is {low}-{high}: a range of at least 1 is needed")
        if questions < 1:
            raise BadInput(f"questions is {questions}: at least 1 a context is needed")
        self.passages, self.questions = passages, questions
        self.parts: list[tuple[Passage, ...]] = []
        super().__init__(*args, **more)
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
            questions = chosen[: self.questions]
            mixed = self._example(questions, [replace(self.samples[j], ctxs=tuple(passages)) for j in questions])
            if mixed.length <= self.limits.length or len(chosen) == 1:
                return mixed
            chosen = chosen[:-1]

    def sample_alone(self, i: int) -> Sample:
        """Return sample `i` with the passages that answer it."""
        return replace(self.samples[i], ctxs=self.parts[i])

    def _chosen(self, rng: Random, count: int) -> list[int]:
        chosen, passages = list[int](), set[Passage]()
        for j in rng.sample(range(len(self.samples)), min(len(self.samples), 4 * count)):
            more = passages.union(self.parts[j])
            if len(more) <= count or not chosen:
                chosen, passages = [*chosen, j], more
            if len(passages) >= count:
                break
        return chosen


__all__ = ["Data", "Example", "Files", "Lab", "Limits", "Mixed", "OwnAnswers", "QuestionAnswer", "Source", "example"]


class Lab:
    """New worlds of the lab corpus, each one context with several questions.

    `name` is that of the lab corpus, with its switches (`lab_corpus.style`). The names of worlds are none that
    `data.load(name, seed=…)` can produce, so no context of a trial is trained on; the words of a question can recur
    over another context. The number of passages is log-uniform over `passages` (1 to 2 are as frequent as 20 to 40),
    and spread evenly within any run of consecutive examples, so that batches have about one length.
    """

    def __init__(
        self,
        layout: Layout,
        tokenizer: PreTrainedTokenizerBase,
        limits: Limits,
        seed: int = 0,
        passages: tuple[int, int] = (1, MOST_PASSAGES),
        questions: int = 8,
        kinds: Mapping[str, float] | None = None,
        continued: float | None = None,
        shuffled: float = 0.0,
        name: str = "lab",
    ):
        (low, high), style = passages, lab.style_named(name)
        kinds = lab.SHARE_OF if kinds is None else kinds
        if not 1 <= low <= high <= MOST_PASSAGES:
            raise BadInput(f"passages is {low}-{high}: a range within 1 to {MOST_PASSAGES} is needed")
        if questions < 1:
            raise BadInput(f"questions is {questions}: at least 1 a context is needed")
        if unknown := [kind for kind in kinds if kind not in lab.KINDS]:
            raise not_allowed("kind of question", unknown[0], lab.KINDS)
        if not kinds or not all(0 < weight < inf for weight in kinds.values()):
            raise BadInput(f"kinds are {dict(kinds)}: a positive weight for each is needed")
        for setting, share in (("continued", continued), ("shuffled", shuffled)):
            if share is not None and not 0 <= share <= 1:
                raise BadInput(f"{setting} is {share}: a share from 0 to 1 is needed")
        if shuffled and set(kinds) == {"order"}:
            raise BadInput("questions of kind 'order' alone cannot be asked of shuffled contexts: name other kinds")
        self.kinds, self.shuffled = dict(kinds), shuffled
        self.style = style if continued is None else replace(style, continued=continued)
        self.layout, self.tokenizer, self.limits = layout, tokenizer, limits
        self.seed, self.passages, self.questions = seed, passages, questions
        self.identity = f"{name}, {low}-{high} passages, {questions} questions"
        if self.kinds != lab.SHARE_OF:
            self.identity += f", kinds {' '.join(f'{kind} {weight:g}' for kind, weight in self.kinds.items())}"
        if self.style != style:
            self.identity += f", {continued:.0%} of documents continued"
        if shuffled:
            self.identity += f", {shuffled:.0%} of contexts shuffled"
        for i in range(4):  # the longest ones have nearly equal lengths
            limits.check(self._drawn(f"lab-tune-{seed}-probe-{i}", Random(f"lab tune probe {i}"), high))

    def __getitem__(self, i: int) -> Example:
        rng, (low, high) = Random(f"lab tune {self.seed} {i}"), self.passages
        share = (GOLDEN * i + Random(f"lab tune {self.seed}").random()) % 1
        return self.limits.check(self._drawn(f"lab-tune-{self.seed}-{i}", rng, round(low * (high / low) ** share)))

    def _drawn(self, name: str, rng: Random, count: int) -> Example:
        shuffle = self.shuffled and rng.random() < self.shuffled
        kinds = {kind: weight for kind, weight in self.kinds.items() if not (shuffle and kind == "order")}
        while True:
            world = World(rng, count + (count + 1) // 2, self.style)
            context = world.context(count)
            passages = passages_of(context)
            subjects = {kind: about for kind, about in world.questions(context).items() if about and kind in kinds}
            if len(passages) == count and subjects:
                break
        if shuffle:
            passages = tuple(rng.sample(passages, len(passages)))
        asked: dict[tuple[str, str], Sample] = {}  # by text and first title, so that each question occurs once
        for _ in range(self.questions):
            kind = rng.choices(list(subjects), [kinds[kind] for kind in subjects])[0]
            question = world.ask(kind, rng.choice(subjects[kind]))
            sample = Sample(question.text, question.answers, passages, question.titles, kind=kind, id=name)
            asked.setdefault((question.text, question.answers[0]), sample)
        return example(list(asked.values()), self.layout, self.tokenizer)


Source = Files | Lab  # endless examples; `identity` has everything that determines example i


@dataclass(frozen=True)
class Data(DataFields):
    """Training data: `lab`, a shipped name or a file. Most other settings are for `lab` only.

    Passages of a shuffled context are in random order, so that only their text tells which belong together. With `mix`,
    contexts are drawn from the samples of a file (`Mixed`). `exclude` names files that are used for evaluation.
    """

    def source(
        self,
        layout: Layout,
        tokenizer: PreTrainedTokenizerBase,
        limits: Limits,
        seed: int,
        own: OwnAnswers | None = None,
    ) -> Source:
        """Return the source. Raises BadInput for unknown data, a sample that does not fit, and lab settings for a file.

        own   samples that the model answers itself; None: every sample needs an answer
        """
        if self.overlap not in ("refuse", "drop"):
            raise BadInput(f"overlap is {self.overlap!r}: allowed are refuse, drop")
        options = {name: getattr(self, name) for name in ("passages", "questions", "kinds", "continued", "shuffled")}
        options = {name: value for name, value in options.items() if value is not None}
        if lab.is_lab(self.name):
            if self.mix or self.exclude:
                raise BadInput("mix and exclude are for files: lab contexts are drawn, and never those of a trial")
            return Lab(layout, tokenizer, limits, seed, name=self.name, **options)
        samples = data.load(self.name, answered=own is None)
        if options.keys() - ({"questions"} if self.mix else set()):
            names = "passages, questions, kinds, continued and shuffled"
            raise BadInput(f"{names} are for data 'lab', which is drawn; {self.name} has its own")
        samples, overlap = without_overlap(samples, self.exclude, self.overlap == "drop")
        common = (samples, layout, tokenizer, limits, seed, own, overlap)
        return Mixed(*common, passages=self.mix, **options) if self.mix else Files(*common)
