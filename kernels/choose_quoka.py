"""QUOKA's token selection (arXiv:2602.08722, algorithm 1): the tokens with the largest scores for a chunk's queries.

    choose_quoka(votes [B, H, V, D] fp32, keys [B, H, T, D], past [B, T] bool, count) -> [B, H, T] bool

Per KV head, the `count` tokens of `past` with the highest scores are kept, the earlier ones among equals. The score of
a token is the largest product of its unit key with a vote of its head. Votes are means of unit query vectors
(`workbench.methods.sparse.quoka`).

Keys are read once, and products stay in registers. For 16-bit keys a vote is the sum of two 16-bit vectors, whose error
is below that of the tensor cores' sums; norms of keys are fp32.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from workbench.kernels._select import best as largest
from workbench.kernels._select import votes as _votes
from workbench.kernels._shared.attention import Config, rows_first
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl, triton

__all__ = ["best", "cases", "configure", "launch", "listed", "reference", "takes", "votes_of", "with_rows"]

votes_of = _votes.launch
NEXT = tl.constexpr(256)  # maximum tokens loaded at a time
PARTS = 2  # number of 16-bit vectors that a vote is the sum of
LEAST = tl.constexpr(1e-12)  # minimum norm of a key, as in torch's `normalize`


def configure(dtype: torch.dtype) -> Config:
    """Return the launch configuration: votes and keys of a tile."""
    return Config(32, 32, 4, 1) if dtype == torch.float32 else Config(64, 128, 8, 1)


def reference(votes: Tensor, keys: Tensor, past: Tensor, count: int) -> Tensor:
    """Compute the result in torch, scores in the dtype of the votes."""
    one = zip(votes, keys, strict=True)
    return best(torch.stack([(a @ normalize(k.to(a.dtype), dim=-1).mT).amax(-2) for a, k in one]), past, count)


def best(scores: Tensor, past: Tensor, count: int) -> Tensor:
    """Return the tokens [B, H, T] (bool) of `past` [B, T] with the `count` largest scores, the earlier among equals."""
    if not count:
        return torch.zeros_like(scores, dtype=torch.bool)
    scores = scores.masked_fill(~past[:, None], -torch.inf)
    least = scores.topk(count, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    missing = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= missing))


@jit
def _score(
    ours, keys, past, score, votes, length, heads, key_batch, key_head, key_token, D: tl.constexpr,
    DP: tl.constexpr, PARTS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    PRECISION: tl.constexpr = "tf32" if PARTS > 1 else "ieee"
    head, request = tl.program_id(1), tl.program_id(2).to(tl.int64)
    base = (request * heads + head) * votes
    token, col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, DP)
    before = tl.load(past + request * length + token, mask=token < length, other=0) != 0
    votes = tl.where(tl.max(before.to(tl.int32), 0) > 0, votes, 0)  # no work without past tokens
    k_at = keys + request * key_batch + head.to(tl.int64) * key_head + token.to(tl.int64)[:, None] * key_token
    k = tl.load(k_at + col[None, :], mask=(token < length)[:, None] & (col < D)[None, :], other=0.0)
    wide = k.to(tl.float32)
    norm = tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), LEAST)
    top = tl.full([BLOCK_N], float("-inf"), tl.float32)
    for first in range(0, votes, BLOCK_V):
        vote = first + tl.arange(0, BLOCK_V)
        at, inside = (base + vote)[:, None] * D + col[None, :], (vote < votes)[:, None] & (col < D)[None, :]
        rest = tl.load(ours + at, mask=inside, other=0.0)
        s = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
        for _ in tl.static_range(PARTS):
            part = rest.to(k.dtype)
            s = tl.dot(k, tl.trans(part), s, input_precision=PRECISION)
            rest -= part.to(tl.float32)
        top = tl.maximum(top, tl.max(tl.where((vote < votes)[None, :], s, float("-inf")), 1))
    found = tl.where(before, top / norm, float("-inf"))
    tl.store(score + (request * heads + head) * length + token, found, mask=token < length)


def takes(votes: Tensor, keys: Tensor) -> bool:
    """Return whether `launch` supports these arguments: Triton is installed and heads are up to 256 wide."""
    return triton is not None and keys.shape[-1] <= 256


def launch(votes: Tensor, keys: Tensor, past: Tensor, count: int, *, config: Config | None = None) -> Tensor:
    """Run the Triton kernels on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1."""
    return listed(votes, keys, past, count, config=config)[1]


def listed(
    votes: Tensor,
    keys: Tensor,
    past: Tensor,
    count: int,
    needed: Tensor | None = None,
    *,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """Select as `launch` does; return ([B, H, count] rising positions (int32), [B, H, T] bool).

    `needed` [1] on the device: how many of the `count` to select; entries after them are unwritten.
    """
    need_triton("choose_quoka")
    config, keys = config or configure(keys.dtype), rows_first(keys)
    batch, heads, length, width = keys.shape
    score = torch.empty(batch, heads, length, device=keys.device)
    tensors = votes.float().contiguous(), keys, past.contiguous(), score, votes.shape[2], length, heads
    parts = 1 if keys.dtype == torch.float32 else PARTS
    constants = {"D": width, "DP": padded_width(width), "PARTS": parts, "BLOCK_V": config.rows}
    _score[(triton.cdiv(length, config.keys), heads, batch)](
        *tensors, *keys.stride()[:3], **constants, BLOCK_N=config.keys, **config.launch
    )
    places, taken = largest.launch(score.flatten(0, 1), count, needed)
    return places.view(batch, heads, count), taken.view(batch, heads, length)


@jit
def _behind(places, needed, rows, count, own, length, BLOCK: tl.constexpr):
    head, at = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(needed).to(tl.int32)
    behind = at - chosen - own
    row = tl.load(rows + at - chosen, mask=(at >= chosen) & (behind < 0), other=length)
    row = tl.where(behind >= NEXT, length + 1, row)
    tl.store(places + head * count + at, row.to(tl.int32), mask=(at >= chosen) & (at < count))


def with_rows(places: Tensor, needed: Tensor, rows: Tensor, length: int) -> Tensor:
    """Write rows [R] after the first `needed` [1] entries of each head's list `places` [H, K] in place, and return it.

    Padding follows: `length` in the next 256 entries, which a kernel may read with the last row, then `length` + 1.
    """
    heads, count = places.shape
    _behind[(triton.cdiv(count, 1024), heads)](places, needed, rows, count, len(rows), length, BLOCK=1024)
    return places


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    """Yield arguments to compare `launch` with `reference`: odd numbers of votes and tokens, narrow heads, a 0 key."""
    for seed, (batch, heads, votes, length, width) in enumerate(((2, 2, 19, 150, 128), (1, 3, 64, 77, 80))):
        draw = torch.Generator().manual_seed(seed)
        ours, keys = (torch.randn(batch, heads, n, width, generator=draw) for n in (votes, length))
        keys[0, 0, 5] = 0
        past = torch.arange(length).expand(batch, -1) < length - 20
        yield normalize(ours, dim=-1).to(device), keys.to(device, dtype), past.to(device), 30
