"""Products of vectors that span several tokens.

`tokens` adjacent tokens of [B, H, T, D] form one vector of tokens · D channels; the last one is padded with zeros.
BFLA's flattened groups and XAttention's antidiagonals (queries in reverse) are such products. Vectors are read in
place.
"""

from torch import Tensor

from workbench.kernels._shared.attention import Config
from workbench.kernels._shared.triton_import import TensorDescriptor, jit, tl, triton

STEP = 128  # maximum bytes of a vector multiplied at a time


def step(x: Tensor) -> int:
    """Return the channels per step: the largest power of two that divides the head width, up to STEP bytes."""
    width = x.shape[-1]
    return min(STEP // x.element_size(), width & -width)


def shape(most: int, vectors: int, least: int) -> int:
    """Return the vectors per tile: at most `most`, about as many as exist, at least 16 (tensor cores) and `least`."""
    return max(16, least, min(most, triton.next_power_of_2(vectors)))


def described(config: Config, tokens: int, *tensors: Tensor) -> bool:
    """Return whether tensor descriptors can read [B, H, T, D]: at least one vector, strides in 16-byte steps."""
    return config.descriptors and all(
        x.shape[2] >= tokens
        and x.data_ptr() % 16 == 0
        and all(step * x.element_size() % 16 == 0 and step for step in _strides(x))
        for x in tensors
    )


def descriptor(x: Tensor, tokens: int, rows: int, channels: int) -> "TensorDescriptor":
    """View [B, H, T, D] as [B, H, tokens, T // tokens, D] in tiles of `rows` vectors by `channels`, zero-padded."""
    batch, head, token = _strides(x)
    sizes = [x.shape[0], x.shape[1], tokens, x.shape[2] // tokens, x.shape[3]]
    return TensorDescriptor(x, sizes, [batch, head, token, token * tokens, 1], [1, 1, 1, rows, channels])


def _strides(x: Tensor) -> list[int]:
    """Return the strides of the first three axes; 16 for an axis of length one, whose stride is irrelevant."""
    return [16 if size == 1 else step for size, step in zip(x.shape[:3], x.stride()[:3], strict=True)]


@jit
def products(
    request, queries, their_keys, TOKENS: tl.constexpr, REVERSED: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr,
    DESCRIPTORS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute products [BLOCK_M, BLOCK_N] (fp32) of query vectors and key vectors of a request.

    Each side is (pointer, descriptor, head, first vector, tokens, strides of batch, head and token).
    """
    q, q_tiles, head, first, count, q_batch, q_head, q_token = queries
    keys, key_tiles, kv_head, first_key, length, key_batch, key_head, key_token = their_keys
    PRECISION: tl.constexpr = "ieee" if q.dtype.element_ty == tl.float32 else "tf32"
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    steps = TOKENS * (D // STEP)
    at_once = 0
    if DESCRIPTORS:  # not for an incomplete vector, which would continue in the memory of the next head
        short = (count % TOKENS != 0) & (first + BLOCK_M > count // TOKENS)
        short |= (length % TOKENS != 0) & (first_key + BLOCK_N > length // TOKENS)
        at_once = tl.where(short, 0, steps)
        for i in tl.range(0, at_once):
            token, channel = i // (D // STEP), i % (D // STEP) * STEP
            mine = TOKENS - 1 - token if REVERSED else token
            x = tl.reshape(q_tiles.load([request, head, mine, first, channel]), [BLOCK_M, STEP])
            k = tl.reshape(key_tiles.load([request, kv_head, token, first_key, channel]), [BLOCK_N, STEP])
            acc = tl.dot(x, tl.trans(k), acc, input_precision=PRECISION)
    row = (first + tl.arange(0, BLOCK_M)) * TOKENS
    key = (first_key + tl.arange(0, BLOCK_N)) * TOKENS
    col = tl.arange(0, STEP)
    q += request.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    keys += request.to(tl.int64) * key_batch + kv_head.to(tl.int64) * key_head
    for i in tl.range(at_once, steps):
        token, channel = i // (D // STEP), i % (D // STEP) * STEP
        mine = row + (TOKENS - 1 - token if REVERSED else token)
        theirs = key + token
        q_at = q + mine.to(tl.int64)[:, None] * q_token + (channel + col)[None, :]
        k_at = keys + theirs.to(tl.int64)[:, None] * key_token + (channel + col)[None, :]
        x = tl.load(q_at, mask=(mine < count)[:, None], other=0.0)
        k = tl.load(k_at, mask=(theirs < length)[:, None], other=0.0)
        acc = tl.dot(x, tl.trans(k), acc, input_precision=PRECISION)
    return acc
