"""A prompt with the text of each of its tokens, from the user's own text or from a sample of a data set."""

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from workbench import data
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.data import layouts, segment
from workbench.data.layouts import Layout
from workbench.data.sample import Sample


@dataclass(frozen=True)
class PromptView:
    """A prompt with the text of its tokens; `supporting` lists the blocks that the answer needs, as the data says."""

    prompt: Prompt
    tokens: list[str]  #: [T] text of every token
    source: str  #: origin of the prompt, for captions
    question: str
    answers: tuple[str, ...] = ()
    supporting: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()  #: texts of the blocks

    @property
    def opening(self) -> str:
        """The source, as a sentence begins with it."""
        return self.source[:1].upper() + self.source[1:]

    @property
    def block_of(self) -> np.ndarray:
        """[T] block of every token."""
        return self.prompt.block_of.numpy()


def of_text(text: str, question: str, tokenizer: PreTrainedTokenizerBase, layout: Layout) -> PromptView:
    """Return a prompt of the user's text, cut into blocks by `segment.text`, and a question.

    Raises BadInput where one of them is empty.
    """
    if not text.strip():
        raise BadInput("text is empty: give at least one passage before the question")
    if not question.strip():
        raise BadInput("text was given without a question: the last block, which is computed anew, is the question")
    system = [layout.system] if layout.system else []
    pieces = [*system, *segment.text(text.strip() + "\n"), layout.question.format(question=question.strip())]
    prompt = layouts.prompts([pieces], tokenizer, bos=layout.bos)[0]
    return PromptView(prompt, texts(prompt, tokenizer), "the reader's text", question, pieces=tuple(pieces))


def of_sample(sample: Sample, source: str, tokenizer: PreTrainedTokenizerBase, layout: Layout) -> PromptView:
    """Return the prompt of a sample."""
    prompt = layout.prompt(sample, tokenizer)
    first = 1 if layout.system else 0
    supporting = [i + first for i, ctx in enumerate(sample.ctxs) if ctx.title in sample.supporting_titles]
    source += f", {sample.kind}" if sample.kind else ""
    answer = (sample.question, sample.answers, tuple(supporting))
    return PromptView(prompt, texts(prompt, tokenizer), source, *answer, tuple(layout.pieces(sample)))


def reading(
    text: str,
    question: str,
    tokenizer: PreTrainedTokenizerBase,
    layout: Layout,
    name: str = "lab",
    number: int = 0,
    passages: int | None = None,
    seed: int = 0,
) -> PromptView:
    """Return the prompt of the user's text and question if given, else of sample `number` of data set `name`.

    Raises BadInput for text or question alone, and for a number that the data does not have.
    """
    if text.strip() or question.strip():
        return of_text(text, question, tokenizer, layout)
    samples = data.load(name, samples=number + 1 if data.is_generated(name) else None, seed=seed, passages=passages)
    if not 0 <= number < len(samples):
        raise BadInput(f"sample is {number}: {name} has samples 0 to {len(samples) - 1}")
    return of_sample(samples[number], f"sample {number} of {name} (seed {seed})", tokenizer, layout)


def texts(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the text of each token of a prompt, decoded on its own."""
    return [str(tokenizer.decode([token])) for token in prompt.tokens.tolist()]
