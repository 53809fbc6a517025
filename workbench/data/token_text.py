"""Map scores from one tokenizer's tokens to another's over the same text."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.core.blocks import Block


def ends_of(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """Return, for each token, the number of characters of the decoded text at its end."""
    alone = list(accumulate(len(tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in tokens))
    if alone[-1] == len(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)):
        return alone
    heads = (list(tokens[: count + 1]) for count in range(len(tokens)))
    return [len(tokenizer.decode(head, clean_up_tokenization_spaces=False)) for head in heads]


class SharedText(NamedTuple):
    """How the T tokens of one tokenizer and the U tokens of another share the characters of a text.

    widths        [T] characters of each token of the first; 0 where it adds none
    begins, ends  [U] first character, and end, of each token of the second
    """

    widths: Tensor
    begins: Tensor
    ends: Tensor


def shared_text(theirs: Sequence[int], ours: Sequence[int]) -> SharedText:
    """Return how tokens that end at characters `theirs` [T] share a text with tokens that end at `ours` [U]."""
    widths = torch.tensor(theirs).cummax(0).values.diff(prepend=torch.zeros(1, dtype=torch.long))
    ends = torch.tensor(ours).clamp(max=int(widths.sum()))
    return SharedText(widths, torch.cat((ends.new_zeros(1), ends[:-1])), ends)


def transfer_scores(scores: Tensor, texts: Sequence[SharedText]) -> Tensor:
    """Spread scores of the first tokenizer's tokens evenly over their characters and sum them by the second's tokens.

    `scores` [T of all texts, concatenated] -> [U of all texts], fp32 on the CPU.
    """
    widths = torch.cat([text.widths for text in texts])
    each = (scores.double().cpu() / widths.clamp(min=1)).repeat_interleave(widths)
    sums = torch.cat((each.new_zeros(1), each.cumsum(0)))
    firsts = [0, *accumulate(int(text.widths.sum()) for text in texts)]
    begins = torch.cat([text.begins + first for text, first in zip(texts, firsts, strict=False)])
    ends = torch.cat([text.ends + first for text, first in zip(texts, firsts, strict=False)])
    return (sums[ends] - sums[begins]).float()


class RetokenizedBlock(NamedTuple):
    """A block in another tokenizer's tokens (`read`), and how these share characters with the block's own."""

    read: Block
    tokens: SharedText


@lru_cache(maxsize=2048)
def retokenize(theirs: Any, ours: Any, tokens: tuple[int, ...]) -> RetokenizedBlock:
    """Return a block of tokenizer `ours` in the tokens of tokenizer `theirs`; results are cached."""
    text = ours.decode(tokens, clean_up_tokenization_spaces=False)
    read = Block(tuple(theirs(text, add_special_tokens=False)["input_ids"]) or (0,))
    return RetokenizedBlock(read, shared_text(ends_of(theirs, read.tokens), ends_of(ours, tokens)))
