"""Tokens of two tokenizers over one text: where each ends, and scores of the one as scores of the other."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor


def ends_of(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """Return behind how many characters of their text each token ends."""
    alone = list(accumulate(len(tokenizer.decode([token], clean_up_tokenization_spaces=False)) for token in tokens))
    if alone[-1] == len(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)):
        return alone
    heads = (list(tokens[: count + 1]) for count in range(len(tokens)))
    return [len(tokenizer.decode(head, clean_up_tokenization_spaces=False)) for head in heads]


def dealt(scores: Tensor, theirs: Tensor, ours: Tensor) -> Tensor:
    """Deal scores of tokens that end at characters `theirs` [T] out over their characters; sum up to `ours` [U]."""
    ends = theirs.cummax(0).values
    widths = ends.diff(prepend=ends.new_zeros(1))  # characters of a token; 0 where it adds none
    each = (scores.double().cpu() / widths.clamp(min=1)).repeat_interleave(widths)
    sums = torch.cat((each.new_zeros(1), each.cumsum(0)))[ours.clamp(max=len(each))]
    return sums.diff(prepend=sums.new_zeros(1)).float()
