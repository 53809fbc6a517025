"""SeerAttention (arXiv:2410.13276): select blocks with a learned gate."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench import models
from workbench.core.errors import BadInput
from workbench.methods import seer_gate
from workbench.methods.seer_gate import Gate
from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count, fraction


@dataclass(frozen=True)
class SeerAttention(Sparse):
    r"""Blocks whose gate, a softmax over the key blocks, is at least `threshold`; `for_model(model)` loads its weights.

    *Follows the paper, and for the gate released code: `seer_attn/attn_gate.py` of microsoft/SeerAttention.*

    gate       file of the gate; "" for the one in the model's folder
    threshold  published: 5e-4 to 5e-3
    top        keep this many blocks per query block instead; 0: by threshold
    tail       number of last query blocks of the prompt that keep every block
    block      tokens of a block: that of the gate, 64

    RoPE of the keys is inverted by their position, so a cache with naive positions is scored as if re-encoded.

    With $\bar q_i$ the mean query of a block, $\tilde k_j$ its keys' maximum, minimum and mean, and learned $W$:

    $$G_{ij} = \mathrm{softmax}_j \left( \frac{(W_q \bar q_i) \cdot (W_k \tilde k_j)}{\sqrt{d}} \right)
    \ge \text{threshold}$$
    """

    REPLAYS = True
    THRESHOLD = "threshold"
    STEPS = (0.1, 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 5e-4, 1e-4)

    gate: str = ""
    threshold: float = fraction(5e-4, zero=True)
    top: int = count(0)
    tail: int = count(2)
    block: int = count(64, least=1)
    trained: Gate | None = field(default=None, repr=False, compare=False)

    @property
    def needs_fitting(self) -> bool:
        return True

    def for_model(self, model: PreTrainedModel) -> "SeerAttention":
        path = Path(self.gate) if self.gate else models.folder(str(model.config.name_or_path)) / seer_gate.FILE
        gate = seer_gate.load(path, model)
        if gate.shape.block != self.block:
            raise BadInput(f"the gate {path} is for blocks of {gate.shape.block} tokens, not of {self.block}")
        return replace(self, trained=gate)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        if self.trained is None:
            raise BadInput("SeerAttention has no gate yet: call its ready(model) first")
        with torch.no_grad():
            if not self.top:
                chosen = self.trained.kept_blocks(site.layer, queries, keys, grid, site, self.threshold, self.tail)
                if chosen is not None:
                    return Tiles(chosen, self.block)
            share = self.trained(site.layer, queries, keys, grid, site).softmax(-1)
        if self.top:
            best = share.topk(min(self.top, share.shape[-1]), -1).indices
            kept = torch.zeros_like(share, dtype=torch.bool).scatter_(-1, best, True)
        else:
            kept = share >= self.threshold
        return grid.tiles(kept | grid.tail(self.tail, site.length), len(queries))

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        inner = self.trained.shape.width if self.trained else 128
        queries, keys = -(-rows // self.block), -(-length // self.block)
        return heads * inner * (queries * width + keys * 3 * width + queries * keys)
