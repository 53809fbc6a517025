"""XAttention (arXiv:2503.16428): score blocks by sums along antidiagonals."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.plan import Plan, Site
from workbench.core.tiling import tile_selection
from workbench.core.tiling import tiles as grids
from workbench.core.tiling.tile_selection import TileRule, fewest_reaching
from workbench.core.utils.files import write_text
from workbench.core.utils.watched import Progress
from workbench.engine.assembly import empty
from workbench.engine.forward import prefill
from workbench.methods import registry, seer_gate
from workbench.methods.sparse import Grid, Sparse, Tiles, check_count, check_divides, check_share, count, fused, word


def _check_threshold(name: str, value: Any) -> None:
    if not isinstance(value, str):
        check_share(name, value)


@dataclass(frozen=True)
class Xattention(Sparse):
    r"""The fewest blocks with `threshold` of the estimated attention; column 0 and a row's own are counted first.

    *Follows the paper; its released code is the option `column=released`.*

    The antidiagonal of every `stride` × `stride` square is summed: query stride - 1 - s times key s. A softmax over
    each row of squares, with scale 1/(sqrt(D) stride), is summed over the squares of each block.

    block      tokens of a block
    stride     S; divides block
    threshold  τ in (0, 1], or a file written by `workbench sparse profile`, with a τ for every layer and head
    column     "counted": column 0 is kept for every row and counted first. "released": as the released code does in
               the first chunk of its estimate (`rows_per_chunk`), where the diagonal overwrites the mark of column 0:
               it is kept without being counted first, and one block is kept beyond those that reach τ. Its later
               chunks behave as "counted"
    products   "exact": queries and keys in their dtype. "float8": rounded to float8 (e4m3) first, which a Hopper GPU
               multiplies twice as fast; the selection is close to the exact one, not the same

    Score of a square of `stride` $= S$ rows and columns, with row index $a$ and column index $c$ of the square:

    $$P_{ac} = \mathrm{softmax}_c \left( \frac{1}{S \sqrt{D}} \sum_{s=0}^{S-1} q_{aS + S-1-s} \cdot k_{cS+s} \right)$$
    """

    THRESHOLD = "threshold"
    STEPS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)

    block: int = count(128, least=1)
    stride: int = count(8, least=1)
    threshold: float | str = registry.option(0.9, _check_threshold)
    profiled: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    column: str = word("counted", "released")
    products: str = word("exact", "float8")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides("stride", self.stride, "block", self.block)

    @property
    def needs_fitting(self) -> bool:
        return isinstance(self.threshold, str)

    def for_model(self, model: PreTrainedModel) -> "Xattention":
        return replace(self, profiled=self._read(model)) if isinstance(self.threshold, str) else self

    @property
    def rows_together(self) -> int:
        return self.block if self.column == "counted" else 0

    @property
    def replays(self) -> bool:
        return self.column == "counted"

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        if isinstance(self.threshold, str) and not self.profiled:
            raise BadInput(f"the thresholds in {self.threshold} are not read yet: call ready(model) first")
        rule = TileRule(self.block, self.block, self._share(site.layer, keys.device), first=True)
        counted = self.column == "counted"
        kept = fused("choose_xattention", queries, keys, grid.rows, rule, self.stride, self.bits) if counted else None
        if kept is None:
            score = self.scores(queries, keys, grid)
            kept = tile_selection.tiles_kept_by(score, grid.rows, grid.length, rule)
            if not counted:
                kept = torch.where(in_first_chunk(grid), first_chunk_blocks(score, grid, rule), kept)
        return Tiles(kept, self.block)

    def scores(self, queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
        """Return the estimated attention of every block, summed over squares of the query block: [Hq, I, J] fp32."""
        if self.bits == 8:
            queries, keys = (tile_selection.in_float8(x) for x in (queries, keys))
        return tile_selection.xattention(queries, keys, grid.rows, self.block, self.stride)

    @property
    def bits(self) -> int:
        """Bits per factor of the products; 16 stands for any dtype that is not rounded."""
        return 8 if self.products == "float8" else 16

    def _share(self, layer: int, device: torch.device) -> float | Tensor:
        """Return the threshold τ, or τ [Hq] per head."""
        if self.profiled:
            return _on(self.profiled[layer], device)
        assert not isinstance(self.threshold, str), "`choose` rejects a file that was not read"
        return self.threshold

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return heads * rows * length * width // self.stride

    def _read(self, model: PreTrainedModel) -> tuple[tuple[float, ...], ...]:
        path = Path(str(self.threshold))
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            thresholds = tuple(tuple(float(value) for value in layer) for layer in saved["thresholds"])
            model_key, block, stride = saved["model"], saved["block"], saved["stride"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise BadInput(f"{path} holds no thresholds: `workbench sparse profile` writes them") from None
        if model_key != seer_gate.identity(model):
            raise BadInput(f"the thresholds in {path} are of another model: profile this one")
        if (block, stride) != (self.block, self.stride):
            raise BadInput(f"the thresholds in {path} are for block {block} and stride {stride}, not for {self}")
        return thresholds


def rows_per_chunk(length: int) -> int:
    """Return the rows per chunk of the released code's estimate, for a prompt of `length` tokens."""
    power = 1 << (length - 1).bit_length()
    return max(2048, min(max(2048, power), (1 << 28) // power))


def in_first_chunk(grid: Grid) -> Tensor:
    """Return [I, 1] bool: query blocks in the first chunk of the released estimate, if the prompt starts at 0."""
    return (grid.rows[:1] < grid.size) & (grid.first_positions[:, None] < rows_per_chunk(grid.length))


def first_chunk_blocks(weights: Tensor, grid: Grid, rule: TileRule) -> Tensor:
    """Return [Hq, I, J] bool: the blocks that the released code keeps in its first chunk, from weights [Hq, I, J].

    It counts the own block and then the others in descending order, each compared with the sum before the previous
    block; column 0 takes the place of every block that is dropped.
    """
    weights = weights.masked_fill(~grid.causal, 0).double()
    own = weights.masked_fill(~grid.own_tiles, 0).sum(-1, keepdim=True)
    others, order = weights.masked_fill(grid.own_tiles, -1).sort(dim=-1, descending=True, stable=True)
    sums = own + others.clamp(min=0).cumsum(-1)
    late = torch.cat((torch.zeros_like(own), own, sums), -1)[..., : weights.shape[-1]]
    share = torch.as_tensor(rule.mass, dtype=torch.float64, device=weights.device).view(-1, 1, 1)
    taken = (late < share * weights.sum(-1, keepdim=True)) | (share >= 1)
    kept = torch.zeros_like(taken).scatter_(-1, order, taken)
    return (kept | grid.own_tiles | (grid.columns == 0)) & grid.causal


@lru_cache(maxsize=256)
def _on(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Copy values to the device; cached, since the copy synchronizes."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def shares(method: Xattention, queries: Tensor, keys: Tensor, rows: Tensor, cover: float = 0.9) -> Tensor:
    """Return the threshold [Hq] at which each head keeps the relevant blocks (the released profile).

    For every row of blocks, find the fewest with `cover` of the true attention, and the smallest estimate among them.
    The threshold is the share of blocks with at least that estimate in the sum of all estimates, over all rows.
    """
    grid = Grid(rows, keys.shape[1], method.block)
    score = method.scores(queries, keys, grid)
    relevant = fewest_reaching(grids.mass(queries, keys, grid), cover)
    least = score.masked_fill(~relevant, torch.inf).amin(-1, keepdim=True)
    return (score * (score >= least)).sum((1, 2)) / score.sum((1, 2))


def profile(
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    method: Xattention,
    cover: float = 0.9,
    progress: Progress = lambda done, of: None,
) -> tuple[tuple[float, ...], ...]:
    """Return τ for every layer and head: the maximum over `prompts` (token ids [T])."""
    check_share("cover", cover)
    check_count("the number of prompts", len(prompts), 1)
    most: list[Tensor] = []
    for done, tokens in enumerate(prompts, 1):
        kv, rows = empty(model, len(tokens)), torch.arange(len(tokens))
        layers = range(len(kv.keys))
        step = prefill(model, tokens, Plan(rows, return_queries=tuple(layers), num_layers=len(layers)), kv)
        now = [shares(method, step.queries[i], kv.keys[i], rows.to(model.device), cover).cpu() for i in layers]
        most = [torch.maximum(a, b) for a, b in zip(most, now, strict=True)] if most else now
        progress(done, len(prompts))
    return tuple(tuple(float(value) for value in layer.clamp(max=1.0)) for layer in most)


def save(path: Path, model: PreTrainedModel, method: Xattention, thresholds: Sequence[Sequence[float]]) -> None:
    """Write thresholds to a file, for `Xattention(threshold=path)`."""
    record = {"model": seer_gate.identity(model), "block": method.block, "stride": method.stride}
    write_text(path, json.dumps(record | {"thresholds": [list(layer) for layer in thresholds]}) + "\n")
