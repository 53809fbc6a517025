"""Few rows over two lists of pages, the first at a temperature; both parts merged by log-sum-exp (APE's decoding)."""

import torch
from torch import Tensor

from workbench.core.page_table import Paged
from workbench.core.rope import Pairing
from workbench.kernels._pages.parts import merge_lists
from workbench.kernels._pages.triton_kernel import read
from workbench.kernels.question_attention import launch_parts


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    one: Paged,
    other: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
    temperature: float = 1.0,
    gain: float = 0.0,
) -> Tensor:
    """`question_attention` over both lists [B, Hq, R, D]; logits of the first over a temperature.

    The log-sum-exp of the first grows by `gain` times itself before the parts are merged.
    """
    batch, heads, count, width = q.shape
    scale = width**-0.5 if scale is None else scale
    first = launch_parts(q, keys, values, rows, one, inv_freq, pairing, scale / temperature)
    rest = launch_parts(q, keys, values, rows, other, inv_freq, pairing, scale)
    out = q.new_empty(heads, batch * count, width)
    merge_lists(*first, *rest, None, out, gain)
    return out.unflatten(1, (batch, count)).transpose(0, 1)


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    one: Paged,
    other: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
    temperature: float = 1.0,
    gain: float = 0.0,
) -> Tensor:
    """`launch` in torch, computed in fp32; a row that sees nothing gives 0."""
    scale, made = q.shape[-1] ** -0.5 if scale is None else scale, []
    for b in range(len(q)):
        parts, weights = [], []
        for pages, factor, more in ((one, scale / temperature, 1 + gain), (other, scale, 1.0)):
            k, v, at = read(keys, values, pages, b, inv_freq, pairing)
            logits = q[b].float().unflatten(0, (len(k), -1)) * factor @ k.float()[:, None].mT
            logits = logits.masked_fill(at > rows[b, :, None], -torch.inf)
            parts.append(logits.softmax(-1).nan_to_num() @ v.float()[:, None])
            weights.append(logits.logsumexp(-1, keepdim=True) * more)
        shares = torch.cat(weights, -1).softmax(-1).nan_to_num()
        made.append(shares[..., :1] * parts[0] + shares[..., 1:] * parts[1])
    return torch.stack(made).flatten(1, 2).to(q.dtype)
