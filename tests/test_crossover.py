"""Counts of what sparse attention costs and saves, and thresholds that keep what is asked for."""

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig

from tests.refusals import refused
from workbench import data
from workbench.methods import sparse
from workbench.metrics.cost import first_token
from workbench.metrics.published_numbers import LLAMA_3_8B
from workbench.metrics.tiles.crossover import (
    LENGTHS,
    CrossoverModel,
    Floor,
    attention_share,
    crossover,
    forced_share,
    operations,
    times,
)
from workbench.metrics.tiles.sparsity import measure
from workbench.metrics.tiles.thresholds import cheapest, search

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
MODEL = CrossoverModel.of("small", LlamaConfig(**SMALL | {"num_key_value_heads": 2, "vocab_size": 50}))


def test_a_dense_prefill_counts_what_the_cost_model_counts():
    found = operations(MODEL, sparse.from_spec("dense"), 300, 1.0)
    whole = first_token(MODEL.shape, range(300), 300)
    assert (found.linear, found.dense) == pytest.approx((whole.linear, whole.attention))
    assert found.kept == found.dense and found.choice == 0 and found.saved_share == 0
    chunked = operations(MODEL, sparse.from_spec("oracle"), 300, 1.0, 100)
    assert chunked.choice == pytest.approx(2 * 2 * 4 * 8 * 100 * (100 + 200 + 300)), "2 layers, 4 heads of 8"
    assert chunked.saved_share < 0, "keeping all costs the choice"


