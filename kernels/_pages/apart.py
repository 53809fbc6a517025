"""Few rows over two lists of pages, the first with a temperature, merged by log-sum-exp (decoding of APE)."""

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
    """Run `question_attention` over both lists -> [B, Hq, R, D].

    Logits of the first are divided by `temperature`, and its log-sum-exp is multiplied by 1 + `gain` before the merge.
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
    """Compute `launch` in torch, in fp32; the output of a row without keys is 0."""
    scale, outputs = q.shape[-1] ** -0.5 if scale is None else scale, []
    for b in range(len(q)):
        parts, weights = [], []
        for pages, factor, more in ((one, scale / temperature, 1 + gain), (other, scale, 1.0)):
            k, v, at = read(keys, values, pages, b, inv_freq, pairing)
            logits = q[b].float().unflatten(0, (len(k), -1)) * factor @ k.float()[:, None].mT
            logits = logits.masked_fill(at > rows[b, :, None], -torch.inf)
            parts.append(logits.softmax(-1).nan_to_num() @ v.float()[:, None])
            weights.append(logits.logsumexp(-1, keepdim=True) * more)
        shares = torch.cat(weights, -1).softmax(-1).nan_to_num()
        outputs.append(shares[..., :1] * parts[0] + shares[..., 1:] * parts[1])
    return torch.stack(outputs).flatten(1, 2).to(q.dtype)
