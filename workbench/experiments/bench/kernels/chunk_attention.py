"""Attention of a chunk of 1,024 rows beside that of a whole prompt, on random numbers: CompactAttention's figures.

chunk_kernels    a tenth of the tiles of 64K keys, for all 64K rows and for the last 1,024: figure 1b
chunk_choices    what choosing costs, in one pass and summed over the chunks: figure 1c (`bench.chunk_choices`)
chunk_attention  the last chunk of 8K to 128K tokens under every method, choice included: figure 5, attention
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from workbench.experiments.bench import baselines, named
from workbench.experiments.bench.kernels import workloads
from workbench.experiments.bench.kernels.choices import DENSITY
from workbench.experiments.bench.kernels.chunk_choices import (
    SHARE,
    ByKernel,
    density,
    fitted,
    over_pages,
    over_tiles,
    over_tokens,
    past_read,
    rules,
    searches,
)
from workbench.experiments.bench.kernels.variants import Variant
from workbench.experiments.bench.kernels.workloads import DEVICE, KernelWorkload, numbers
from workbench.kernels._pages.lists import PageLists, lists_of, page_table

KEYS, SPARSITY = 64, 0.9  # units of keys, and share of the tiles that is left out, of figure 1b
CONTEXTS = (8, 16, 32, 64, 128)  # units of figure 5
ONE_PASS, CHUNK = "one pass", "a chunk of 1024"
TILES, UNION = "ours", "ours, pages of a union"
KEPT = "ours, means kept from chunk to chunk"


def drawn(heads: int, rows: int, columns: int, keep: float) -> Tensor:
    """Draw tiles [1, heads, rows, columns] of the last rows: a share `keep` of the causal ones, their own always."""
    place = torch.arange(columns - rows, columns, device=DEVICE)[:, None]
    column = torch.arange(columns, device=DEVICE)
    chosen = torch.rand(1, heads, rows, columns, device=DEVICE) < keep
    return (chosen & (column <= place)) | (column == place)


def union_drawn(rows: int, columns: int, keep: float) -> PageLists:
    """Draw pages before the chunk for every KV head, and take those of the chunk."""
    size, heads = workloads.PAGE, workloads.HEADS
    union = torch.rand(1, heads[1], columns, device=DEVICE) < keep
    union[..., -rows:] = True
    return page_table(union, heads[1], heads[0] // heads[1], columns, size)


def kernels(against: Sequence[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Time equal sparsity in one pass and in a chunk: figure 1b."""
    size, tokens, (heads, kv_heads) = workloads.PAGE, KEYS * unit, workloads.HEADS
    for name, count in ((ONE_PASS, tokens), (CHUNK, unit)):
        kept = drawn(heads, count // size, tokens // size, 1 - SPARSITY)
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
        work.enter("ours, dense", partial, named("tile_attention").launch, q, keys, values, rows)
        if count < tokens:
            table = union_drawn(count // size, tokens // size, 1 - SPARSITY)
            work.enter(UNION, partial, named("page_list_attention").launch, q, keys, values, rows, table)
        work.enter_torch(against, q, keys, values, count == tokens, ", dense")
        if "flashinfer" in against:
            work.enter("flashinfer, dense", baselines.flashinfer_dense, q, keys, values)
        yield work


def attention(against: Sequence[str], tried: Sequence[Variant], unit: int = 1024) -> Iterator[KernelWorkload]:
    """Time the last chunk under every method, its choice included: figure 5, attention."""
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
            work.enter(name, partial, over_tiles, fitted(name, rule, each, DENSITY), *inputs)
            if name == "xattention":
                continue  # the paper unites the two that are cheap
            united = fitted(name, rule, union, SHARE)
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
