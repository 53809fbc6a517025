"""Figures that show how a method works, carried out on a tiny random model and counted: no quality, no time."""

from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.masks import block_attention, causal, visible
from workbench.core.plan import Plan
from workbench.core.tile_grid import Grid
from workbench.data.game import frames
from workbench.data.layouts import RELEASED
from workbench.data.sample import Passage, Sample
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.experiments.papers.evidence import counted
from workbench.experiments.papers.verdicts import Finding, Findings
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.sparse.bfla import Bfla
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.random import RandomTiles
from workbench.metrics.answers import bootstrap
from workbench.metrics.kv_deviation import full_attention_kv
from workbench.metrics.position_encoding import differences, tiny
from workbench.store import MemoryStore

EXAMPLE = Prompt(tuple(Block(tokens) for tokens in ((2,), (3, 4), (5, 6, 7), (8, 9))))  # FusionRAG, figure 6
CHOSEN = (2, 4)  # its third and fifth token, counted from 0
SEEN = (3, 5, 7, 8)  # what the four rows of its mask see
ROUNDING = 1e-4  # of fp32 logits of a tiny model


@cache
def model() -> PreTrainedModel:
    """Make the tiny random model."""
    return tiny({"model_type": "llama"})


def states(tokens: int = 256) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries [4, T, 16], keys [2, T, 16] and all rows [T]."""
    draw = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(heads, tokens, 16, generator=draw) for heads in (4, 2))
    return queries, keys, torch.arange(tokens)


def block_masks() -> Findings:
    """Block-Attention, figure 1: passages see themselves alone, the last block sees everything."""
    rows, of = torch.arange(len(EXAMPLE)), EXAMPLE.block_of
    mask = visible(block_attention(EXAMPLE), rows, rows)
    asked = of == len(EXAMPLE.blocks) - 1
    across = mask & (of[:, None] != of) & ~asked[:, None]
    hidden = visible(causal, rows, rows)[asked] & ~mask[asked]
    return [
        counted("pairs of two passages that the mask shows", int(across.sum()), across.numel(), 0),
        counted("earlier tokens that it hides from the question", int(hidden.sum()), hidden.numel(), 0),
    ]


def pipeline() -> Findings:
    """Block-Attention, figure 2: cached blocks are moved to their place, and only the last block is computed."""
    (request,) = Reuse().begin(model(), [EXAMPLE])
    others = set(request.request.plan.rows.tolist()) - set(EXAMPLE.question.tolist())
    largest = differences(model(), EXAMPLE)["logits"]
    return [
        counted("computed tokens outside the question", len(others), len(EXAMPLE), 0),
        counted("largest difference of logits from the block mask", largest, 1, ROUNDING, "below", ".1e"),
    ]


def prompt_format() -> Findings:
    """Block-Attention, figure 3: instruction, then a block a passage, then the question."""
    sample = Sample("0", "Who?", ("A",), tuple(Passage(name, f"On {name}.") for name in "abc"))
    pieces = RELEASED.pieces(sample)
    early = [piece for piece in pieces[:-1] if sample.question in piece]
    apart = [piece for piece, ctx in zip(pieces[1:], sample.ctxs, strict=False) if ctx.text in piece]
    return [
        counted("blocks that hold one of the three passages", len(apart), len(pieces), 3),
        counted("blocks but the last that hold the question", len(early), len(pieces), 0),
    ]


def game(bar: float, count: int = 40) -> Findings:
    """Block-Attention, figure 5: what of a state of the game has to be encoded after one move."""
    hall, shares = frames(count), []
    for before, now in pairwise(hall):
        old, pieces = set(before.pieces()), now.pieces()
        shares.append(sum(len(piece) for piece in pieces if piece not in old) / sum(map(len, pieces)))
    low, high = bootstrap(shares)
    what = f"share of the characters that change, {len(hall[0].pieces())} blocks"
    return [Finding(what, sum(shares) / len(shares), low, high, len(shares), "computed", "below", bar, ".1%")]


def full_reuse() -> Findings:
    """FusionRAG, figure 5: a chunk sees the system prompt and itself, as if it stood alone behind it."""
    store = MemoryStore()
    (cached,) = AfterSystem()(model(), [EXAMPLE], store)
    system, *chunks, question = EXAMPLE.blocks
    far = 0.0
    for chunk, kv in zip(chunks, cached[1:], strict=True):
        alone = full_attention_kv(model(), Prompt((system, chunk, question))).slice(1, 1 + len(chunk))
        far = max(far, *(float((a - b).abs().max()) for a, b in zip(kv.keys, alone.keys, strict=True)))
    return [counted("largest difference of keys from [system, chunk]", far, len(chunks), ROUNDING, "below", ".1e")]


def cache_fusion() -> Findings:
    """FusionRAG, figure 6: the mask of the chosen tokens and the question over a cache of eight."""
    rows = torch.cat((torch.tensor(CHOSEN), EXAMPLE.question))
    mask = visible(Plan(rows).sees, rows, torch.arange(len(EXAMPLE)))
    expected = torch.arange(len(EXAMPLE)) < torch.tensor(SEEN)[:, None]
    return [counted("entries of the 4 × 8 mask unlike the paper's", int((mask != expected).sum()), mask.numel(), 0)]


def alternative_path() -> Findings:
    """FusionRAG, figure 10: a chunk that another prompt cached is found behind other chunks."""
    system, a, b, question = EXAMPLE.blocks
    store, prepare = MemoryStore(), AfterSystem()
    for earlier in ((system, b, question), (system, a, b, question)):
        prepare(model(), [Prompt(earlier)], store)
    before = store.stats
    prepare(model(), [Prompt((system, b, a, question))], store)
    found = store.stats.since(before)
    return [
        counted("chunks of the third query that are computed again", found.misses, found.hits + found.misses, 0),
        counted("copies in the store", store.stats.entries, 3, 3),
    ]


def exclusive_pages() -> Findings:
    """FusionRAG, figure 12: recomputed tokens are written beside the shared chunk, which stays as it was."""
    store = MemoryStore()
    (cached,) = AfterSystem()(model(), [EXAMPLE], store)
    before = [keys.clone() for kv in cached for keys in kv.keys]
    (request,) = Reuse(prepare=AfterSystem()).begin(model(), [EXAMPLE], store)
    rows = torch.cat((torch.tensor(CHOSEN), EXAMPLE.question))
    prefill_many(model(), [PrefillRequest(EXAMPLE.tokens, Plan(rows), request.request.kv)])
    changed = sum(int((a != b).sum()) for a, b in zip(before, (k for kv in cached for k in kv.keys), strict=True))
    return [counted("numbers of the shared chunks that changed", changed, sum(x.numel() for x in before), 0)]


def bfla_rules() -> Findings:
    """BFLA, figure 1: kept are the blocks that hold the mass, and the rescued tiles, nothing else."""
    queries, keys, rows = states()
    method = Bfla(block=64, tile=16, flat=16, mass=0.5, local=1)
    kept = method(queries, keys, rows).kept
    causes = method.causes(queries, keys, rows)
    named = torch.stack(list(causes.values())).any(0)
    own = Grid(rows, keys.shape[1], 16).own
    return [
        counted("kept tiles without a rule that keeps them", int((kept & ~named & ~own).sum()), int(kept.sum()), 0),
        counted("tiles that a rule keeps and that were dropped", int((named & ~kept).sum()), kept.numel(), 0),
    ]


def block_union() -> Findings:
    """CompactAttention, figure 3: the page table covers the mask, and holds only what was selected."""
    queries, keys, rows = states()
    over = RandomTiles(block=16, share=0.2)
    before, after = (method(queries, keys, rows) for method in (over, Compact(over)))
    grid = Grid(rows, keys.shape[1], before.size)
    selected = before.kept.unflatten(0, (2, -1)).any(1).any(1) | grid.own.any(0)
    spare = after.kept & ~selected.repeat_interleave(2, 0)[:, None]
    return [
        counted("selected tiles that the union lacks", int((before.kept & ~after.kept).sum()), before.kept.numel(), 0),
        counted("pages in it that no query selected", int(spare.sum()), after.kept.numel(), 0),
    ]


def page_tables() -> Findings:
    """CompactAttention, figure 4: every KV head has a page table of its own, and no key or value is copied."""
    queries, keys, rows = states(1024)
    start, pages = Compact(RandomTiles(block=16, share=0.01))(queries, keys, rows[-32:]).pages(2)
    tables = {tuple(pages[a:b].tolist()) for a, b in pairwise(start.tolist())}
    page = 2 * 16 * keys.shape[-1] * keys.itemsize  # bytes of keys and values
    share = (pages.itemsize * len(pages) + start.itemsize * len(start)) / (page * len(pages))
    return [
        counted("different tables of two KV heads", len(tables), 2, 2),
        counted("bytes of the table over those of the pages it selects", share, len(pages), 0.01, "below", ".2%"),
    ]
