"""Attention tile by tile: what a mask of the same tiles gives, and nothing read that no list names."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.by_tile import HEADS, IDS, ROWS, WIDTH
from workbench import models
from workbench.core.plan import Plan
from workbench.core.tiling.tile_grid import Grid
from workbench.core.tiling.tiles import Tiles
from workbench.engine.assembly import empty
from workbench.engine.attention_backends import cpu_attention
from workbench.engine.forward import prefill
from workbench.methods.sparse import named


def inputs(rows, kv_heads, seed):
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(HEADS, len(rows), WIDTH, generator=draw)
    return q, *(torch.randn(kv_heads, int(rows[-1]) + 1, width, generator=draw) for width in (WIDTH, WIDTH + 3))


def masked(q, keys, values, rows, tiles, scale):
    """One product and one mask for all; rows that see nothing give 0."""
    keys, values = (x.repeat_interleave(HEADS // len(x), 0) for x in (keys, values))
    seen = tiles.visible(len(rows), keys.shape[1]) & (torch.arange(keys.shape[1]) <= rows[:, None])
    logits = (q @ keys.mT * (WIDTH**-0.5 if scale is None else scale)).masked_fill(~seen, float("-inf"))
    return logits.softmax(-1).nan_to_num(0.0) @ values


@given(
    rows=st.sampled_from(ROWS),
    size=st.sampled_from((1, 4, 16, 128)),
    share=st.floats(0, 1),
    kv_heads=st.sampled_from((1, 2, 4)),
    shared=st.sampled_from((1, 2, 4)),
    scale=st.sampled_from((None, 0.3)),
    alone=st.sampled_from((None, 0.0, 0.2, 1.0)),
    seed=st.integers(0, 99),
)
def test_it_is_attention_under_the_mask_of_the_tiles(rows, size, share, kv_heads, shared, scale, alone, seed):
    q, keys, values = inputs(rows, kv_heads, seed)
    draw = torch.Generator().manual_seed(seed)
    kept = torch.rand(HEADS // shared, *Grid(rows, keys.shape[1], size).shape, generator=draw) < share
    columns = None if alone is None else torch.rand(HEADS, keys.shape[1], generator=draw) < alone
    tiles = Tiles(kept.repeat_interleave(shared, 0), size, columns, shared)
    found = cpu_attention.over_tiles(q, keys, values, rows, tiles, scale)
    torch.testing.assert_close(found, masked(q, keys, values, rows, tiles, scale), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ROWS[1:], ids=IDS[1:])
def test_tiles_that_nobody_keeps_are_not_read(rows):
    q, keys, values = inputs(rows, 2, seed=1)
    grid = Grid(rows, keys.shape[1], 8)
    kept = (grid.own | (grid.columns == 0)).expand(HEADS, -1, -1) & grid.causal
    tiles = Tiles(kept, 8, shared=2)
    before = cpu_attention.over_tiles(q, keys, values, rows, tiles, None)
    unread = ~kept.any(0).any(0).repeat_interleave(8)[: keys.shape[1]]
    assert unread.any()
    keys[:, unread], values[:, unread] = float("nan"), float("nan")
    assert torch.equal(cpu_attention.over_tiles(q, keys, values, rows, tiles, None), before)


@pytest.mark.parametrize("spec", ["bfla(block=64, tile=32, flat=16)", "oracle(block=32, mass=0.7)", "dense(block=32)"])
def test_on_a_cpu_the_engine_computes_kept_tiles_alone(spec, monkeypatch):
    called = []
    attention = cpu_attention.over_tiles
    monkeypatch.setattr(cpu_attention, "over_tiles", lambda *given: called.append(len(given)) or attention(*given))
    model = models.load("lab-full", "cpu")[0]
    tokens = torch.randint(3, 1700, (300,), generator=torch.Generator().manual_seed(0))
    prefill(model, tokens, Plan(torch.arange(300), sparse=named(spec).ready(model)), empty(model, 300))
    assert len(called) == model.config.num_hidden_layers
