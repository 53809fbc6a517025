"""Token blocks, which are cached independently, and the prompt that joins them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from operator import index
from struct import pack
from typing import Any

import torch

from workbench.core.errors import BadInput, format_value
from workbench.core.utils import html_views
from workbench.core.utils.annotations import LARGEST


@dataclass(frozen=True)
class Block:
    """A run of token ids that is encoded independently.

    `label` is a display name and does not affect equality. Raises BadInput for no tokens, and for ids that are not
    integers from 0 to 2^31 - 1.
    """

    tokens: tuple[int, ...]
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", _integers(self.tokens))
        if not self.tokens:
            raise BadInput(f"block {self.label!r} is empty: a block has at least one token")
        if min(self.tokens) < 0:
            raise BadInput(f"block {self.label!r} has token id {min(self.tokens)}: token ids are 0 or more")
        if max(self.tokens) > LARGEST:
            raise BadInput(f"block {self.label!r} has token id {format_value(max(self.tokens))}: at most {LARGEST:,}")

    @cached_property
    def key(self) -> str:
        """Content hash of the tokens, 32 hexadecimal digits."""
        return sha256(",".join(map(str, self.tokens)).encode()).hexdigest()[:32]

    @cached_property
    def content(self) -> str:
        """The block's part of a store key: SHA-256 of its tokens as little-endian 64-bit integers."""
        return sha256(pack(f"<{len(self.tokens)}q", *self.tokens)).hexdigest()

    @cached_property
    def ids(self) -> torch.Tensor:
        """[T] token ids (int64); the tensor is cached."""
        return torch.tensor(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Block({self.label!r}, {len(self):,} tokens)"

    def _repr_html_(self) -> str:
        """Show label, length and content in a notebook."""
        first = ", ".join(map(str, self.tokens[:16])) + (", …" if len(self) > 16 else "")
        rows = [("label", self.label or "–"), ("tokens", len(self)), ("ids", first), ("content", self.key)]
        return html_views.table("Block", rows)


def _integers(tokens: Any) -> tuple[int, ...]:
    """Return token ids as Python integers. Raises BadInput for anything but a list of integers."""
    try:
        if isinstance(tokens, str | bytes):
            raise TypeError
        return tuple(map(index, tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens))
    except (TypeError, NotImplementedError):  # NotImplementedError: a tensor without data
        raise BadInput(f"tokens is {format_value(tokens)}: a list of integer token ids is needed") from None


@dataclass(frozen=True)
class Prompt:
    """Blocks in reading order; the last one is the question, which is not cached.

    Raises BadInput for fewer than two blocks.
    """

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        blocks: Any = self.blocks
        if isinstance(blocks, torch.Tensor) or not isinstance(blocks, Iterable):
            raise BadInput(f"blocks is {format_value(blocks)}: a prompt is a list of blocks")
        object.__setattr__(self, "blocks", tuple(blocks))
        if odd := [block for block in self.blocks if not isinstance(block, Block)]:
            raise BadInput(f"blocks holds {format_value(odd[0])}: a prompt is a list of blocks")
        if len(self.blocks) < 2:
            raise BadInput(f"a prompt needs at least one block before its question, got {len(self.blocks)} block(s)")

    @cached_property
    def tokens(self) -> torch.Tensor:
        """[T] token ids of the whole prompt (int64)."""
        return torch.cat([block.ids for block in self.blocks])

    @cached_property
    def starts(self) -> list[int]:
        """Position of each block's first token."""
        return [0, *accumulate(map(len, self.blocks))][:-1]

    @cached_property
    def block_of(self) -> torch.Tensor:
        """[T] block index of each token (int64)."""
        return torch.repeat_interleave(torch.tensor([len(block) for block in self.blocks]))

    @cached_property
    def question(self) -> torch.Tensor:
        """[Q] positions of the question's tokens (int64)."""
        return torch.arange(self.starts[-1], len(self))

    @property
    def context(self) -> tuple[Block, ...]:
        """The cacheable blocks, without the question."""
        return self.blocks[:-1]

    def __len__(self) -> int:
        return self.starts[-1] + len(self.blocks[-1])

    def __repr__(self) -> str:
        return f"Prompt({len(self.context)} blocks of {self.starts[-1]:,} tokens, question of {len(self.blocks[-1]):,})"

    def _repr_html_(self) -> str:
        """Show the blocks and their positions in a notebook."""
        last = len(self.blocks) - 1
        rows = [
            (number, "question" if number == last else block.label or "–", start, len(block), block.key[:12])
            for number, (block, start) in enumerate(zip(self.blocks, self.starts, strict=True))
        ]
        title = f"Prompt of {len(self):,} tokens in {len(self.blocks)} blocks"
        return html_views.table(title, rows, ("block", "label", "first position", "tokens", "content"))
