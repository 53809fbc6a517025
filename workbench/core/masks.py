"""Attention masks: rules over positions, (row, col) -> bool, written in Python or as text.

A rule is called with two integer tensors that broadcast, query positions `row` and key positions `col`, and returns a
bool tensor: whether the query may attend to the key. Rules are combined with `&`, `|` and `~`:

    block_attention(prompt) & (window(64) | sink(4))

`parse` reads a rule from text in Python's grammar. Nothing is passed to `eval`; these words are supported:

    row, col                        positions of the query and of the key
    block(row), block(col)          index of their block; the last block is the question
    question, length                index of the question's block; number of tokens
    causal, same_block, block_attention      rules
    window(n), sink(n)              the last n tokens up to the query; the first n tokens of the prompt
    < <= > >= == !=, + - * // %, & | ~ (or: and, or, not), integers, parentheses

A rule from text is combined with `causal`, so a token never attends to later ones.
"""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.utils import annotations

Sees = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class MaskRule:
    """A mask rule with a display name; any callable (row, col) -> bool tensor can be used instead."""

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
    """Return the (non-causal) rule: both positions are in one block.

    Positions after the prompt, those of an answer, count as part of the question.
    """
    blocks = prompt.block_of

    def sees(row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        return _block(blocks, row) == _block(blocks, col)

    return MaskRule(sees, "same block")


def block_attention(prompt: Prompt) -> MaskRule:
    """Return the causal rule: a block attends to itself, the question and the answer to all preceding tokens.

    Block-Attention (arXiv:2409.15355), figure 1.
    """
    annotations.check("prompt", prompt, Prompt)
    blocks, last = prompt.block_of, len(prompt.blocks) - 1

    def sees(row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        of_row = _block(blocks, row)
        return (col <= row) & ((of_row == _block(blocks, col)) | (of_row == last))

    return MaskRule(sees, "block attention")


def _block(blocks: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return blocks.to(position.device)[position.clamp(max=len(blocks) - 1)]


def window(size: int) -> MaskRule:
    """Return the rule: the last `size` positions, including the query's own. Raises BadInput for a size below 1."""
    if size < 1:
        raise BadInput(f"window size {size}: it is 1 or more")
    return MaskRule(lambda row, col: (col <= row) & (row - col < size), f"window({size})")


def sink(count: int) -> MaskRule:
    """Return the causal rule: the first `count` positions of the prompt (StreamingLLM, arXiv:2309.17453).

    Raises BadInput for a negative count.
    """
    if count < 0:
        raise BadInput(f"sink count {count}: it is 0 or more")
    return MaskRule(lambda row, col: (col <= row) & (col < count), f"sink({count})")


def visible(rule: Sees, rows: torch.Tensor, cols: torch.Tensor) -> torch.Tensor:
    """Return the mask [R, C] (bool) of a rule for queries at `rows` [R] and keys at `cols` [C]."""
    return rule(rows[:, None], cols[None]).expand(len(rows), len(cols))


WORDS = "row, col, block(row), block(col), question, length, causal, same_block, block_attention, window(n), sink(n)"
_BINARY = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MOST = 1 << 31  # larger numbers are no positions


def parse(sentence: str, prompt: Prompt) -> MaskRule:
    """Parse a mask rule over the blocks of `prompt`. Raises BadInput for invalid text."""
    probe = torch.arange(2)
    try:
        sees = _MaskParser(ast.parse(sentence.strip(), mode="eval").body, prompt, sentence)
        sees(probe[:, None], probe[None])  # raises for invalid text
    except BadInput:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadInput(
            f"mask rule {sentence[:80]!r} is not a sentence: try 'causal & (same_block | window(64))'"
        ) from None
    return MaskRule(sees, sentence.strip())


def check(sentence: str) -> None:
    """Raise BadInput for text that `parse` rejects; no prompt is needed."""
    parse(sentence, Prompt((Block((0,)), Block((0,)))))


_FULL = 1 << 62  # limit of intermediate results, which are int64


def _largest(value: Any) -> int:
    return abs(value) if isinstance(value, int) else int(value.abs().max()) if value.numel() else 0


def _bound(do: Callable[[Any, Any], Any], left: int, right: int) -> int:
    """Return an upper bound of the magnitude of a sum, difference or product."""
    return left * right if do is operator.mul else left + right


class _MaskParser:
    def __init__(self, tree: ast.expr, prompt: Prompt, sentence: str):
        self.tree, self.prompt, self.sentence = tree, prompt, sentence

    def __call__(self, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        result = self._read(self.tree, row, col)
        if not isinstance(result, torch.Tensor) or result.dtype != torch.bool:
            raise self._bad("it must say yes or no about (row, col)")
        return result & (col <= row)

    def _read(self, node: ast.expr, row: torch.Tensor, col: torch.Tensor) -> Any:
        """Return the value of one node: bool or int64 tensors, or an int."""

        def read(part: ast.expr) -> Any:
            return self._read(part, row, col)

        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool) and number < _MOST:
                return number
            case ast.Name(id=name):
                return self._word(name, row, col)
            case ast.Call(func=ast.Name(id=name), args=[part], keywords=[]):
                return self._call(name, part, row, col)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._apply(_BINARY[type(op)], read(left), read(right))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
                values = [read(part) for part in (left, *others)]
                pairs = zip(ops, values[:-1], values[1:], strict=True)
                return reduce(operator.and_, [self._apply(_COMPARE[type(op)], a, b) for op, a, b in pairs])
            case ast.BoolOp(op=op, values=parts):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                return reduce(lambda a, b: self._apply(join, a, b), [read(part) for part in parts])
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=part):
                return ~self._truth(read(part))
            case ast.UnaryOp(op=ast.USub(), operand=part):
                return -self._number(read(part))
        raise self._bad(f"{ast.unparse(node)!r} is not understood; its words are {WORDS}")

    def _word(self, name: str, row: torch.Tensor, col: torch.Tensor) -> Any:
        match name:
            case "row" | "col":
                return row if name == "row" else col
            case "question":
                return len(self.prompt.blocks) - 1
            case "length":
                return len(self.prompt)
            case "causal":
                return causal(row, col)
            case "same_block":
                return same_block(self.prompt)(row, col)
            case "block_attention":
                return block_attention(self.prompt)(row, col)
        raise self._bad(f"{name!r} is not a word it knows: {WORDS}")

    def _call(self, name: str, part: ast.expr, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        if name == "block" and isinstance(part, ast.Name) and part.id in ("row", "col"):
            position = (row if part.id == "row" else col).clamp(max=len(self.prompt) - 1)
            return self.prompt.block_of.to(position.device)[position]
        size = self._read(part, row, col)
        if name in ("window", "sink") and isinstance(size, int) and size > 0:
            return (window(size) if name == "window" else sink(size))(row, col)
        raise self._bad(
            f"{name}({ast.unparse(part)}) is not understood: window(n) and sink(n) take a whole number above 0"
        )

    def _apply(self, do: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        if do in (operator.and_, operator.or_):
            return do(self._truth(left), self._truth(right))
        if do in (operator.floordiv, operator.mod) and not (isinstance(right, int) and right > 0):
            raise self._bad("// and % take a whole number above 0 on their right")
        numbers = self._number(left), self._number(right)
        if do in (operator.add, operator.sub, operator.mul) and _bound(do, *map(_largest, numbers)) >= _FULL:
            raise self._bad(f"its numbers grow beyond {_FULL:,}")
        return do(*numbers)

    def _truth(self, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            return value
        raise self._bad("& | ~ join rules, not numbers (put comparisons in parentheses, or write and, or)")

    def _number(self, value: Any) -> Any:
        if isinstance(value, int) or value.dtype != torch.bool:
            return value
        raise self._bad("numbers are compared and added, rules are joined with & | ~")

    def _bad(self, why: str) -> BadInput:
        return BadInput(f"mask rule {self.sentence!r}: {why}")
