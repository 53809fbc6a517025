"""Keys by mean and by maximum: what the mean misses, and the figure that says so."""

import pytest
import torch

from workbench.core.errors import BadInput
from workbench.metrics.tiles.key_rankings import Rankings, rankings
from workbench.metrics.tiles.tile_states import States


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
    with pytest.raises(BadInput, match=f"window is {window}: between 1 and 11 rows"):
        rankings(states, window)
