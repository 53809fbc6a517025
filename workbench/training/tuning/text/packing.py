"""Pack several examples, in one mode or in both, into one sequence without padding between them.

Full attention is block attention over a single block, so one mask serves both modes: a token attends to the tokens
before it in its own block, and a token of a question or answer also to the whole context of its example. Questions over
the same context follow each other. They do not attend to each other, and the positions of each continue the context's.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor

from workbench.core.masks import Sees
from workbench.models.weights.soft_tokens import SoftTokens
from workbench.training.common import TensorBatch
from workbench.training.tuning.text.examples import Example

FULL, BLOCK = 0, 1  # modes as numbers
NO_SOFT = SoftTokens()
UNKNOWN = 0  # target after a question without a known answer, which only a teacher can supply


@dataclass(frozen=True)
class PackedExamples(TensorBatch):
    """One packed sequence of T tokens with N answers, whose A tokens are predicted from A of its rows."""

    tokens: Tensor  #: [T] token ids
    positions: Tensor  #: [T] position ids for RoPE
    places: Tensor  #: [T] distance from the example's first token, for sliding windows
    examples: Tensor  #: [T] example copy that a token belongs to; -1: padding
    blocks: Tensor  #: [T] block within the whole sequence; a question with its answer is a block
    in_question: Tensor  #: [T] bool: of a question or answer, not of the context
    wide: Tensor  #: [T] bool: attends to the whole context before it, as questions, answers and links do
    rows: Tensor  #: [A] rows from which answer tokens are predicted
    targets: Tensor  #: [A] token ids to predict
    answers: Tensor  #: [A] index of the answer that a target belongs to; -1 for question tokens
    modes: Tensor  #: [N] FULL or BLOCK

    @property
    def weight(self) -> float:
        """Sum of the weights of all rows in the loss."""
        return float(len(self.rows))

    def sees(self, window: int | None = None) -> Sees:
        """Return the mask over indices of the packed sequence, within a sliding `window` if the layer has one."""
        examples, blocks, in_question, places = self.examples, self.blocks, self.in_question, self.places
        wide = self.wide

        def sees(row: Tensor, col: Tensor) -> Tensor:
            of_context = wide[row] & ~in_question[col] & (examples[row] == examples[col])
            seen = (col <= row) & ((blocks[row] == blocks[col]) | of_context)
            return seen if window is None else seen & (places[row] - places[col] < window)

        return sees


# Columns of a growing packed sequence; "spans" has (tokens, example, in_question, wide).
Columns = defaultdict[str, list[Any]]


def pack(
    examples: Sequence[Example],
    copies: Sequence[str],
    naive: bool = False,
    multiple: int = 1,
    asked: bool = False,
    least: int = 0,
    soft: SoftTokens = NO_SOFT,
) -> PackedExamples:
    """Pack examples into one sequence, each once for each mode in `copies`.

    naive     in block mode, position ids of each context block begin at 0
    multiple  pad the length as `padded_length` does; 1: no padding
    least     pad the length to this instead, or to two, four, … times of it; 0: no padding
    asked     tokens of questions are predicted too, except the first
    soft      soft tokens around the passages in block mode, with ids counted from the end of the vocabulary
    """
    columns = Columns(list)
    for number, (example, mode) in enumerate(product(examples, copies)):
        _add(columns, example, number, soft if mode == "block" else None, naive, asked)
    length = len(columns["tokens"])
    if spare := (next_double(length, least) if least else padded_length(length, multiple)) - length:
        _add_block(columns, [0] * spare, 0, 0, -1)
        columns["positions"][-spare:] = columns["places"][-spare:] = [0] * spare
    lengths, owners, in_question, wide = (torch.tensor(column) for column in zip(*columns.pop("spans"), strict=True))
    return PackedExamples(
        **{name: torch.tensor(column) for name, column in columns.items()},
        examples=owners.repeat_interleave(lengths),
        blocks=torch.arange(len(lengths)).repeat_interleave(lengths),
        in_question=in_question.repeat_interleave(lengths),
        wide=wide.repeat_interleave(lengths),
    )


def _add(columns: Columns, example: Example, number: int, soft: SoftTokens | None, naive: bool, asked: bool) -> None:
    """Add a copy of an example: in block mode, with `soft` tokens around its passages; in full mode if None."""
    joined = tuple(chain.from_iterable(example.context))
    place = 0
    for at, tokens in enumerate(example.context if soft else (joined,)):
        header, trailer, links = (soft if soft and at >= example.system else NO_SOFT).ids
        tokens = (*header, *tokens, *trailer)
        _add_block(columns, tokens, place, 0 if naive else place, number)
        place += len(tokens)
        if links:
            _add_block(columns, links, place, len(tokens) if naive else place, number, wide=True)
            place += len(links)
    for qa in example.questions:
        first = len(columns["tokens"])
        last = first + len(qa.question) - 1  # predicts the first token of the answer
        _add_block(columns, (*qa.question, *qa.answer[:-1]), place, place, number, in_question=True)
        if asked:
            columns["rows"] += range(first, last)
            columns["targets"] += qa.question[1:]
            columns["answers"] += [-1] * (last - first)
        answer = qa.answer or (UNKNOWN,)
        columns["rows"] += range(last, last + len(answer))
        columns["targets"] += answer
        columns["answers"] += [len(columns["modes"])] * len(answer)
        columns["modes"].append(BLOCK if soft else FULL)


def _add_block(
    columns: Columns,
    tokens: Sequence[int],
    place: int,
    position: int,
    example: int,
    in_question: bool = False,
    wide: bool = False,
) -> None:
    """Add a block that begins at `place` in its example, with position ids from `position` on."""
    columns["tokens"] += tokens
    columns["places"] += range(place, place + len(tokens))
    columns["positions"] += range(position, position + len(tokens))
    columns["spans"].append((len(tokens), example, in_question, in_question or wide))


def next_double(length: int, least: int) -> int:
    """Return the first of `least`, 2 · `least`, 4 · `least`, … that is at least `length`."""
    while least < length:
        least *= 2
    return least


def padded_length(length: int, multiple: int) -> int:
    """Return the next length of `multiple` · (8 … 15) · 2^n, or the next multiple below 8: few lengths to compile."""
    if multiple == 1:
        return length
    units = -(-length // multiple)
    step = 1 << max(0, units.bit_length() - 4)
    return -(-units // step) * step * multiple
