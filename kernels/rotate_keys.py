"""Rerotate keys of cached blocks to other positions, for all blocks of a prompt in one pass.

A key rotated for position p becomes the key of position p + s by one more rotation by s, R(p + s) = R(s) R(p)
(RoFormer, arXiv:2104.09864, eq. 14-16); the tokens of a block share s. Memory-bound: each key is read and written once.

    rotate(keys [H, T, D], distance [T] or int, inv_freq [R/2], pairing) -> [H, T, D], same dtype

Only the first R <= D channels rotate (partial rotary). `pairing` is which channels form a plane: "neox" (i, i + R/2:
Llama, Qwen, Gemma) or "interleaved" (2i, 2i + 1: GLM-4). Arithmetic is fp32 for any dtype; angles are computed and
reduced to one turn in fp64 (an angle of 1e5 radians is off by 0.004 in fp32). An `attention_scaling` that the model
folds into cos and sin is already in the cached keys and must not be applied again.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.core.rope import Pairing, rotate
from workbench.kernels._shared.attention import angles
from workbench.kernels._shared.triton_import import jit, need_triton, tl, triton

reference = rotate
TOKENS = 32  # tokens per program, which share cos and sin among heads


@jit
def _rotate(
    keys, out, distance, inv_freq, tokens, key_head, key_token, out_head, out_token, HEADS: tl.constexpr, HALF:
    tl.constexpr, STILL: tl.constexpr, HALF_POW2: tl.constexpr, STILL_POW2: tl.constexpr, INTERLEAVED: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]  # [TOKENS, 1]
    plane = tl.arange(0, HALF_POW2)[None, :]  # [1, HALF]
    here = token < tokens
    rotary = here & (plane < HALF)
    shift = tl.load(distance + token, mask=here, other=0)
    angle = angles(shift, tl.load(inv_freq + plane, mask=plane < HALF, other=0.0))
    cos, sin = tl.cos(angle), tl.sin(angle)  # [TOKENS, HALF], shared by the heads
    first = 2 * plane if INTERLEAVED else plane
    second = first + (1 if INTERLEAVED else HALF)
    for head in range(HEADS):
        source = keys + head * key_head + token * key_token
        target = out + head * out_head + token * out_token
        a = tl.load(source + first, mask=rotary, other=0.0).to(tl.float32)
        b = tl.load(source + second, mask=rotary, other=0.0).to(tl.float32)
        tl.store(target + first, (a * cos - b * sin).to(out.dtype.element_ty), mask=rotary)
        tl.store(target + second, (b * cos + a * sin).to(out.dtype.element_ty), mask=rotary)
        if STILL > 0:
            rest = tl.arange(0, STILL_POW2)[None, :]
            stays = here & (rest < STILL)
            tl.store(target + 2 * HALF + rest, tl.load(source + 2 * HALF + rest, mask=stays), mask=stays)


def launch(
    keys: Tensor,
    distance: Tensor | int,
    inv_freq: Tensor,
    pairing: Pairing = "neox",
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1.

    The result is written to `out` [H, T, D] if given, whose channels must be contiguous.
    """
    need_triton("rotate_keys")
    if keys.stride(-1) != 1:
        keys = keys.contiguous()
    heads, tokens, width = keys.shape
    half = len(inv_freq)
    still = width - 2 * half
    shift = torch.as_tensor(distance, device=keys.device).expand(tokens).contiguous()  # [T]
    if out is None:
        out = torch.empty((heads, tokens, width), dtype=keys.dtype, device=keys.device)
    tensors = keys, out, shift, inv_freq.to(keys.device, torch.float32).contiguous(), tokens, keys.stride(0)
    sizes = keys.stride(1), out.stride(0), out.stride(1)
    constants = {"HEADS": heads, "HALF": half, "STILL": still, "HALF_POW2": triton.next_power_of_2(half)}
    constants |= {"STILL_POW2": triton.next_power_of_2(max(still, 1)), "INTERLEAVED": pairing == "interleaved"}
    _rotate[(triton.cdiv(tokens, TOKENS),)](*tensors, *sizes, **constants, TOKENS=TOKENS)
    return out


def cases(
    device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Tensor, Tensor | int, Tensor, Pairing]]:
    """Yield arguments to compare `launch` with `reference`: head widths, odd lengths, partial rotary, both pairings."""
    pairings: tuple[Pairing, ...] = ("neox", "interleaved")
    for width, rotary in ((64, 64), (80, 80), (96, 96), (128, 128), (128, 64), (80, 32)):
        for heads, tokens in ((1, 1), (2, 33), (3, 101)):
            for pairing in pairings:
                seed = torch.Generator().manual_seed(width + rotary + tokens)
                keys = torch.randn(heads, tokens, width, generator=seed).to(device, dtype)
                inv_freq = (1e4 ** (-torch.arange(0, rotary, 2) / rotary)).to(device)
                apart = torch.randint(-512, 4096, (tokens,), generator=seed).to(device)  # blocks shift both ways
                yield keys, apart, inv_freq, pairing
                yield keys.transpose(0, 1).contiguous().transpose(0, 1), 100_003, inv_freq, pairing  # strided; far
