"""Several examples, in one mode or in both, as one sequence without padding between them.

Full attention is block attention over a single block, so one rule covers both modes: a token sees what is before it in
its own block, and a token of a question or answer sees the whole context of its example besides. Several questions over
one context stand one after the other; none sees another, and the positions of each continue the context's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from workbench.core.masks import Sees
from workbench.training.tuning.examples import Example

FULL, BLOCK = 0, 1  # modes as numbers


@dataclass(frozen=True)
class PackedExamples:
    """One packed sequence of T tokens with N answers, whose A tokens are predicted from A of its rows."""

    tokens: torch.Tensor  # [T] token ids
    positions: torch.Tensor  # [T] position ids that are rotated by
    places: torch.Tensor  # [T] distance from the example's first token, for sliding windows
    examples: torch.Tensor  # [T] example copy that a token belongs to, -1 for filling
    blocks: torch.Tensor  # [T] block within the whole sequence; every question with its answer is one
    asked: torch.Tensor  # [T] bool, token of a question or answer
    rows: torch.Tensor  # [A] where an answer token is predicted
    targets: torch.Tensor  # [A] which token it is
    answers: torch.Tensor  # [A] to which answer it belongs
    modes: torch.Tensor  # [N] FULL or BLOCK

    def to(self, device: torch.device) -> "PackedExamples":
        return PackedExamples(
            **{field.name: getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)}
        )

    def pin_memory(self) -> "PackedExamples":
        return PackedExamples(**{field.name: getattr(self, field.name).pin_memory() for field in fields(self)})

    def sees(self, window: int | None = None) -> Sees:
        """The rule over indices of the packed sequence, within a sliding `window` where the layer has one."""
        examples, blocks, asked, places = self.examples, self.blocks, self.asked, self.places

        def sees(row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
            of_context = asked[row] & ~asked[col] & (examples[row] == examples[col])
            seen = (col <= row) & ((blocks[row] == blocks[col]) | of_context)
            return seen if window is None else seen & (places[row] - places[col] < window)

        return sees


class _Columns:
    """The columns of a packed sequence while it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.places: list[int] = []
        self.spans: list[tuple[int, int, bool]] = []  # (tokens, example, asked) of every block
        self.rows: list[int] = []
        self.targets: list[int] = []
        self.answers: list[int] = []
        self.modes: list[int] = []

    def add(self, tokens: Sequence[int], place: int, position: int, example: int, asked: bool = False) -> None:
        """One block, from `place` on in its example, with position ids from `position` on."""
        self.tokens += tokens
        self.places += range(place, place + len(tokens))
        self.positions += range(position, position + len(tokens))
        self.spans.append((len(tokens), example, asked))


def pack(examples: Sequence[Example], copies: Sequence[str], naive: bool = False, multiple: int = 1) -> PackedExamples:
    """Examples as one sequence, each once for every mode in `copies`; filled up by `padded` to a length on a GPU.

    naive     in block mode, position ids of every context block begin at 0
    multiple  the length is rounded up to a multiple of it, and to few different lengths; 1: nothing is filled up
    """
    columns = _Columns()
    pairs = [(example, mode) for example in examples for mode in copies]
    for number, (example, mode) in enumerate(pairs):
        _add(columns, example, number, mode == "block", naive)
    if spare := padded(len(columns.tokens), multiple) - len(columns.tokens):
        columns.add([0] * spare, 0, 0, -1)
        columns.positions[-spare:] = columns.places[-spare:] = [0] * spare
    lengths, owners, asked = (torch.tensor(part) for part in zip(*columns.spans, strict=True))
    return PackedExamples(
        tokens=torch.tensor(columns.tokens),
        positions=torch.tensor(columns.positions),
        places=torch.tensor(columns.places),
        examples=owners.repeat_interleave(lengths),
        blocks=torch.arange(len(lengths)).repeat_interleave(lengths),
        asked=asked.repeat_interleave(lengths),
        rows=torch.tensor(columns.rows),
        targets=torch.tensor(columns.targets),
        answers=torch.tensor(columns.answers),
        modes=torch.tensor(columns.modes),
    )


def _add(columns: _Columns, example: Example, number: int, block: bool, naive: bool) -> None:
    """One copy of an example."""
    whole = tuple(token for tokens in example.context for token in tokens)
    place = 0
    for tokens in example.context if block else (whole,):
        columns.add(tokens, place, 0 if naive else place, number)
        place += len(tokens)
    for turn in example.turns:
        first = len(columns.tokens) + len(turn.question) - 1  # predicts the first token of the answer
        columns.add((*turn.question, *turn.answer[:-1]), place, place, number, asked=True)
        columns.rows += range(first, first + len(turn.answer))
        columns.targets += turn.answer
        columns.answers += [len(columns.modes)] * len(turn.answer)
        columns.modes.append(BLOCK if block else FULL)


def padded(length: int, multiple: int) -> int:
    """The next length of `multiple` · (8 … 15) · 2^n, or multiple of `multiple` below: kernels are compiled for few."""
    if multiple == 1:
        return length
    units = -(-length // multiple)
    step = 1 << max(0, units.bit_length() - 4)
    return -(-units // step) * step * multiple
