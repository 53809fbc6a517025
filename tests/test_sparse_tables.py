"""Records, figures and sentences of the notebooks on sparse attention, on small states and made-up tables."""

from statistics import fmean

import pytest
import torch

from workbench.core.errors import BadInput
from workbench.methods import sparse
from workbench.metrics import misses
from workbench.metrics.states import States, synthetic

LENGTH, SIZE = 203, 16
SPECS = {"window and sink": f"window(block={SIZE}, local=2)", "oracle": f"oracle(block={SIZE}, mass=0.5)"}


@pytest.fixture(scope="module")
def states() -> States:
    torch.manual_seed(0)
    keys = {i: torch.randn(2, LENGTH, 16) for i in (0, 2)}
    return States({i: 2 * torch.randn(4, LENGTH, 16) for i in keys}, keys)


@pytest.fixture(scope="module")
def methods() -> dict:
    return {name: sparse.named(spec) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def choices(states, methods):
    return misses.by_layer(states, methods, 0.7)


@pytest.fixture(scope="module")
def best(states):
    return {i: misses.needed(states, i, SIZE, 0.7) for i in states.layers}


def test_shares_of_every_method_layer_and_head(choices):
    found = misses.shares(choices)
    assert list(found) == ["density", "attention", "missed"] and list(found["density"]) == list(SPECS)
    for name, layers in choices.items():
        for at, choice in enumerate(layers.values()):
            assert torch.equal(found["density"][name][at], choice.density())
            assert torch.equal(found["attention"][name][at], choice.held())
            assert torch.equal(found["missed"][name][at], choice.held(choice.missed))
    records = misses.head_records(found, [0, 2])
    assert len(records) == 2 * 2 * 4 and records[5] | {"method": "", "density": 0, "attention": 0, "missed": 0} == {
        "method": "", "layer": 2, "head": 1, "density": 0, "attention": 0, "missed": 0,
    }  # fmt: skip
    assert records[5]["attention"] == float(found["attention"]["window and sink"][1, 1])
    numbers = misses.summary(choices)
    assert list(numbers) == ["density", "attention_kept", "attention_missed", "seconds_to_choose"]
    own = [r["missed"] for r in records if r["method"] == "oracle"]
    assert numbers["attention_missed"]["oracle"] == pytest.approx(fmean(own))
    assert numbers["seconds_to_choose"]["oracle"] == sum(c.seconds for c in choices["oracle"].values())


def test_the_head_where_most_is_missed_is_shown_unless_another_is_asked_for(choices, best):
    missed = misses.shares(choices)["missed"]
    needs = torch.stack([choice.density() for choice in best.values()])
    worst = divmod(int(((missed["window and sink"] + missed["oracle"]) / needs).argmax()), 4)
    assert misses.most_missed(choices, best) == ([0, 2][worst[0]], worst[1])
    assert misses.most_missed(choices, best, layer=2, head=0) == (2, 0)
    with pytest.raises(BadInput, match=r"layer 1, head 0: there are layers \[0, 2\] of 4 heads"):
        misses.most_missed(choices, best, layer=1, head=0)
    with pytest.raises(BadInput, match="head 4"):
        misses.most_missed(choices, best, head=4)


def test_thresholds_go_from_few_tiles_to_many_and_end_with_the_oracle(states, methods):
    records = misses.threshold_records(states, {"window and sink": methods["window and sink"]}, SIZE, 0.7)
    option, values = methods["window and sink"].threshold_steps
    assert [r["value"] for r in records] == [*values, *misses.ORACLE] and records[0]["option"] == option
    density = [r["density"] for r in records if r["method"] == "window and sink"]
    assert density == sorted(density)
    turned = methods["window and sink"].with_threshold(values[1])
    by_hand = fmean(misses.chosen(states, i, turned, 0.7).record()["mass"] for i in states.layers)
    assert records[1]["mass"] == pytest.approx(by_hand)
    assert records[-1]["method"] == "oracle" and records[-1]["mass"] >= 0.99


def test_rules_and_unions_become_records_by_layer(states):
    bfla = sparse.named("bfla(block=16, tile=8, flat=4, mass=0.3, local=1, sink=1, stride=5, random=0.1)")
    why = {i: misses.causes(states, i, bfla) for i in states.layers}
    records = misses.rule_records(why)
    assert [r["layer"] for r in records] == [0] * 5 + [2] * 5
    assert (records[6]["density"], records[6]["attention"]) == why[2].added["local"]
    averages = misses.means(records, "rule", ("density", "attention"))
    assert averages["sink"]["density"] == fmean(why[i].added["sink"][0] for i in (0, 2))
    unions = {i: misses.union(states, i, sparse.named(SPECS["oracle"]), slice(64, 128)) for i in states.layers}
    steps = misses.union_records(unions)
    assert [r["step"] for r in steps[4:]] == list(misses.UNION_STEPS)
    assert [r["density"] for r in steps[4:]] == unions[2].densities()


def test_a_long_prompt_is_framed_near_its_end():
    long = synthetic(1024)
    found = misses.framed(long, sparse.named("window(block=32, local=2)"), tokens=256, share=0.8)
    assert [part.rows for part in found.frames] == [slice(24, 32)] * 2, "the frame stays inside"
    record = found.record(1)
    assert record["density"] == pytest.approx(record["tiles"] / (32 * 33 / 2))
    assert record["attention"] == found.frames[1].held() and record["missed"] == found.frames[1].missed()
    wide = misses.framed(long, sparse.named("window(block=32, local=2)"), tokens=4096)
    assert wide.frames[0].rows == slice(0, 32), "no more than there is"
