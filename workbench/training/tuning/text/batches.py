"""Batches of a block fine-tuning: which examples, and the length to which they are filled.

FlexAttention is compiled anew for every length of a sequence. On a GPU the length of a batch is therefore settled
before the first step: the longest of the first batches, of one copy of their examples. Every batch is filled up to it,
and an example for which no room is left is left out; a first one that is longer alone takes twice the room, or four
times. So a run compiles for this length (the teacher), for twice of it (both modes), and hardly ever for another.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from workbench.models.weights.soft_tokens import SoftTokens
from workbench.training.common import Drawn, deaf
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.teacher import TaughtExamples, pack_taught
from workbench.training.tuning.text.examples import Example, Source
from workbench.training.tuning.text.packing import PackedExamples, pack

Batch = PackedExamples | TaughtExamples
PROBED = 256  # examples inspected before training, to choose the length of batches


def examples_of(source: Source, config: TuneConfig, i: int) -> list[Example]:
    """Return the examples of micro-batch `i` of all processes: i · batch … of the source."""
    return [source[i * config.batch + j] for j in range(config.batch)]


def room_of(source: Source, config: TuneConfig, multiple: int) -> tuple[int, float]:
    """Return tokens of one copy of a batch, a multiple of `multiple`, and the share that examples fill of them.

    It is the longest of the first batches; both are of these.
    """
    batches = [examples_of(source, config, i) for i in range(max(8, PROBED // config.batch))]
    lengths = [sum(example.tokens for example in batch) for batch in batches]
    room = -(-max(lengths) // multiple) * multiple
    return room, sum(lengths) / (room * len(lengths))


def fitting(examples: Sequence[Example], room: int) -> list[Example]:
    """Return the first example and, in order, those for which room is left; all where `room` is 0."""
    kept, tokens = list[Example](), 0
    for example in examples:
        if not room or not kept or tokens + example.tokens <= room:
            kept, tokens = [*kept, example], tokens + example.tokens
    return kept


def chunks(examples: Sequence[Example], most: int, room: int) -> Iterator[list[Example]]:
    """Yield all examples in order, at most `most` together and no more than there is room for."""
    chunk, tokens = list[Example](), 0
    for example in examples:
        if chunk and (len(chunk) == most or (room and tokens + example.tokens > room)):
            yield chunk
            chunk, tokens = [], 0
        chunk, tokens = [*chunk, example], tokens + example.tokens
    if chunk:
        yield chunk


def drawn(source: Source, config: TuneConfig, room: int, i: int) -> Batch:
    """Return micro-batch `i`, packed."""
    examples = fitting(examples_of(source, config, i), room)
    if config.teacher == "self":
        return pack_taught(examples, config, room)
    naive, least = config.positions == "naive", len(config.copies) * room
    return pack(examples, config.copies, naive, least=least, soft=SoftTokens.last(config.soft))


def loader(
    source: Source, config: TuneConfig, room: int, places: range, workers: int, pin_memory: bool = False
) -> DataLoader[Any]:
    """Return the micro-batches at `places`, drawn by `workers` processes; torch's random numbers are left alone."""
    return DataLoader(
        Drawn(partial(drawn, source, config, room)),
        batch_size=None,  # an item is a whole batch
        sampler=places,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),
        worker_init_fn=deaf,
    )
