"""`workbench bench chunk_…`: every method of a chunk can be carried out, and keeps what it is set to."""

import json
from functools import partial

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not available on this platform")

from workbench.experiments import bench
from workbench.experiments.bench import run
from workbench.experiments.bench.kernels import choices, chunk_attention, workloads
from workbench.experiments.bench.kernels.chunk_attention import RandomGate, fit_threshold, rules

UNIT, LONG = 32, 128  # tokens of a chunk: for what the interpreter carries out, and for what torch does


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"HEADS": (2, 1), "WIDTH": 32, "CHUNK": (1, 2, 1), "PAGE": 16}.items():
        monkeypatch.setattr(workloads, name, value)
    monkeypatch.setattr(choices, "HALVINGS", 1)
    monkeypatch.setattr(chunk_attention, "LENGTHS", (2,))
    monkeypatch.setattr(chunk_attention, "KEYS", 2)
    monkeypatch.setattr(chunk_attention, "CONTEXTS", (2,))


def test_comparisons_are_those_that_the_command_names():
    assert tuple(chunk_attention.COMPARISONS) == bench.CHUNKS
    assert set(bench.CHUNKS) <= set(run.WORKLOADS)


@pytest.mark.parametrize("name", bench.CHUNKS)
def test_every_candidate_can_be_carried_out(name):
    for work in run.WORKLOADS[name]([], [], unit=UNIT):
        assert work.flops > 0 and work.bytes > 0
        json.dumps(work.shape)
        for label, (call,) in work.candidates.items():
            out = call()
            assert name == "chunk_choices" or out.isfinite().all(), label


def inputs(units=3):
    torch.manual_seed(0)
    q, keys, values = (torch.randn(1, heads, tokens, 32) for heads, tokens in ((2, LONG), *[(1, units * LONG)] * 2))
    return q, keys, values, torch.arange((units - 1) * LONG, units * LONG)[None]


@pytest.mark.parametrize("name", ["seer_attention"])
def test_a_threshold_is_set_for_the_density(name, monkeypatch):
    monkeypatch.setattr(choices, "HALVINGS", 10)
    q, keys, _, rows = inputs()
    rule = rules(LONG)[name]
    measure = partial(chunk_attention.density, q=q, keys=keys, rows=rows, size=rule.block)
    assert measure(fit_threshold(name, rule, measure, 0.6)) == pytest.approx(0.6, abs=0.1)


def test_a_gate_that_keeps_pooled_keys_chooses_as_in_one_pass():
    _, keys, _, _ = inputs()
    q, rows = torch.randn(1, 2, 3 * LONG, 32), torch.arange(3 * LONG)[None]
    gate = RandomGate(rules(LONG)["seer_attention"])
    whole = gate(q, keys, rows)
    gate.pooled = None
    for begin in range(0, 3 * LONG, LONG):
        end, size = begin + LONG, gate.rule.block
        part = gate(q[:, :, begin:end], keys[:, :, :end], rows[:, begin:end])
        assert torch.equal(part, whole[:, :, begin // size : end // size, : end // size])


def test_quoka_attends_to_its_share_of_the_past_and_the_chunk():
    q, keys, values, rows = inputs()
    at = chunk_attention.quoka(q, keys, rows)
    assert at.shape == (1, 1, round(0.25 * 2 * LONG) + LONG)
    assert bool((at.diff() > 0).all()) and at[0, 0, -LONG:].tolist() == rows[0].tolist()
    every = torch.arange(3 * LONG).expand(1, 1, -1)
    dense = torch.nn.functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
    assert torch.allclose(chunk_attention.attend_gathered(q, keys, values, every), dense)


def test_equal_sparsity_is_drawn_for_one_pass_and_a_chunk(monkeypatch):
    monkeypatch.setattr(chunk_attention, "KEYS", 16)
    one, chunk = chunk_attention.kernels([], [], unit=UNIT)
    assert one.shape["density"] == pytest.approx(0.1, abs=0.03) == chunk.shape["density"]
    assert one.shape["rows"] == 16 * chunk.shape["rows"]
    assert chunk_attention.UNION in chunk.candidates and chunk_attention.UNION not in one.candidates
