"""CompactAttention: what is selected is in the page table, and nothing else."""

import shutil
from itertools import pairwise
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.by_tile import HEADS, IDS, ROWS, WIDTH, states
from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench import models
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.core.tiling.tiles import Grid, Tiles
from workbench.engine.assembly import empty
from workbench.engine.attention_backends import attention
from workbench.engine.forward import prefill
from workbench.methods import sparse
from workbench.methods.sparse import from_spec
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.quoka import Quoka
from workbench.methods.sparse.random import RandomTiles
from workbench.metrics.tiles.key_rankings import error_bounds, head_bound
from workbench.models.checkpoints import COMPACT, WEIGHTS
from workbench.models.model_card import describe
from workbench.models.weights import compact


class Given(sparse.Sparse):
    """A choice that is known beforehand."""

    def __init__(self, kept, size):
        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "tile", size)

    size = property(lambda self: self.tile)

    def choose(self, queries, keys, grid, site):
        return grid.tiles(self.kept, len(queries))


@settings(max_examples=80)
@given(st.data())
def test_every_selected_block_is_in_the_table_and_nothing_else(data):
    """Coverage and minimality of section 3.2, for any mask, chunk and group; the last query blocks are no exception."""
    size, per, kv_heads = (
        data.draw(st.sampled_from([1, 3, 4])),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 3)),
    )
    heads = data.draw(st.sampled_from([h for h in range(1, per + 1) if per % h == 0]))
    first, count = data.draw(st.integers(0, 17)), data.draw(st.integers(1, 14))
    rows = torch.arange(first, first + count)
    shape = (per * kv_heads, ceil(count / size), ceil((first + count) / size))
    seed, density = data.draw(st.integers(0, 9999)), data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
    q, k = torch.zeros(shape[0], count, 2), torch.zeros(kv_heads, first + count, 2)
    before, after = (choose(q, k, rows) for choose in (Given(kept, size), Compact(Given(kept, size), heads)))
    assert (after.kept >= before.kept).all(), "union ⊇ mask"
    indptr, indices = after.pages(heads)
    chunk = {row // size for row in rows.tolist()}
    for group in range(len(indptr) - 1):
        table = indices[indptr[group] : indptr[group + 1]].tolist()
        mask = before.kept[group * heads : (group + 1) * heads]
        selected = {j for _, _, j in mask.nonzero().tolist()}
        assert table == sorted(selected | chunk)
    for i in range(shape[1]):
        last = int(rows[i * size : i * size + size][-1]) // size
        assert not after.kept[:, i, last + 1 :].any()


@pytest.mark.parametrize(("asked", "group"), [(0, 6), (3, 3), (2, 2), (6, 6), (16, 6)])
def test_an_execution_group_is_the_gqa_group_or_a_part_of_it(asked, group):
    assert Compact("dense", asked).group(12, 2) == group
    torch.manual_seed(0)
    q, k = torch.randn(12, 8, 4), torch.randn(2, 64, 4)
    kept = Compact("oracle(block=4, mass=0.2)", asked)(q, k, torch.arange(56, 64)).kept
    assert all(torch.equal(kept[h], kept[h // group * group]) for h in range(12))
    assert group == 6 or any(not torch.equal(kept[h], kept[h // 6 * 6]) for h in range(12))


@pytest.mark.parametrize("size", [1, 4, 5, 6, 7, 8])
def test_gqa_groups_of_any_size_share_one_table_by_default(size):
    """Qwen2.5 has groups of 5, 6 and 7; the paper's execution group is the GQA group."""
    assert Compact("dense").group(2 * size, 2) == size
    torch.manual_seed(0)
    q, k = torch.randn(2 * size, 8, 4), torch.randn(2, 64, 4)
    before, after = (
        sparse.from_spec(spec)(q, k, torch.arange(56, 64)).kept
        for spec in ("oracle(block=4, mass=0.2)", "compact(over=oracle(block=4, mass=0.2))")
    )
    for group in range(2):
        part = slice(group * size, (group + 1) * size)
        assert torch.equal(after[part, 0, :14], before[part, :, :14].any(0).any(0).expand(size, -1))


def test_chosen_tokens_count_as_their_page():
    rows, (q, k) = ROWS[1], states(ROWS[1])
    tokens = Quoka(keep=0.1, block=8)(q, k, rows)
    union = Compact(Quoka(keep=0.1, block=8))(q, k, rows)
    assert union.columns is None
    for head in range(HEADS):
        pages = {int(c) // 8 for c in tokens.columns[head // 2 * 2].nonzero()}
        assert set(union.kept[head, -1].nonzero()[:, 0].tolist()) == pages


def test_a_union_chunk_by_chunk_stays_within_the_keys():
    """One-shot, the union over all query blocks is nearly everything; by chunks it is not."""
    model, prompt = model_of("llama"), prompt_of(30, 50)
    choice = Compact("window(block=4, sink=1, local=1)")
    whole = prefill(model, prompt.tokens, Plan(torch.arange(80), sparse=choice), empty(model, 80)).logits
    dense = prefill(model, prompt.tokens, Plan(torch.arange(80)), empty(model, 80)).logits
    torch.testing.assert_close(whole, dense, atol=1e-5, rtol=1e-4)


def test_every_kv_head_has_a_page_table_of_its_own():
    """Of less than 1% of the bytes of its pages."""
    draw, rows = torch.Generator().manual_seed(0), torch.arange(992, 1024)
    queries, keys = (torch.randn(heads, 1024, 16, generator=draw) for heads in (4, 2))
    start, pages = Compact(RandomTiles(block=16, share=0.01))(queries[:, rows], keys, rows).pages(2)
    assert len({tuple(pages[a:b].tolist()) for a, b in pairwise(start.tolist())}) == 2
    page = 2 * 16 * keys.shape[-1] * keys.itemsize  # bytes of keys and values
    assert pages.itemsize * len(pages) + start.itemsize * len(start) < 0.01 * page * len(pages)


def test_union_of_columns_goes_by_group():
    columns = torch.zeros(4, 9, dtype=torch.bool)
    columns[0, 3] = columns[3, 8] = True
    tiles = Tiles(torch.zeros(4, 2, 3, dtype=torch.bool), 3, columns).union(2)
    assert [row.nonzero()[:, 0].tolist() for row in tiles.columns] == [[3], [3], [8], [8]]


# --- Weights in 8 bits: near what they were, half the size, and never taken for other weights
@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    """The tiny model with its weights in 8 bits."""
    out = tmp_path_factory.mktemp("packed") / "model"
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    compact.save(models.load(folder).model, out)
    return out


@given(st.integers(0, 99), st.floats(1e-6, 1e4))
def test_no_number_is_further_off_than_half_the_scale_of_its_row(seed, size):
    weights = {"a": torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)) * size, "b": torch.ones(7)}
    weights["a"][2] = 0
    packed = compact.pack(weights)
    assert packed["a"].dtype == torch.int8 and packed["b"].dtype == torch.bfloat16
    again = compact.unpack(packed)
    assert set(again) == {"a", "b"} and torch.equal(again["b"], weights["b"])
    assert ((again["a"] - weights["a"]).abs() <= packed["a.scale"] * 0.5001).all() and not again["a"][2].any()


def test_a_packed_model_loads_by_name_and_is_near_the_one_it_was(folder, packed):
    before, after = models.load(folder).model, models.load(packed).model
    tokens = torch.arange(12)[None]
    assert (before(tokens).logits - after(tokens).logits).abs().max() < 0.05 * before(tokens).logits.std()
    assert (packed / COMPACT).stat().st_size < 0.7 * (folder / WEIGHTS).stat().st_size
    assert describe(packed)["parameters"] <= describe(folder)["parameters"]
    assert describe(packed)["parameters"] == sum(weight.numel() for weight in set(after.parameters()))
    assert models.load(packed, dtype="float16").model.dtype == torch.float16


def test_a_packed_model_is_no_checkpoint_to_others_and_is_refused_where_it_is_not_whole(packed, tmp_path):
    with pytest.raises(OSError, match="safetensors"):
        AutoModelForCausalLM.from_pretrained(packed)
    broken = shutil.copytree(packed, tmp_path / "broken")
    weights = load_file(broken / COMPACT)
    weights.pop(first := next(name for name in weights if name.endswith("q_proj.weight")))
    save_file(weights, broken / COMPACT)
    refused(f"1 weights are missing or of the wrong shape, first {first}", models.load, broken)
    (broken / COMPACT).write_bytes(b"half")
    refused("corrupt or half-written", models.load, broken)


# --- Attention tile by tile: what a mask of the same tiles gives, and nothing read that no list names
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
    found = attention.over_tiles(q, keys, values, rows, tiles, scale)
    torch.testing.assert_close(found, masked(q, keys, values, rows, tiles, scale), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", ROWS[1:], ids=IDS[1:])
def test_tiles_that_nobody_keeps_are_not_read(rows):
    q, keys, values = inputs(rows, 2, seed=1)
    grid = Grid(rows, keys.shape[1], 8)
    kept = (grid.own_tiles | (grid.columns == 0)).expand(HEADS, -1, -1) & grid.causal
    tiles = Tiles(kept, 8, shared=2)
    before = attention.over_tiles(q, keys, values, rows, tiles, None)
    unread = ~kept.any(0).any(0).repeat_interleave(8)[: keys.shape[1]]
    assert unread.any()
    keys[:, unread], values[:, unread] = float("nan"), float("nan")
    assert torch.equal(attention.over_tiles(q, keys, values, rows, tiles, None), before)


@pytest.mark.parametrize("spec", ["bfla(block=64, tile=32, flat=16)", "oracle(block=32, mass=0.7)", "dense(block=32)"])
def test_on_a_cpu_the_engine_computes_kept_tiles_alone(spec, monkeypatch):
    called = []
    over_tiles = attention.over_tiles
    monkeypatch.setattr(attention, "over_tiles", lambda *given: called.append(len(given)) or over_tiles(*given))
    model = models.load("lab-full", "cpu")[0]
    tokens = torch.randint(3, 1700, (300,), generator=torch.Generator().manual_seed(0))
    prefill(model, tokens, Plan(torch.arange(300), sparse=from_spec(spec).for_model(model)), empty(model, 300))
    assert len(called) == model.config.num_hidden_layers


# --- BFLA's bound (equation 30) against the error that it bounds
def case(seed, tokens, share, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    logits, values = torch.randn(tokens, tokens, generator=draw) * scale, torch.randn(tokens, 4, generator=draw)
    kept = (torch.rand(tokens, tokens, generator=draw) < share) | torch.eye(tokens, dtype=torch.bool)
    return logits, values, kept


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.integers(1, 12), st.floats(0, 1), st.sampled_from([0.1, 1.0, 5.0]))
def test_no_error_exceeds_the_bound(seed, tokens, share, scale):
    one = head_bound(*case(seed, tokens, share, scale))
    assert one.error <= one.bound * (1 + 1e-9) + 1e-12 and 0 < one.density <= 1


def test_nothing_dropped_is_no_error_and_no_bound():
    logits, values, _ = case(0, 6, 1)
    one = head_bound(logits, values, torch.ones(6, 6, dtype=torch.bool))
    assert (one.density, one.error, one.bound) == (1, 0, 0)


def test_the_bound_is_the_papers_sum_of_two_parts():
    logits, values, kept = torch.zeros(2, 2), torch.eye(2), torch.eye(2, dtype=torch.bool)
    one = head_bound(logits, values, kept)  # sums 1, 2 against 1, 1: |(0, 1)| · |Z| + |Z - Z_s| = sqrt(2) + 1
    attention = 1.5**0.5  # rows (1, 0), (½, ½)
    assert one.bound == pytest.approx((2**0.5 + 1) * attention * 2**0.5 / attention)
    assert one.error == pytest.approx(0.5**0.5 / attention)


def test_a_row_without_a_pair_is_refused():
    with pytest.raises(BadInput, match="row 1 keeps no pair"):
        head_bound(torch.zeros(2, 2), torch.zeros(2, 1), torch.tensor([[True, False], [False, False]]))


def test_every_head_is_measured_at_every_threshold():
    method = sparse.from_spec("bfla(block=16, tile=4, flat=4, local=1)")
    records = error_bounds(model_of(), prompt_of(30, 34).tokens, method, (0.1, 0.9), layer=1)
    assert len(records) == 2 * 4 and all(r["error"] <= r["bound"] for r in records)
