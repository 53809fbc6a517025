"""Rerotate cached keys to new positions.

RoPE rotates a key at position p by the angles p * inv_freq (RoFormer, arXiv:2104.09864, eq. 14-16), and
R(p + s) = R(s) R(p): one more rotation by the constant s shifts the key. All tokens of a cached block share s.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from workbench.core.errors import BadInput

Pairing = Literal["neox", "interleaved"]  # channels of a plane: (i, i + R/2) or (2i, 2i + 1)


def rotate(keys: Tensor, distance: int | Tensor, inv_freq: Tensor, pairing: Pairing = "neox") -> Tensor:
    """Return `keys` [H, T, D] rerotated to `distance` positions later, in a new tensor of the same dtype.

    `distance` is one number, or [T], one per token; a negative one shifts back. Only the first R = 2 * len(inv_freq)
    channels are rotary; `pairing` is which two form a plane: "neox" (i, i + R/2), "interleaved" (2i, 2i + 1).
    Arithmetic is fp32, angles are fp64 (an angle of 1e5 radians is off by 0.004 in fp32). An attention scaling that a
    model folds into cos and sin (YaRN) is already in the keys and is not applied again.
    """
    cos, sin = cos_sin(distance, inv_freq, keys.device)
    return rotate_by(keys, cos, sin, pairing)


def rotate_layers(
    layers: Sequence[Tensor], distance: Tensor, inv_freq: Sequence[Tensor], pairing: Pairing = "neox"
) -> Iterator[Tensor]:
    """Yield `rotate` of the keys of each layer; layers with the same frequency table share their angles."""
    known: dict[int, tuple[Tensor, Tensor]] = {}
    for keys, table in zip(layers, inv_freq, strict=True):
        if id(table) not in known:
            known[id(table)] = cos_sin(distance, table, keys.device)
        yield rotate_by(keys, *known[id(table)], pairing)


def cos_sin(distance: int | Tensor, inv_freq: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return cos and sin [T or 1, R/2] (fp32) of a shift by `distance`, on `device`."""
    at = device if torch.device(device).type == "cuda" else "cpu"  # other devices may lack fp64
    shift = torch.as_tensor(distance, dtype=torch.float64, device=at).reshape(-1, 1)
    angle = shift * inv_freq.detach().to(at, torch.float64)
    return angle.cos().to(device, torch.float32), angle.sin().to(device, torch.float32)


def rotate_by(
    keys: Tensor,
    cos: Tensor,
    sin: Tensor,
    pairing: Pairing = "neox",
    out: Tensor | None = None,
) -> Tensor:
    """Rerotate `keys` [..., T, D] by the angles of `cos_sin`, into `out` if given (any dtype, not overlapping `keys`).

    `cos` may also be [T or 1, R], its R/2 columns repeated, to save that work in repeated calls.
    """
    half = sin.shape[-1]
    if out is None:
        out = torch.empty_like(keys, memory_format=torch.contiguous_format)
    if 2 * half < keys.shape[-1]:
        out[..., 2 * half :] = keys[..., 2 * half :]
    if out.dtype == keys.dtype == torch.float32 and pairing == "neox":  # whole channels are faster than halves
        rotary, to = (keys, out) if 2 * half == keys.shape[-1] else (keys[..., : 2 * half], out[..., : 2 * half])
        torch.mul(rotary, cos if cos.shape[-1] > half else torch.cat((cos, cos), -1), out=to)
        to[..., :half].addcmul_(rotary[..., half:], sin, value=-1)
        to[..., half:].addcmul_(rotary[..., :half], sin)
        return out
    cos = cos[..., :half]
    a, b = (part.float() for part in _planes(keys, half, pairing))
    to_a, to_b = _planes(out, half, pairing)
    if out.dtype == torch.float32:  # in place, without temporaries
        torch.mul(a, cos, out=to_a).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=to_b).addcmul_(a, sin)
    else:
        to_a.copy_((a * cos).addcmul_(b, sin, value=-1))
        to_b.copy_((b * cos).addcmul_(a, sin))
    return out


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [H, T, R] of "neox" pairing by angles of `cos_sin`, in their dtypes; differentiable."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def pairing_of(name: str) -> Pairing:
    """Return the pairing of this name. Raises BadInput for anything but "neox" and "interleaved"."""
    if name == "neox":
        return "neox"
    if name == "interleaved":
        return "interleaved"
    raise BadInput(f"pairing {name!r}: it is 'neox' or 'interleaved'")


def _planes(keys: Tensor, half: int, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Return two views [H, T, R/2]: the first and the second channel of each plane."""
    if pairing_of(pairing) == "neox":
        return keys[..., :half], keys[..., half : 2 * half]
    return keys[..., : 2 * half : 2], keys[..., 1 : 2 * half : 2]
