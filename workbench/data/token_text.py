"""Tokens of two tokenizers over one text: where each ends, and scores of the one as scores of the other."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.core.blocks import Block


def ends_of(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """Return behind how many characters of their text each token ends."""
    alone = list(accumulate(len(tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in tokens))
    if alone[-1] == len(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)):
        return alone
    heads = (list(tokens[: count + 1]) for count in range(len(tokens)))
    return [len(tokenizer.decode(head, clean_up_tokenization_spaces=False)) for head in heads]


class Shared(NamedTuple):
    """How the tokens of two tokenizers share the characters of one text.

    widths   [T] characters of each token of the one; 0 where it adds none
    begins   [U] and `ends` [U]: between which characters each token of the other lies
    """

    widths: Tensor
    begins: Tensor
    ends: Tensor


def shared(theirs: Sequence[int], ours: Sequence[int]) -> Shared:
    """Return how tokens that end at characters `theirs` [T] share a text with those that end at `ours` [U]."""
    widths = torch.tensor(theirs).cummax(0).values.diff(prepend=torch.zeros(1, dtype=torch.long))
    ends = torch.tensor(ours).clamp(max=int(widths.sum()))
    return Shared(widths, torch.cat((ends.new_zeros(1), ends[:-1])), ends)


def dealt(scores: Tensor, texts: Sequence[Shared]) -> Tensor:
    """Deal scores of the ones' tokens in `texts`, one behind the other, over their characters; sum up to the others'.

    `scores` [T of all texts] -> [U of all texts], fp32.
    """
    widths = torch.cat([text.widths for text in texts])
    each = (scores.double().cpu() / widths.clamp(min=1)).repeat_interleave(widths)
    sums = torch.cat((each.new_zeros(1), each.cumsum(0)))
    firsts = [0, *accumulate(int(text.widths.sum()) for text in texts)]
    begins = torch.cat([text.begins + first for text, first in zip(texts, firsts, strict=False)])
    ends = torch.cat([text.ends + first for text, first in zip(texts, firsts, strict=False)])
    return (sums[ends] - sums[begins]).float()


class Retokenized(NamedTuple):
    """A block in the tokens of another tokenizer, and how these share characters with its own."""

    read: Block
    tokens: Shared


@lru_cache(maxsize=2048)
def retokenized(theirs: Any, ours: Any, tokens: tuple[int, ...]) -> Retokenized:
    """Return a block of `ours` as the tokenizer `theirs` writes it; passages that come again are kept."""
    text = ours.decode(tokens, clean_up_tokenization_spaces=False)
    read = Block(tuple(theirs(text, add_special_tokens=False)["input_ids"]) or (0,))
    return Retokenized(read, shared(ends_of(theirs, read.tokens), ends_of(ours, tokens)))
