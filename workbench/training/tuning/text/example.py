"""One training example: a context of blocks with questions and answers over it, in token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from workbench.core.errors import BadInput
from workbench.data import layouts
from workbench.data.layouts import Layout
from workbench.data.sample import Sample


@dataclass(frozen=True)
class QuestionAnswer:
    """A question and its answer, token ids; `answer` ends as the layout's answers end."""

    question: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """Context blocks (token ids) and questions over them; each is asked of the context alone."""

    id: str
    context: tuple[tuple[int, ...], ...]
    questions: tuple[QuestionAnswer, ...]
    system: int = 0  # blocks at the front that are no passages

    @cached_property
    def tokens(self) -> int:
        """Tokens of the context and of all questions over it, as they are packed in one mode."""
        return sum(map(len, self.context)) + sum(len(qa.question) + max(0, len(qa.answer) - 1) for qa in self.questions)

    @cached_property
    def length(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return sum(map(len, self.context)) + max(len(qa.question) + len(qa.answer) for qa in self.questions)


@dataclass(frozen=True)
class Limits:
    """Most tokens of a prompt with its answer, and of a block (None: any number)."""

    length: int
    block: int | None = None

    def check(self, example: Example) -> Example:
        """Return the example; raise BadInput that names it, its length and the limit where it does not fit."""
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
    """Which samples the model itself answers before training, greedily under full attention.

    which   "missing": those without a gold answer; "all"
    tokens  of an answer, at most
    """

    which: str
    tokens: int

    def wanted(self, sample: Sample) -> bool:
        """Return whether the sample gets an own answer."""
        return self.which == "all" or not _is_answered(sample)


def _is_answered(sample: Sample) -> bool:
    return bool(sample.answers and sample.answers[0].strip())


def example(
    samples: Sequence[Sample],
    layout: Layout,
    tokenizer: PreTrainedTokenizerBase,
    own: Sequence[Sequence[int]] | None = None,
) -> Example:
    """Make an example of samples that share their passages.

    own   for each sample token ids of the model's own answer (none: ()), which stands beside the gold answer or in its
          place; None: BadInput, naming it, for a sample without a gold answer
    """
    for sample in samples:
        if own is None and not _is_answered(sample):
            raise BadInput(f"sample {sample.id!r} has no answer: training needs one")
    prompts = layout.prompts(samples, tokenizer)
    gold = [layout.answer.format(answer=s.answers[0]) if _is_answered(s) else "" for s in samples]
    encoded = layouts.encode(gold, tokenizer)
    questions = []
    for prompt, *answers in zip(prompts, encoded, own or [()] * len(samples), strict=True):
        given = [tuple(answer) for answer in answers if answer] or [()]
        questions += [QuestionAnswer(prompt.blocks[-1].tokens, answer) for answer in given]
    context = tuple(block.tokens for block in prompts[0].context)
    return Example(samples[0].id, context, tuple(questions), int(bool(layout.system)))
