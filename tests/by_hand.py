"""A Llama forward pass layer by layer, for references: rows computed over a cache under a mask of positions."""

from dataclasses import dataclass

import torch

from workbench.core.kv import KV


@dataclass
class ByHand:
    logits: torch.Tensor  # [R, V]
    attention: list[torch.Tensor]  # per layer [Hq, R, T], logits before softmax, -inf where col > row
    kv: KV  # a copy, the fresh keys and values of the rows in place


@torch.no_grad()
def forward(model, tokens: torch.Tensor, kv: KV, rows: torch.Tensor) -> ByHand:
    """Fresh keys and values put in place, then softmax over every column <= row."""
    decoder, kv, found = model.get_decoder(), kv.clone(), []
    width = kv.keys[0].shape[-1]
    hidden = torch.arange(len(kv))[None] > rows[:, None]
    x = decoder.embed_tokens(tokens[rows])[None]
    cos, sin = decoder.rotary_emb(x, rows[None])
    for layer, keys, values in zip(decoder.layers, kv.keys, kv.values, strict=True):
        attention, y = layer.self_attn, layer.input_layernorm(x)
        q, k, v = (
            project(y)[0].unflatten(-1, (-1, width)).transpose(0, 1)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        half = width // 2
        q, k = (t * cos + torch.cat((-t[..., half:], t[..., :half]), -1) * sin for t in (q, k))
        keys[:, rows], values[:, rows] = k, v
        group = q.shape[0] // k.shape[0]
        found.append((q @ keys.repeat_interleave(group, 0).mT * width**-0.5).masked_fill(hidden, -torch.inf))
        out = found[-1].softmax(-1) @ values.repeat_interleave(group, 0)
        x = x + attention.o_proj(out.transpose(0, 1).flatten(1))[None]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return ByHand(model.lm_head(decoder.norm(x))[0], found, kv)
