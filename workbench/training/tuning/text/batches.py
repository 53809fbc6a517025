"""Batches of block fine-tuning: their examples, and the length to which they are padded.

FlexAttention is compiled for every sequence length. On a GPU, the batch length is therefore fixed before the first
step: the longest of the first batches, in one mode. Every batch is filled up to it, and an example that no longer fits
is left out; a single example that is longer gets two or four times the length. A run compiles for this length (the
teacher) and for twice of it (both modes), and rarely for another.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from workbench.models.weights.soft_tokens import SoftTokens
from workbench.training.common import DrawnBatches, ignore_signals
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.teacher import TaughtExamples, pack_taught
from workbench.training.tuning.text.examples import Example, Source
from workbench.training.tuning.text.packing import PackedExamples, pack

Batch = PackedExamples | TaughtExamples
PROBED = 256  # examples inspected before training to choose the batch length


def examples_of(source: Source, config: TuneConfig, i: int) -> list[Example]:
    """Return the examples of micro-batch `i` of all processes: i · batch … of the source."""
    return [source[i * config.batch + j] for j in range(config.batch)]


def room_of(source: Source, config: TuneConfig, multiple: int) -> tuple[int, float]:
    """Return the tokens of one copy of a batch, a multiple of `multiple`, and the share of them that examples fill.

    Both are measured on the first batches; the length is that of the longest.
    """
    batches = [examples_of(source, config, i) for i in range(max(8, PROBED // config.batch))]
    lengths = [sum(example.tokens for example in batch) for batch in batches]
    room = -(-max(lengths) // multiple) * multiple
    return room, sum(lengths) / (room * len(lengths))


def fit_into(examples: Sequence[Example], room: int) -> list[Example]:
    """Return the first example and, in order, those that still fit into `room`; all if `room` is 0."""
    kept, tokens = list[Example](), 0
    for example in examples:
        if not room or not kept or tokens + example.tokens <= room:
            kept, tokens = [*kept, example], tokens + example.tokens
    return kept


def chunks(examples: Sequence[Example], most: int, room: int) -> Iterator[list[Example]]:
    """Yield all examples in order, grouped to at most `most` examples and `room` tokens."""
    chunk, tokens = list[Example](), 0
    for example in examples:
        if chunk and (len(chunk) == most or (room and tokens + example.tokens > room)):
            yield chunk
            chunk, tokens = [], 0
        chunk, tokens = [*chunk, example], tokens + example.tokens
    if chunk:
        yield chunk


def draw_batch(source: Source, config: TuneConfig, room: int, i: int) -> Batch:
    """Return micro-batch `i`, packed."""
    examples = fit_into(examples_of(source, config, i), room)
    if config.teacher == "self":
        return pack_taught(examples, config, room)
    naive, least = config.positions == "naive", len(config.copies) * room
    return pack(examples, config.copies, naive, least=least, soft=SoftTokens.at_end_of(config.soft))


def loader(
    source: Source, config: TuneConfig, room: int, places: range, workers: int, pin_memory: bool = False
) -> DataLoader[Any]:
    """Return the micro-batches at `places`, drawn by `workers` processes. Torch's global random state is not used."""
    return DataLoader(
        DrawnBatches(partial(draw_batch, source, config, room)),
        batch_size=None,  # an item is a whole batch
        sampler=places,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),
        worker_init_fn=ignore_signals,
    )
