"""BFLA's bound (equation 30) against the error that it bounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import BadInput
from workbench.metrics.tiles.key_rankings import error_bounds, head_bound
from workbench.plots.tiles import heads as figures


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
    from tests.random_models import model_of, prompt_of
    from workbench.methods import sparse

    method = sparse.named("bfla(block=16, tile=4, flat=4, local=1)")
    records = error_bounds(model_of(), prompt_of(30, 34).tokens, method, (0.1, 0.9), layer=1)
    assert len(records) == 2 * 4 and all(r["error"] <= r["bound"] for r in records)
    assert figures.error_bound(records, layer=1, about="tiny").data
