"""A sparse choice beside the attention that tiles truly get, on small states."""

from functools import partial

import pytest
import torch

from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench.core.plan import Site
from workbench.core.tiling import tiles
from workbench.methods import sparse
from workbench.metrics.tiles import sparsity, tile_recall, tile_states
from workbench.metrics.tiles.key_rankings import Rankings, rankings
from workbench.metrics.tiles.tile_states import States, dense_states, synthetic_states

LENGTH = 203


@pytest.fixture(scope="module")
def states() -> States:
    torch.manual_seed(0)
    keys = {i: torch.randn(2, LENGTH, 16) for i in (0, 2)}
    return States({i: 2 * torch.randn(4, LENGTH, 16) for i in keys}, keys)


def test_states_of_a_prompt_are_those_that_a_method_is_asked_with():
    model, prompt = model_of("llama"), prompt_of(30, 20, 9)
    found = dense_states(model, prompt.tokens)
    assert found.layers == [0, 1, 2] and (found.heads, found.kv_heads, len(found)) == (4, 2, 59)
    method = sparse.named("oracle(block=8, mass=0.6)")
    head = sparsity.measure(model, [prompt], method).heads
    ours = torch.stack([tile_recall.chosen(found, i, method).held() for i in found.layers]).flatten()
    torch.testing.assert_close(ours, torch.tensor([h.mass for h in head]).double(), atol=1e-5, rtol=0)
    density = torch.stack([tile_recall.chosen(found, i, method).density() for i in found.layers]).flatten()
    torch.testing.assert_close(density, torch.tensor([h.density for h in head]).double(), atol=1e-6, rtol=0)


def test_layers_with_a_window_are_left_out():
    model = model_of("mistral", sliding_window=16)
    refused("every layer has a sliding window", dense_states, model, prompt_of(30, 20).tokens)


def test_needed_kept_and_missed_add_up(states):
    found = tile_recall.chosen(states, 2, sparse.named("window(block=16, local=1)"), 0.7)
    assert torch.equal(found.needed, tile_recall.needed(states, 2, 16, 0.7).kept)
    assert (tile_recall.needed(states, 2, 16, 0.7).held() >= 0.7).all() and found.missed.any()
    assert not (found.missed & found.kept).any() and not (found.kept & ~found.grid.causal).any()
    whole = found.held() + found.held(~found.kept)
    torch.testing.assert_close(whole, torch.ones(4).double(), atol=1e-5, rtol=0)
    dense = tile_recall.chosen(states, 2, sparse.named("dense(block=16)"))
    assert dense.density().eq(1).all() and not dense.missed.any() and dense.record()["missed_mass"] == 0


def test_chunk_by_chunk_is_what_each_chunk_chooses(states):
    method = sparse.named("quoka(block=8, keep=0.2)")
    assert tile_recall.chosen(states, 0, method).density().eq(1).all(), "of a whole prompt nothing is past"
    found = tile_recall.choice(states, 0, method, 64)
    rows = torch.arange(64, 128)
    alone = method(states.queries[0][:, rows], states.keys[0][:, :128], rows, Site(0, LENGTH)).paged()
    assert torch.equal(found.kept[:, 8:16, :16], alone.kept)
    assert not found.kept[:, 8:16, 16:].any() and not found.kept[:, 8:16, :8].all()
    refused("chunk 60 is no multiple of 8", tile_recall.chosen, states, 0, method, chunk=60)


def test_every_step_of_the_union_covers_the_one_before(states):
    found = tile_states.union(states, 0, sparse.named("random(block=8, share=0.1, sink=0, local=0)"), slice(128, 192))
    assert (found.heads >= found.kept.any(1)).all() and found.group == 2 and len(found.groups) == 2
    assert torch.equal(found.groups, found.heads.unflatten(0, (2, 2)).any(1))
    assert torch.equal(found.pages, found.groups | found.own) and found.own.nonzero()[:, 0].tolist() == [*range(16, 24)]
    lists = [found.indices[a:b].tolist() for a, b in zip(found.indptr, found.indptr[1:], strict=False)]
    assert lists == [row.nonzero()[:, 0].tolist() for row in found.pages]
    shares = found.densities()
    assert shares == sorted(shares) and shares[0] < shares[-1] < 1