@pytest.mark.parametrize("chunk", [None, 96])
def test_what_is_kept_in_any_case_is_sink_band_and_full_rows(chunk):
    length, block, seen = 480, 16, torch.ones(480, 480).tril().bool()
    tile = torch.arange(length) // block
    row, col = tile[:, None], tile[None]
    band = (col < 2) | (row - col < 3)
    window = sparse.from_spec("window(block=16, sink=2, local=2)")
    assert forced_share(window, length, chunk) == pytest.approx(float(band[seen].float().mean()), abs=1e-3)
    flash = sparse.from_spec("flash_prefill(block=16, sink=2, window=3, tail=4)")
    wanted = (band | (row >= length // block - 4))[seen].float().mean()
    assert forced_share(flash, length, chunk) == pytest.approx(float(wanted), abs=0.01)
    assert forced_share(sparse.from_spec("dense(block=16)"), length, chunk) == 1


def test_the_floor_falls_with_the_length_to_what_is_rescued():
    flash, bfla = (Floor.of(sparse.from_spec(spec)) for spec in ("flash_prefill", "bfla"))
    assert flash.share_at(256) == 1 > flash.share_at(2048) > flash.share_at(32768) > 0
    assert flash.share_at(1 << 20) == pytest.approx(0, abs=0.01), "sinks, windows and full rows are lines"
    assert bfla.share_at(1 << 20) == pytest.approx(1 / 16, abs=0.02), "every sixteenth tile is rescued"
    assert bfla.density(1 << 20, 1.0) == 1


def test_the_crossover_is_where_the_saving_begins():
    method = sparse.from_spec("flash_prefill")
    floor, big = Floor.of(method), CrossoverModel.of("Llama-3-8B", LlamaConfig(**LLAMA_3_8B))
    at = crossover(big, method, floor, 0.1, 0.05)
    assert at in LENGTHS
    saved = [operations(big, method, n, floor.density(n, 0.1)).saved_share for n in LENGTHS]
    assert all((share > 0.05) == (n >= at) for n, share in zip(LENGTHS, saved, strict=True))
    assert crossover(MODEL, method, floor, 0.1, 0.05) < at, "narrow linear layers: attention weighs more"
    assert crossover(big, method, floor, 1.0) is None, "all is kept: it never pays"
    assert crossover(big, sparse.from_spec("oracle"), floor, 0.1) is None, "the choice alone costs what attention does"
    kept, choice = attention_share(big, method, 32768, 0.25)
    assert kept == 0.25 and choice == pytest.approx(1 / 128, rel=0.01), "one product a block for every query"
    refused("chosen 2", crossover, big, method, floor, 2)


def test_times_come_for_attention_and_every_method():
    methods = {"a": sparse.from_spec("window(block=16, local=1)"), "b": sparse.from_spec("dense(block=16)")}
    rows = list(times(methods, 4, 2, 8, [32, 64], repeats=1))
    assert [(r["length"], r["name"]) for r in rows] == [(n, name) for n in (32, 64) for name in ("", "a", "b")]
    assert all(r["seconds"] > 0 for r in rows) and [r["forced"] for r in rows if r["name"] == "b"] == [1, 1]


def table(**em) -> pd.DataFrame:
    rows = [
        {
            "source": "mine",
            "rule": name.rstrip("123").removeprefix("dense"),
            "sparse": name,
            "density": density,
            "union": 1.0,
            "em": share,
            "em_low": share - 0.05,
            "em_high": share + 0.05,
        }
        for name, (density, share) in em.items()
    ]
    return pd.DataFrame(rows)


def test_the_sparsest_setting_that_keeps_enough():
    swept = table(dense=(1, 0.8), a1=(0.2, 0.70), a2=(0.4, 0.77), a3=(0.6, 0.8), b1=(0.3, 0.2), b2=(0.5, 0.5))
    found = {r["rule"]: r for r in cheapest(swept, "em", 0.95)}
    assert list(found) == ["a", "b"] and found["a"]["sparse"] == "a2" and not found["a"]["sure"]
    assert found["b"]["sparse"] == "" and found["b"]["value"] == 0.5 and not found["b"]["sure"]
    assert cheapest(swept, "em", 0.6)[0]["sparse"] == "a1" and cheapest(swept, "em", 0.6)[0]["sure"]
    assert [cheapest(swept, "em", 0.85, surely=surely)[0]["sparse"] for surely in (False, True)] == ["a1", "a2"]
    assert [r["sparse"] for r in cheapest(swept, "em", 0.95, surely=True)] == ["", ""], "no interval keeps as much"
    same = {n: answered(swept, [1, 1, 0, 1] * n) for n in (2, 40)}
    assert cheapest(swept, "em", 0.95, same[40])[0]["sure"], "the same 120 questions are right"
    assert not cheapest(swept, "em", 0.95, same[2])[0]["sure"], "of six one cannot be sure"
    assert cheapest(swept[swept.rule != ""], "em", 0.95) == [], "without dense attention nothing is said"
    refused("unknown measure 'error': allowed are em, f1, contains, mass", cheapest, swept, "error", 0.95)


def answered(swept, right):
    rows = [
        {"source": "mine", "mode": "full", "sparse": name, "question": str(i), "em": em}
        for name in swept["sparse"]
        for i, em in enumerate(right)
    ]
    return pd.DataFrame(rows)


def test_the_threshold_is_moved_until_the_mass_is_kept(loaded):
    model, tokenizer, layout = loaded
    prompts = layout.prompts(data.load("lab", 2, 3, 3), tokenizer)
    specs = ["window(block=16, sink=0)", "oracle(block=16)", "bfla(block=32, tile=16, flat=16, local=0)"]
    found = search(model, prompts, {spec: sparse.from_spec(spec) for spec in specs}, 0.7, 64)
    assert {r["method"] for r in found} == set(specs) and all(r["steps"] <= 5 for r in found)
    for r in found:
        if r["value"] is None:
            continue
        method, steps = sparse.from_spec(r["method"]), sparse.from_spec(r["method"]).threshold_steps[1]
        mass = [measure(model, [p], method.with_threshold(r["value"]), 64).mean("mass") for p in prompts]
        assert r["mass"] >= 0.7 and r["mass"] == pytest.approx(sum(mass) / 2, abs=1e-5)
        if (before := steps.index(r["value"])) > 0:
            less = [measure(model, [p], method.with_threshold(steps[before - 1]), 64).mean("mass") for p in prompts]
            assert sum(less) / 2 < 0.7
    refused("keep is 0", search, model, prompts, {}, 0)
