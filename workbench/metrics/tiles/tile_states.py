"""Queries and keys of a prompt, real or made up, with the attention that its tiles truly get."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.tiling.tile_grid import Grid, mass
from workbench.engine.attention_maps import whole_layers
from workbench.engine.forward import all_rows, prefill_many
from workbench.metrics.tiles.sparsity import scaled


@dataclass(frozen=True, eq=False)
class States:
    """Queries and keys of a prompt under dense attention, by layer in which a sparse method may choose.

    Logits are queries · keys / sqrt(D).
    """

    queries: dict[int, Tensor]  # [Hq, T, D]
    keys: dict[int, Tensor]  # [H, T, D]
    _known: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> list[int]:
        return list(self.keys)

    @property
    def heads(self) -> int:
        return len(next(iter(self.queries.values())))

    @property
    def kv_heads(self) -> int:
        return len(next(iter(self.keys.values())))

    def __len__(self) -> int:
        """Return how many tokens the prompt has."""
        return next(iter(self.keys.values())).shape[1]

    def mass(self, layer: int, size: int) -> Tensor:
        """Return [Hq, I, J] fp32 attention that tiles of `size` truly get, mean over the rows of a query tile; kept."""
        at = layer, size
        if at not in self._known:
            self._known[at] = mass(self.queries[layer], self.keys[layer], self.grid(size))
        return self._known[at]

    def mass_of(self, layer: int, head: int, rows: slice, size: int) -> Tensor:
        """Return [i, J] fp32, the same of one head and of the query tiles `rows` only; other rows are not computed."""
        at = layer, size, head, rows.start, rows.stop
        if at not in self._known:
            grid, keys = self.grid(size, rows), self.keys[layer][head // (self.heads // self.kv_heads)]
            self._known[at] = mass(self.queries[layer][head, grid.rows][None], keys[None], grid)[0]
        return self._known[at]

    def grid(self, size: int, rows: slice = slice(None)) -> Grid:
        """Return tiles of the whole prompt, or of some query tiles of it."""
        positions = torch.arange(len(self), device=next(iter(self.keys.values())).device)
        start, stop, _ = rows.indices(-(-len(self) // size))
        return Grid(positions[start * size : stop * size], len(self), size)


def dense_states(model: PreTrainedModel, tokens: Tensor) -> States:
    """Run one dense pass over token ids [T].

    Layers with a sliding window narrower than the prompt are left out; BadInput where no layer is left.
    """
    layers = tuple(whole_layers(model, len(tokens)))
    if not layers:
        raise BadInput(f"every layer has a sliding window narrower than the {len(tokens)} tokens: nothing to choose")
    request = all_rows(model, tokens, return_queries=layers)
    (output,) = prefill_many(model, [request], logits_to_keep=1)
    return States({i: scaled(model, i, output) for i in layers}, {i: request.kv.keys[i] for i in layers})


def synthetic_states(length: int, seed: int = 0, topics: int = 12) -> States:
    """Make up one layer of 2 query heads over 1 KV head of 64 channels, with the sparse attention of long prompts.

    Keys carry a topic (of stretches of 200 to 3,000 tokens), their place (slow rotations), and a common direction: the
    first 4 tokens (a sink) and every thousandth or so (a column). Head 0 attends to tokens nearby and the sink, head 1
    to its topic and the columns.
    """
    draw = torch.Generator().manual_seed(seed)
    width = 48
    place = torch.arange(length)[:, None]
    subjects = normalize(torch.randn(topics, width, generator=draw), dim=-1)
    spans = torch.randint(200, 3001, (length // 200 + 1,), generator=draw)
    topic_of = torch.randint(topics, (len(spans),), generator=draw).repeat_interleave(spans)[:length]
    common = torch.zeros(length, 1)
    common[torch.rand(length, generator=draw) < 1e-3] = 0.6
    common[:4] = 1
    angles = place * torch.tensor([1 / 60, 1 / 150, 1 / 400, 1 / 1000, 1 / 2500, 1 / 6000, 1 / 15000])
    places = torch.cat((angles.cos(), angles.sin()), 1)
    noise = 0.06 * torch.randn(3, length, width, generator=draw)
    keys = torch.cat((subjects[topic_of] + noise[0], places, common, 1 - common), 1)
    ones = torch.ones(length, 1)
    near = torch.cat((8 * noise[1], 9 * places, 60 * ones, 0 * ones), 1)
    topic = torch.cat((45 * (subjects[topic_of] + noise[2]), 2 * places, 55 * ones, 0 * ones), 1)
    return States({0: torch.stack((near, topic))}, {0: keys[None]})
