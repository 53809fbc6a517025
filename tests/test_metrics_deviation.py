import pytest
import torch

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.metrics.kv_deviation import deviation


def kv(*layers, start=0):
    return KV([torch.tensor(layer) for layer in layers], [torch.tensor(layer) for layer in layers], start)


def test_relative_error_of_every_token_layer_and_head():
    exact = kv([[[3.0, 4.0], [0.0, 2.0]]], [[[1.0, 0.0], [0.0, 1.0]]])  # two layers, one head, two tokens
    cached = kv([[[3.0, 4.5], [0.0, 2.0]]], [[[0.0, 0.0], [1.0, 1.0]]])
    found = deviation(cached, exact)
    assert found.keys.shape == (2, 2, 1)
    assert torch.allclose(found.keys[..., 0], torch.tensor([[0.1, 1.0], [0.0, 1.0]]))
    assert torch.allclose(found.tokens, torch.tensor([0.55, 0.5]))


def test_layers_with_fewer_heads_are_filled_with_nan():
    exact = kv([[[1.0]], [[2.0]]], [[[1.0]]])
    found = deviation(exact, exact)
    assert found.values[0, 0].tolist() == [0, 0]
    assert found.values[0, 1, 0] == 0 and found.values[0, 1, 1].isnan()
    assert found.tokens[0] == 0


def test_a_zero_vector_that_is_met_deviates_by_nothing_and_one_that_is_missed_by_infinity():
    assert deviation(kv([[[0.0]]]), kv([[[0.0]]])).keys.item() == 0
    assert deviation(kv([[[1.0]]]), kv([[[0.0]]])).keys.item() == torch.inf


@pytest.mark.parametrize(
    "other", [kv([[[1.0], [1.0]]]), kv([[[1.0]], [[1.0]]]), kv([[[1.0]]], [[[1.0]]]), kv([[[1.0]]], start=3)]
)
def test_what_cannot_be_compared_is_refused(other):
    with pytest.raises(BadInput, match="cannot be compared"):
        deviation(kv([[[1.0]]]), other)