def test_the_union_is_that_of_compact_attention(states):
    spec, rows = "random(block=8, share=0.1, sink=0, local=0)", torch.arange(128, 192)
    compact = sparse.named(f"compact(over={spec}, heads=1)")
    found = tile_states.union(states, 2, compact, slice(128, 192))
    tiles = compact(states.queries[2][:, rows], states.keys[2][:, :192], rows, Site(2, LENGTH))
    assert found.group == 1 and torch.equal(found.pages, tiles.kept[:, -1])


def test_a_window_of_rows_is_a_part_of_the_whole(states):
    method = sparse.named("strided(block=16, stride=3, local=0)")
    whole, tiles = tile_recall.chosen(states, 0, method, 0.6), tile_recall.choice(states, 0, method)
    part = tile_recall.window(states, 0, 3, tiles, slice(4, 9), 0.6)
    torch.testing.assert_close(part.mass, whole.mass[3, 4:9])
    assert torch.equal(part.kept, whole.kept[3, 4:9]) and torch.equal(part.needed, whole.needed[3, 4:9])
    inside = part.at(slice(2, 6))
    assert inside.mass.shape == (5, 4) and torch.equal(inside.causal, part.causal[:, 2:6])
    assert 0 < inside.held() < part.held() < 1 and part.missed() > 0


def test_the_truth_is_worked_out_once_and_only_for_the_rows_asked_for(states, monkeypatch):
    asked = []
    once = partial(lambda mass, q, k, g: asked.append(g.shape) or mass(q, k, g), tiles.mass)
    monkeypatch.setattr("workbench.metrics.tiles.tile_states.mass", once)
    again = States(states.queries, states.keys)
    for spec in ("window(block=16)", "dense(block=16)"):
        tile_recall.window(again, 0, 1, tile_recall.choice(again, 0, sparse.named(spec)), slice(10, 12))
        tile_recall.chosen(again, 2, sparse.named(spec))
    assert asked == [(2, 13), (13, 13)]


def test_rules_of_bfla_share_out_what_it_keeps(states):
    method = sparse.named("bfla(block=16, tile=8, flat=4, mass=0.5, local=1, sink=1, stride=5, random=0.05)")
    found, whole = tile_recall.bfla_rules(states, 0, method), tile_recall.chosen(states, 0, method)
    assert list(found.kept) == list(found.added) == ["mass", "local", "sink", "stride", "random"]
    together = torch.stack(list(found.kept.values())).any(0).repeat_interleave(2, 0)
    assert torch.equal(together, whole.kept)
    assert sum(d for d, _ in found.added.values()) == pytest.approx(float(whole.density().mean()))
    assert sum(m for _, m in found.added.values()) == pytest.approx(float(whole.held().mean()))


def test_made_up_states_are_sparse_and_repeatable():
    one, two = synthetic_states(2048, 3), synthetic_states(2048, 3)
    assert torch.equal(one.queries[0], two.queries[0]) and not torch.equal(
        one.keys[0], synthetic_states(2048, 4).keys[0]
    )
    needed = tile_recall.needed(one, 0, 32, 0.8)
    assert (needed.density() < 0.6).all()
    assert one.mass(0, 32)[0, 8:, 0].mean() > 0.2, "a sink"


# --- Keys by mean and by maximum: what the mean misses, and the figure that says so
def test_a_key_that_one_row_needs_is_missed_by_the_mean():
    one = Rankings(0, 0, mean=torch.tensor([0.3, 0.2, 0.1, 0.05]), peak=torch.tensor([0.4, 0.3, 0.2, 0.9]))
    by_mean, by_peak = one.largest(0.5)
    assert by_mean.tolist() == [True, True, False, False] and by_peak.tolist() == [True, False, False, True]
    assert one.missed(0.5) == 0.5 and one.missed(1.0) == 0


def test_attention_is_that_of_a_causal_softmax_over_all_keys():
    draw = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(4, 12, 8, generator=draw), torch.randn(2, 12, 8, generator=draw)
    (*_, last) = rankings(States({3: queries}, {3: keys}), window=4)
    logits = queries[3] @ keys[1].mT * 8**-0.5
    mass = logits.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf).softmax(-1)[-4:, :8]
    assert (last.layer, last.head) == (3, 3)
    assert torch.allclose(last.mean, mass.mean(0)) and torch.allclose(last.peak, mass.amax(0))


@pytest.mark.parametrize("window", [0, 12])
def test_a_window_without_keys_before_it_is_refused(window):
    states = States({0: torch.zeros(1, 12, 2)}, {0: torch.zeros(1, 12, 2)})
    refused(f"window is {window}: between 1 and 11 rows", rankings, states, window)
