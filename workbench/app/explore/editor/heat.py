"""Per-token values as bytes for the browser: deviation, score, attention and kept tiles."""

import base64
import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Choose, Site
from workbench.core.tiling.tiles import Tiles
from workbench.engine import attention_maps

CELLS = 64  # maximum cells per side of the tile map
DECADES = 3  # of a logarithmic scale whose values are all equal
LOW, HIGH = 0.05, 0.99  # quantiles between which a deviation is painted, as in tokens.js
ROUNDING = 1e-4  # squared deviation that counts as 0, as in plots.deviation


def encode_heatmap(values: Tensor, log: bool = False, clip: float = 1.0) -> dict[str, Any]:
    """Return values [L, T] or [L, I, J] as {shape, low, high, log, data: bytes as base64}; non-finite values are 0.

    log   a byte is a step of a logarithmic scale from `low`, the quantile LOW of the positive values, to `high`; byte 0
          is the value 0
    clip  the quantile painted darkest (with `log`: of the positive values): with the maximum, one attention sink would
          leave all others white
    """
    finite = torch.where(values.isfinite(), values, 0).float().cpu()
    flat = finite.flatten()
    ordered = (flat[flat > 0] if log else flat).sort().values
    high = (_quantile(ordered, clip) or float(flat.max())) if len(flat) else 0.0
    low = _quantile(ordered, LOW) if log else 0.0
    if log and low >= high:
        low = high * 10**-DECADES
    if high <= 0:
        share = torch.zeros_like(finite)
    elif log:
        steps = (finite.clamp(min=low) / high).log() / math.log(high / low)
        share = (1 + steps).clamp(min=1 / 255).where(finite > 0, 0)
    else:
        share = finite / high
    data = (share.clamp(0, 1) * 255).round().to(torch.uint8)
    return {
        "shape": list(data.shape),
        "low": low,
        "high": high,
        "log": log,
        "data": base64.b64encode(data.numpy().tobytes()).decode(),
    }


def _quantile(ordered: Tensor, share: float) -> float:
    """Return a quantile of sorted values; 0 of none."""
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if len(ordered) else 0.0


def floats(values: Tensor) -> str:
    """Return values [T] as base64 of little-endian float32."""
    return base64.b64encode(values.float().cpu().numpy().astype("<f4").tobytes()).decode()


def deviation(gaps: Tensor) -> dict[str, Any]:
    """Paint squared deviation [T, L] as distances on a logarithmic scale of quantiles; values within rounding are 0."""
    return encode_heatmap(gaps.where(gaps > ROUNDING, 0).sqrt().T, log=True, clip=HIGH)


def from_question(model: PreTrainedModel, queries: Mapping[int, Tensor], kv: KV, prompt: Prompt) -> Tensor:
    """Return [L, T] fp32 attention from the question to every token: mean over its tokens and heads.

    `queries` [Hq, R, D] by layer, of tokens that end with the question.
    """
    rows, length = prompt.question, len(prompt)
    layers = []
    for layer, of_layer in queries.items():
        total = torch.zeros(length)
        asked, keys = of_layer[:, -len(rows) :], kv.keys[layer][:, :length]
        for _, logits in attention_maps.logits(model, layer, asked, keys, rows):
            total += attention_maps.softmax(logits).sum((0, 1)).cpu()
        layers.append(total / (len(rows) * len(asked)))
    return torch.stack(layers)


class RecordingSparse:
    """A sparse method that records its selected tiles by layer, and the seconds of selection on a CPU."""

    def __init__(self, sparse: Choose):
        self.sparse, self.tiles, self.seconds = sparse, dict[int, Tiles](), 0.0
        if hasattr(sparse, "size"):
            self.size = sparse.size

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        begin = perf_counter()
        tiles = self.sparse(queries, keys, rows, site)
        self.seconds += perf_counter() - begin if queries.device.type == "cpu" else 0
        self.tiles[site.layer], self.rows = tiles, rows
        return tiles

    def kept_share(self, layers: int) -> float:
        """Return the share of attendable (query, key) pairs in kept tiles, mean over layers and heads."""
        shares = [1.0] * (layers - len(self.tiles))
        for tiles in self.tiles.values():
            kept = tiles.paged().kept.float().mean(0).cpu()  # [I, J]
            begins = torch.arange(kept.shape[1]) * tiles.size
            seen = (self.rows.cpu()[:, None] + 1 - begins).clamp(0, tiles.size).float()  # [R, J]
            by_row = kept.repeat_interleave(tiles.size, 0)[: len(seen)]
            shares.append(float((by_row * seen).sum() / seen.sum()))
        return sum(shares) / layers


def kept_tokens(tiles: Mapping[int, Tiles], layers: int, length: int) -> Tensor:
    """Return [L, T]: share of (head, query tile) pairs that keep a token. Layers without a selection keep all."""
    shares = torch.ones(layers, length)
    for layer, of_layer in tiles.items():
        by_tile = of_layer.kept.float().mean((0, 1)).cpu()
        shares[layer] = by_tile.repeat_interleave(of_layer.size)[:length]
        if of_layer.columns is not None:
            shares[layer] = torch.maximum(shares[layer], of_layer.columns[:, :length].float().mean(0).cpu())
    return shares


def tile_map(tiles: Mapping[int, Tiles], layers: int) -> Tensor | None:
    """Return [L, I, J] share of heads that keep a tile, at most CELLS a side; None if no layer selected."""
    if not tiles:
        return None
    first = next(iter(tiles.values())).paged().kept
    shape = [min(CELLS, side) for side in first.shape[1:]]
    shares = torch.ones(layers, *shape)
    for layer, of_layer in tiles.items():
        share = of_layer.paged().kept.float().mean(0).cpu()
        shares[layer] = interpolate(share[None, None], shape, mode="area")[0, 0]
    return shares
