"""How far cached keys and values are from those of a full prefill."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.methods.select import gap


@dataclass(frozen=True)
class Deviation:
    """Relative L2 error per token, layer and KV head: |cached - exact| / |exact| over the head's channels."""

    keys: Tensor  # [T, L, H] fp32
    values: Tensor  # [T, L, H] fp32

    @property
    def tokens(self) -> Tensor:
        """[T], keys and values, averaged over layers and heads."""
        return (self.keys.nanmean((1, 2)) + self.values.nanmean((1, 2))) / 2


def deviation(cached: KV, exact: KV) -> Deviation:
    """Deviation of `cached` from `exact`: the same tokens at the same positions, so that their keys can be compared.

    Layers with fewer KV heads than others are filled up with nan. Raises BadInput for two of different shape or place.
    """
    shapes = [tuple(keys.shape[:2]) for keys in cached.keys], [tuple(keys.shape[:2]) for keys in exact.keys]
    if shapes[0] != shapes[1] or cached.start != exact.start:
        raise BadInput(
            f"two KVs of [heads, tokens] {shapes[0][:1]} from position {cached.start} and {shapes[1][:1]} from "
            f"{exact.start} cannot be compared; the same model, tokens and positions are needed"
        )
    return Deviation(_relative(cached.keys, exact.keys), _relative(cached.values, exact.values))


def squared(cached: KV, exact: KV) -> Tensor:
    """[T, L] squared distance of keys and values, summed over heads and channels (FusionRAG, equation 7)."""
    return torch.stack([gap(cached, exact, layer) for layer in range(len(exact.keys))], 1)


def concentration(gaps: Tensor, points: int = 101) -> Tensor:
    """[points, L] share of the deviation `gaps` [T, L] that the most deviating tokens hold, for 0 to all of the tokens
    in even steps (FusionRAG, figure 3a); nan in a layer without any."""
    worst = gaps.double().sort(0, descending=True).values.cumsum(0)
    held = torch.cat((torch.zeros_like(worst[:1]), worst))
    return held[torch.linspace(0, len(gaps), points).round().long()] / worst[-1]


def _relative(cached: list[Tensor], exact: list[Tensor]) -> Tensor:
    layers = []
    widest = max(layer.shape[0] for layer in exact)
    for ours, theirs in zip(cached, exact, strict=True):
        gap = (ours.float() - theirs.float()).norm(dim=-1)  # [H, T]
        size = theirs.float().norm(dim=-1)
        error = torch.where(gap == 0, 0.0, gap / size)  # a zero vector met exactly deviates by nothing
        layers.append(torch.nn.functional.pad(error.T, (0, widest - error.shape[0]), value=torch.nan))
    return torch.stack(layers, 1)
