"""Attention of a chunk of 1,024 rows compared with a whole prompt, on random numbers: CompactAttention's figures.

chunk_kernels    a tenth of the tiles of 64K keys, for all 64K rows and for the last 1,024: figure 1b
chunk_choices    cost of the selection, in one pass and summed over the chunks: figure 1c (`searches`)
chunk_attention  the last chunk of 8K to 128K tokens under each method, selection included: figure 5, attention

CompactAttention's baselines come with their lists. A selection is called chunk by chunk, with the chunk's queries, all
keys so far and the positions of the rows. Thresholds are set beforehand, so that densities are comparable; random
numbers have no density of their own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workbench.core.plan import Site
from workbench.core.tiling.tile_selection import TileRule
from workbench.core.tiling.tiles import Grid
from workbench.experiments.bench import baselines, workload_module
from workbench.experiments.bench.kernels import workloads
from workbench.experiments.bench.kernels.choices import DENSITY, STRIDE, with_density
from workbench.experiments.bench.kernels.workloads import DEVICE, KernelWorkload, Variant, numbers
from workbench.kernels._pages.lists import PageLists, lists_of, page_table, union_of
from workbench.kernels._select import copies
from workbench.methods.sparse.quoka import Quoka

LENGTHS = (16, 32, 64, 128)  # in units
TINY = 1e-30  # threshold at which a gate keeps everything
SHARE = 0.25  # of the pages before a chunk that a union reads, and of the tokens that QUOKA keeps
Choice = Callable[[Tensor, Tensor, Tensor], Any]  # q [B, Hq, R, D], keys [B, H, T, D], rows [B, R]


def past_of(q: Tensor, keys: Tensor) -> int:
    """Return the number of tokens before the chunk."""
    return keys.shape[2] - q.shape[2]


@dataclass
class ByKernel:
    """Selection by one of the kernels.

    capacity   tokens of the whole prompt: FlashPrefill's mean keys are kept between chunks; 0: they are not
    """

    kernel: str
    rule: TileRule
    options: tuple[int, ...] = ()
    capacity: int = 0
    means: Any = None

    def __call__(self, q: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        module, options = workload_module(self.kernel), {}
        if self.capacity:
            past = past_of(q, keys)
            if past and self.means is not None:
                self.means = module.pooled(keys, self.rule.block, self.means, past)
            else:
                self.means = module.pooled(keys, self.rule.block, capacity=self.capacity)
            options = {"means": self.means}
        kept: Tensor = module.launch(q, keys, rows, self.rule, *self.options, **options)
        return kept


@dataclass
class RandomGate:
    """SeerAttention's gate with random weights; pooled keys of earlier chunks are kept, so a chunk only pools its own.

    Its rotations are left out, so its time is a lower bound for such a gate. A tile is kept if the gate is at least 1 -
    `rule.mass` of the largest of its row.
    """

    rule: TileRule
    width: int = 128
    pooled: Tensor | None = None  #: [B, H, J or more, width]
    known: int = 0  #: number of pooled blocks
    weights: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, q: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        return self.select_tiles(q, keys, Grid(rows[0], keys.shape[2], self.rule.block))

    def select_tiles(self, q: Tensor, keys: Tensor, grid: Grid) -> Tensor:
        """Return the selection [B, Hq, I, J] for rows of a grid of blocks."""
        logits = self.logits(q, keys).masked_fill(~grid.causal, -torch.inf)
        least = logits.amax(-1, keepdim=True) + (1 - torch.as_tensor(self.rule.mass)).clamp(min=TINY).log()
        return ((logits >= least) & grid.causal) | grid.own_tiles

    def logits(self, q: Tensor, keys: Tensor) -> Tensor:
        """Return [B, Hq, I, J] fp32: the gate's logits for each pair of blocks."""
        block, count = self.rule.block, keys.shape[2] // self.rule.block
        if not self.weights:
            sizes = {"query": (q.shape[1], q.shape[-1]), "key": (keys.shape[1], 3 * q.shape[-1])}
            self.weights |= {name: numbers(*s, self.width).float() / s[1] ** 0.5 for name, s in sizes.items()}
        known = 0 if self.pooled is None else min(self.known, past_of(q, keys) // block)
        fresh = keys[:, :, known * block :].unflatten(2, (-1, block))
        pools = fresh.amax(3), fresh.amin(3), fresh.mean(3, dtype=torch.float32)
        if self.pooled is None or self.pooled.shape[2] < count:
            room = pools[2].new_empty(*keys.shape[:2], 2 * count, self.width)
            if self.pooled is not None and known:
                room[:, :, :known] = self.pooled[:, :, :known]
            self.pooled = room
        theirs = self.pooled[:, :, :count]
        theirs[:, :, known:] = torch.cat(pools, -1) @ self.weights["key"]
        self.known = count
        ours = q.unflatten(2, (-1, block)).mean(3, dtype=torch.float32) @ self.weights["query"]
        by_group = ours.view(*keys.shape[:2], -1, self.width)  # query heads of a KV head become rows of one product
        return (by_group @ theirs.mT).view(*ours.shape[:3], count)


def quoka(q: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
    """Select QUOKA's tokens of the past and the chunk, as in the engine: [B, H, K] int64, ascending."""
    method = Quoka(keep=SHARE, block=min(workloads.PAGE, q.shape[2]))
    found = [method(*one, Site(last=True)).listed for one in zip(q, keys, rows, strict=True)]
    return torch.stack([listed for listed in found if listed is not None])


def attend_gathered(q: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """Attend to the tokens `at` [B, H, K] in a copy of their keys and values.

    The chunk attends to all of itself, as in the dense baselines of a chunk here.
    """
    k, v = (x.gather(2, at[..., None].expand(-1, -1, -1, x.shape[-1])) for x in (keys, values))
    return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def over_tiles(choice: Choice, size: int, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """Select tiles, list them, attend over the lists: block-sparse attention."""
    lists = lists_of(choice(q, keys, rows).flatten(0, 1))
    out: Tensor = workload_module("tile_attention").launch(q, keys, values, rows, *lists, size, size)
    return out


def over_pages(choice: Choice, size: int, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """Select tiles, form the union over the chunk and the heads of a group, attend over pages: CompactAttention."""
    group = q.shape[1] // keys.shape[1]
    union = union_of(choice(q, keys, rows), group)
    union[..., past_of(q, keys) // size :] = True
    table = page_table(union, keys.shape[1], group, keys.shape[2] // size, size)
    out: Tensor = workload_module("page_list_attention").launch(q, keys, values, rows, table)
    return out


def over_tokens(q: Tensor, keys: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """QUOKA: select tokens, copy them, attend; on a GPU by the engine's kernels."""
    at = quoka(q, keys, rows)
    if not q.is_cuda:
        return attend_gathered(q, keys, values, at)
    copied = copies.launch(keys.flatten(0, 1), values.flatten(0, 1), at.flatten(0, 1))
    ranks = torch.arange(at.shape[2] - rows.shape[1], at.shape[2], device=q.device).expand_as(rows)
    out: Tensor = workload_module("tile_attention").launch(q, *(x.unflatten(0, keys.shape[:2]) for x in copied), ranks)
    return out


def density(choice: Choice, q: Tensor, keys: Tensor, rows: Tensor, size: int) -> float:
    """Return the share of the causal tiles that a selection keeps."""
    causal = Grid(rows[0], keys.shape[2], size).causal
    return (choice(q, keys, rows).float().mean() / causal.float().mean()).item()


def past_read(choice: Choice, q: Tensor, keys: Tensor, rows: Tensor, size: int) -> float:
    """Return the share of the pages before the chunk that the union reads."""
    union = union_of(choice(q, keys, rows), q.shape[1] // keys.shape[1])
    return union[..., : past_of(q, keys) // size].float().mean().item()


def rules(unit: int) -> dict[str, TileRule]:
    """Return the published rule of each method, with its threshold not yet set."""
    size, small = max(16, unit // 8), max(16, unit // 16)  # the minimum tile of attention
    return {
        "flash_prefill": TileRule(size, size, part=0.5, whole=True, local=3, sink=2),
        "xattention": TileRule(size, size, 0.9, first=True),
        "seer_attention": TileRule(small, small, 0.9),
    }


def fit_threshold(
    name: str, rule: TileRule, measure: Callable[[Choice], float], target: float
) -> RandomGate | ByKernel:
    """Return the selection of a method, with its threshold set so that `measure` of it is `target`."""
    choice: RandomGate | ByKernel = RandomGate(rule)
    if name != "seer_attention":
        choice = ByKernel(f"choose_{name}", rule, (STRIDE,) if name == "xattention" else ())

    def at(tried: TileRule) -> float:
        choice.rule = tried
        return measure(choice)

    choice.rule = with_density(rule, "part" if name == "flash_prefill" else "mass", at, target)
    return choice


def chunks_of(choice: Choice, q: Tensor, keys: Tensor, rows: Tensor, unit: int) -> None:
    """Select chunk by chunk, each over all keys so far."""
    for begin in range(0, q.shape[2], unit):
        end = begin + unit
        choice(q[:, :, begin:end], keys[:, :, :end], rows[:, begin:end].contiguous())


def searches(against: Sequence[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Time selections in one pass over a prompt, and summed over its chunks of 1024: figure 1c."""
    heads, kv_heads = workloads.HEADS
    for length in LENGTHS:
        tokens = length * unit
        q, keys = (numbers(1, n, tokens, workloads.WIDTH) for n in (heads, kv_heads))
        rows = torch.arange(tokens, device=DEVICE)[None]
        shape = {"tokens": tokens, "chunk": unit, "heads": workloads.HEADS, "density": DENSITY}
        work = KernelWorkload(f"choices over {length}K", shape, 1.0, float(keys.nbytes))
        for name, rule in rules(unit).items():
            measure = partial(density, q=q, keys=keys, rows=rows, size=rule.block)
            choice = fit_threshold(name, rule, measure, DENSITY)
            work.enter(f"{name}, one pass", partial, choice, q, keys, rows)
            work.enter(f"{name}, in chunks", partial, chunks_of, choice, q, keys, rows, unit)
            if isinstance(choice, ByKernel) and name == "flash_prefill":
                kept = replace(choice, capacity=tokens)
                work.enter(f"{name}, in chunks, means kept", partial, chunks_of, kept, q, keys, rows, unit)
        work.enter("quoka, in chunks", partial, chunks_of, quoka, q, keys, rows, unit)
        yield work


KEYS, SPARSITY = 64, 0.9  # units of keys, and share of the tiles that is left out, of figure 1b
CONTEXTS = (8, 16, 32, 64, 128)  # units of figure 5
ONE_PASS, CHUNK = "one pass", "a chunk of 1024"
TILES, UNION = "ours", "ours, pages of a union"
KEPT = "ours, means kept from chunk to chunk"


def draw_tiles(heads: int, rows: int, columns: int, keep: float) -> Tensor:
    """Draw tiles [1, heads, rows, columns] of the last rows: a share `keep` of the causal ones, and their own."""
    place = torch.arange(columns - rows, columns, device=DEVICE)[:, None]
    column = torch.arange(columns, device=DEVICE)
    chosen = torch.rand(1, heads, rows, columns, device=DEVICE) < keep
    return (chosen & (column <= place)) | (column == place)


def union_drawn(rows: int, columns: int, keep: float) -> PageLists:
    """Draw pages before the chunk for each KV head, and add those of the chunk."""
    size, heads = workloads.PAGE, workloads.HEADS
    union = torch.rand(1, heads[1], columns, device=DEVICE) < keep
    union[..., -rows:] = True
    return page_table(union, heads[1], heads[0] // heads[1], columns, size)


def kernels(against: Sequence[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Time equal sparsity in one pass and in a chunk: figure 1b."""
    size, tokens, (heads, kv_heads) = workloads.PAGE, KEYS * unit, workloads.HEADS
    for name, count in ((ONE_PASS, tokens), (CHUNK, unit)):
        kept = draw_tiles(heads, count // size, tokens // size, 1 - SPARSITY)
        own = heads * (count // size)
        pairs = size * size * (int(kept.sum()) - own / 2)
        all_pairs = heads * (count * tokens - count * (count - 1) / 2)
        shape = {"rows": count, "keys": tokens, "density": pairs / all_pairs, "heads": workloads.HEADS, "tile": size}
        q, keys, values = (numbers(1, *of, workloads.WIDTH) for of in ((heads, count), *[(kv_heads, tokens)] * 2))
        work = KernelWorkload(
            f"{name} over {KEYS}K, {1 - SPARSITY:.0%} of tiles", shape, 4 * workloads.WIDTH * pairs, 0.0
        )
        work.bytes = float(q.nbytes * 2 + keys.nbytes * 2)
        rows = torch.arange(tokens - count, tokens, device=DEVICE)[None]
        lists = lists_of(kept.flatten(0, 1))
        work.enter_ours("tile_attention", (), q, keys, values, rows, *lists, size, size)
        work.enter("ours, dense", partial, workload_module("tile_attention").launch, q, keys, values, rows)
        if count < tokens:
            table = union_drawn(count // size, tokens // size, 1 - SPARSITY)
            work.enter(UNION, partial, workload_module("page_list_attention").launch, q, keys, values, rows, table)
        work.enter_torch(against, q, keys, values, count == tokens, ", dense")
        if "flashinfer" in against:
            work.enter("flashinfer, dense", baselines.flashinfer_dense, q, keys, values)
        yield work


def attention(against: Sequence[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Time the last chunk under each method, selection included: figure 5, attention."""
    batch, heads, kv_heads = workloads.CHUNK
    for length in CONTEXTS:
        tokens = length * unit
        q = numbers(batch, heads, unit, workloads.WIDTH)
        keys, values = (numbers(batch, kv_heads, tokens, workloads.WIDTH) for _ in range(2))
        rows = torch.arange(tokens - unit, tokens, device=DEVICE).expand(batch, -1).contiguous()
        shape = {"rows": unit, "keys": tokens, "batch": batch, "heads": (heads, kv_heads)}
        shape |= {"density": DENSITY, "union": SHARE}
        seen = batch * heads * unit * (SHARE * (tokens - unit) + unit / 2)
        flops, traffic = 4.0 * seen * workloads.WIDTH, float(q.nbytes * 2 + SHARE * keys.nbytes * 2)
        work = KernelWorkload(f"last chunk of {length}K, choice and attention", shape, flops, traffic)
        for name, rule in rules(unit).items():
            size = rule.block
            each = partial(density, q=q, keys=keys, rows=rows, size=size)
            union = partial(past_read, q=q, keys=keys, rows=rows, size=size)
            inputs = size, q, keys, values, rows
            work.enter(name, partial, over_tiles, fit_threshold(name, rule, each, DENSITY), *inputs)
            if name == "xattention":
                continue  # the paper applies the union to the two cheap methods
            united = fit_threshold(name, rule, union, SHARE)
            work.enter(
                "ours" if isinstance(united, ByKernel) else f"ours over {name}", partial, over_pages, united, *inputs
            )
            if isinstance(united, ByKernel):
                work.enter(KEPT, partial, over_pages, replace(united, capacity=tokens), *inputs)
        work.enter("quoka", partial, over_tokens, q, keys, values, rows)
        work.enter_torch(against, q, keys, values, label=", dense")
        if "flashinfer" in against:
            size = workloads.PAGE
            every = torch.ones(batch, kv_heads, tokens // size, dtype=torch.bool, device=DEVICE)
            table = page_table(every, kv_heads, heads // kv_heads, tokens // size, size)
            pages = table.indptr, table.indices, size
            work.enter("flashinfer, dense", baselines.flashinfer_pages, q, keys, values, *pages)
        yield work


COMPARISONS: Mapping[str, Callable[..., Iterator[KernelWorkload]]] = {
    "chunk_kernels": kernels,
    "chunk_choices": searches,
    "chunk_attention": attention,
}
