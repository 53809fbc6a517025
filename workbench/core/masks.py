"""Who may see whom: rules about positions, (row, col) -> bool.

A rule is asked with integer tensors that broadcast against each other, `row` the position that looks and `col` the
position looked at, and answers with a bool tensor. Rules are joined by `&`, `|` and `~`:

    block_attention(prompt) & (window(64) | sink(4))
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.utils import annotations

Sees = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class MaskRule:
    """A rule with a name that people can read; any callable (row, col) -> bool may be used in its place."""

    sees: Sees
    name: str

    def __call__(self, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        return self.sees(row, col)

    def __and__(self, other: Sees) -> "MaskRule":
        return MaskRule(lambda row, col: self(row, col) & other(row, col), f"({self.name} & {_name(other)})")

    def __or__(self, other: Sees) -> "MaskRule":
        return MaskRule(lambda row, col: self(row, col) | other(row, col), f"({self.name} | {_name(other)})")

    def __invert__(self) -> "MaskRule":
        return MaskRule(lambda row, col: ~self(row, col), f"~{self.name}")

    def __repr__(self) -> str:
        return self.name


def _name(rule: Sees) -> str:
    return str(getattr(rule, "name", None) or getattr(rule, "__name__", "rule"))


causal = MaskRule(lambda row, col: col <= row, "causal")


def same_block(prompt: Prompt) -> MaskRule:
    """Both positions belong to one block, in either direction. Positions behind the prompt belong to its question."""
    blocks = prompt.block_of

    def sees(row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        return _block(blocks, row) == _block(blocks, col)

    return MaskRule(sees, "same block")


def block_attention(prompt: Prompt) -> MaskRule:
    """Every block sees itself; the question, and what follows it, sees all before it (Block-Attention, fig. 1)."""
    annotations.check("prompt", prompt, Prompt)
    blocks, last = prompt.block_of, len(prompt.blocks) - 1

    def sees(row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        of_row = _block(blocks, row)
        return (col <= row) & ((of_row == _block(blocks, col)) | (of_row == last))

    return MaskRule(sees, "block attention")


def _block(blocks: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return blocks.to(position.device)[position.clamp(max=len(blocks) - 1)]


def window(size: int) -> MaskRule:
    """Show the last `size` positions, the row itself included."""
    if size < 1:
        raise BadInput(f"window size {size}: a window holds at least the row itself, 1")
    return MaskRule(lambda row, col: (col <= row) & (row - col < size), f"window({size})")


def sink(count: int) -> MaskRule:
    """Show the first `count` positions of the prompt, never ahead of the row (StreamingLLM, arXiv:2309.17453)."""
    if count < 0:
        raise BadInput(f"sink count {count}: it is 0 or more")
    return MaskRule(lambda row, col: (col <= row) & (col < count), f"sink({count})")


def visible(rule: Sees, rows: torch.Tensor, cols: torch.Tensor) -> torch.Tensor:
    """[R, C] bool: what the rule says for every one of `rows` [R] and `cols` [C]."""
    answer = rule(rows[:, None], cols[None])
    return answer.expand(len(rows), len(cols))
