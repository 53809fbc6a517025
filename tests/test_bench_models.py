"""`workbench bench question` and the like: every candidate of every whole-model benchmark can be carried out."""

import json
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace

import method_ttft
import preparation
import pytest
import scale
import shared_gpu
import torch

from workbench.core.blocks import Block, Prompt
from workbench.core.masks import causal
from workbench.core.plan import Site
from workbench.engine.assembly import assemble
from workbench.engine.attention_backends import listed_columns
from workbench.engine.encoding import encode_many
from workbench.engine.graphs import batch_buckets
from workbench.experiments.bench.models import chunked, operations, over_pages, recompute, whole_model
from workbench.experiments.bench.models.operations import OPERATIONS
from workbench.experiments.bench.models.whole_model import LLAMA, scene_of
from workbench.experiments.bench.timing import Roof
from workbench.store import UNLIMITED, MemoryStore

pytest.importorskip("triton", reason="Triton is not available on this platform")


@pytest.fixture(scope="module")
def scene():
    return scene_of(True, 16)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Decode 4 tokens a sample instead of 32: what interprets kernels takes 60 ms a token."""
    monkeypatch.setattr(over_pages, "answers", partial(over_pages.answers, count=5))


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_candidate_can_be_carried_out(scene, name, monkeypatch):
    monkeypatch.setattr(operations, "CONTEXTS", (8, 4))
    monkeypatch.setattr(operations, "PROMPTS", (16, 4))
    monkeypatch.setattr(recompute, "SHARES", (0.0,))
    for work, candidates in OPERATIONS[name](scene):
        assert candidates[0].name == "ours" and work.flops > 0 and work.bytes > 0
        for candidate in candidates:
            candidate.runs = 1
        found = whole_model.measure_workload(work, candidates, Roof(1e9, 1e9))
        json.dumps(found)
        for entry in found["contestants"]:
            assert "problem" not in entry, entry
            assert entry["ms"] > 0 and entry["ratio"] > 0


@pytest.mark.parametrize("name", ["question", "decode"])
def test_other_ways_take_the_place_of_baselines_and_are_put_back(scene, name, monkeypatch):
    monkeypatch.setattr(operations, "CONTEXTS", (4,))
    before = batch_buckets.UNIT
    for work, candidates in OPERATIONS[name](replace(scene, tuning=True)):
        assert all(candidate.name.startswith("ours") for candidate in candidates) and len(candidates) > 3
        for candidate in candidates:
            candidate.runs = 1
        found = whole_model.measure_workload(work, candidates, Roof(1e9, 1e9))
        assert [entry for entry in found["contestants"] if "problem" in entry] == []
        assert name == "decode" or all(entry["cosine"] > 0.999 for entry in found["contestants"])
    assert before == batch_buckets.UNIT


def test_recomputed_rows_are_chosen_within_the_time_and_random_ones_are_called_so(scene):
    (work, candidates), *_ = OPERATIONS["recompute"](scene)
    for candidate in candidates:
        candidate.runs = 2
    found = whole_model.measure_workload(work, candidates, Roof(1e9, 1e9))
    for entry in found["contestants"]:
        if "no choice" in entry["who"] or entry["who"].startswith("transformers"):
            assert "choice" not in entry and "choice_ms" not in entry
            assert "random rows" in entry["who"] or entry["who"].startswith("transformers")
        else:
            assert entry["choice"] == ("AnswerGuided" if "answer-guided" in entry["who"] else "QueryGuided")
            if "gathered" in entry["who"]:
                assert "choice_ms" not in entry, "the host does not wait for it"
            else:
                assert 0 < entry["choice_ms"] < entry["first_ms"] + entry["p95"]
    assert found["shape"]["choice"] == "question-guided"


@pytest.mark.parametrize("choice", [recompute.QueryGuided(), recompute.AnswerGuided()])
def test_the_rows_that_are_chosen_over_pages_are_those_of_the_selector(scene, choice):
    online = recompute.Online(scene, whole_model.Candidate("ours", None))
    texts = [*online.tokens[: online.context].split(len(online.blocks[0])), online.tokens[online.context :]]
    prompt = Prompt(tuple(Block(tuple(text.tolist())) for text in texts))
    kv = assemble(scene.model, prompt, encode_many(scene.model, prompt.context))
    (wanted,) = choice.rows(scene.model, [prompt], [kv], tokens=online.count)
    assert torch.equal(online.rows(choice), wanted) and online.blocks[0].start == 0
    assert not torch.equal(online.rows(None), wanted) and len(online.rows(None)) == len(wanted)


def test_shares_of_recomputed_rows_are_timed_with_and_without_loading(scene):
    for work, candidates in OPERATIONS["recompute"](scene):
        share = work.shape["recomputed"]
        assert work.name == f"{share:.0%} of 27K computed again" and ("choice" in work.shape) == bool(share)
        assert recompute.LOADED in [candidate.name for candidate in candidates]


def test_a_context_that_is_loaded_from_the_host_is_the_one_that_was_encoded(scene):
    online = recompute.Online(scene, whole_model.Candidate("ours", None))
    assert online.host
    token = online.in_place(None)
    for tensor in (*online.pool.keys, *online.pool.values):
        tensor.zero_()
    assert online.loaded(None) == token
    assert online.candidate.facts["loaded_gb"] > 0


def test_every_method_is_prefilled_in_chunks_and_every_length_is_reported(monkeypatch):
    scene = scene_of(True, 64)
    for name, value in {"LENGTHS": (2, 3), "HALVINGS": 3, "RUNS": 1}.items():
        monkeypatch.setattr(chunked, name, value)
    found = {entry["name"]: entry for entry in chunked.entries(scene, Roof(1e9, 1e9))}
    assert [entry["shape"]["tokens"] for entry in found.values()] == [128, 192]
    for entry in found.values():
        json.dumps(entry)
        rows = {row["who"]: row for row in entry["contestants"]}
        assert list(rows) == [method.name for method in chunked.methods(scene)]
        assert not [row["problem"] for row in rows.values() if "problem" in row]
        assert rows["ours, dense"]["density"] == 1 > rows["xattention"]["density"]
        assert rows["ours"]["ratio"] == 1


@pytest.mark.parametrize("name", ["ours", "flash_prefill", "xattention", "seer_attention"])
def test_a_prompt_in_chunks_keeps_the_density_that_is_asked_for(name, monkeypatch):
    monkeypatch.setattr(chunked, "HALVINGS", 14)
    scene = scene_of(True, 64)
    (method,) = (replace(one, density=0.7) for one in chunked.methods(scene) if one.name == name)
    ready = chunked.fit_threshold(scene, method, 8)
    assert chunked.densities(scene, ready, 8, (8,))[8] == pytest.approx(0.7, abs=0.15)  # few tiles, so in coarse steps


def test_kernels_that_dense_attention_has_not_are_its_choice():
    found = {"_attend": 5.0, "product": 3.0, "_score": 2.0, "_keep": 1.0}
    assert chunked.parts(found, {"product"}) == {"attention_ms": 5.0, "choice_ms": 3.0}


def test_tokens_in_a_copy_give_what_a_mask_over_all_of_them_gives():
    method = next(one for one in chunked.methods(scene_of(True, 128)) if one.name == "quoka")
    queries, keys, values = (torch.randn(heads, tokens, 16) for heads, tokens in ((4, 32), (2, 96), (2, 96)))
    rows = torch.arange(64, 96)
    assert method.sparse(queries, keys, rows).listed is None, "nobody says that the rows are the last"
    assert method.sparse(queries[:, 3:], keys, rows[3:], Site(last=True)).listed is None, "a tile holds more than rows"
    tiles = method.sparse(queries, keys, rows, Site(last=True))
    assert torch.equal(tiles.listed[0], tiles.columns[0].nonzero()[:, 0])
    assert torch.equal(tiles.listed[1], tiles.columns[2].nonzero()[:, 0])
    seen = tiles.visible(32, 96) & (torch.arange(96) <= rows[:, None])
    exact = torch.nn.functional.scaled_dot_product_attention(
        queries[None], keys[None], values[None], seen[None], enable_gqa=True
    )
    ours = listed_columns.over_columns(tiles.listed, queries, keys, values, rows, causal, tiles, None)
    assert torch.allclose(ours, exact[0], atol=1e-5)


def test_rows_recomputed_in_place_and_over_a_copy_give_the_same_token(scene):
    online = recompute.Online(scene, whole_model.Candidate("ours", None))
    for choice in (recompute.QueryGuided(), None):
        free = online.pool.free
        assert online.in_place(choice) == online.recompute_gathered(choice) and online.pool.free == free


def test_bfla_is_set_to_the_density_that_is_asked_for(scene):
    (_, candidates), *_ = OPERATIONS["prefill"](scene)
    candidates[0].begin(candidates[0])()
    assert 0.05 < candidates[0].facts["density"] < 0.35  # few tiles, so in coarse steps


def test_the_shape_is_that_of_llama_8b():
    with torch.device("meta"):
        model = whole_model.AutoModelForCausalLM.from_config(whole_model.AutoConfig.for_model("llama", **LLAMA))
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248


def test_a_candidate_that_fails_is_reported_and_the_others_are_timed(scene):
    def broken(candidate):
        raise RuntimeError("no memory")

    (work, candidates), *_ = OPERATIONS["decode"](scene)
    candidates = [candidates[0], whole_model.Candidate("broken", broken)]
    candidates[0].runs = 1
    ours, other = whole_model.measure_workload(work, candidates, Roof(1e9, 1e9), runs=2)["contestants"]
    assert ours["ms"] > 0 and ours["runs"] == 2 and "no memory" in other["problem"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_times_are_refused_without_a_gpu():
    with pytest.raises(operations.BadInput, match="GPU"):
        next(operations.run("question", []))


# --- Curves of scale: every axis can be measured
@pytest.fixture(scope="module")
def rows():
    scene = scene_of(True, 16)
    axes = {"context": (1, 2), "question": (1, 3), "blocks": (8, 32), "batch": (1, 2)}
    return list(scale.curves(scene, axes, runs=2))


def test_every_axis_is_measured(rows):
    assert [(row["axis"], row["x"]) for row in rows[:3]] == [("context", 1), ("context", 2), ("question", 1)]
    assert all(row["ms"] > 0 and row["pool_gb"] > 0 for row in rows)
    assert {row["block"] for row in rows if row["axis"] == "blocks"} == {64, 16}
    assert all(row["tokens_per_s"] > 0 for row in rows if row["axis"] == "batch")


# --- Published methods in one run
def test_methods_are_asked_in_rounds_beside_ours_at_their_charged_share(monkeypatch):
    monkeypatch.setattr(method_ttft, "CONTEXT", 4)
    scene, store = scene_of(True, 16), MemoryStore(UNLIMITED)
    prompt = method_ttft.prompt_of(scene.ids(4 * scene.unit + 16), 8, 16)
    names = ["full", "block", "epic", "kvcomm", "cacheblend", "fusionrag"]
    asked, refused = method_ttft.methods(scene, prompt, names, 0.5, store)
    assert list(refused) == ["cacheblend"]  # one of two layers is charged before a token is chosen
    for _ in range(2):
        assert not method_ttft.measured(scene, asked, prompt, store)
    timed, counted = method_ttft.result_rows(asked, len(prompt))
    values = {(one["method"], one["measure"]): one["value"] for one in counted}
    assert all(row["ms"] > 0 and row["runs"] == 2 for row in timed)
    assert values["full", "charged_share"] == 1 and ("full", "over_ours") not in values
    assert (
        values["kvcomm", "charged_share"] == values["block", "charged_share"] < values["epic", "charged_share"] <= 0.5
    )
    assert {name for name, measure in values if measure == "over_ours"} >= {"block", "epic", "kvcomm", "ours, 50%"}


# --- data/benchmarks/preparation.py: passages behind their neighbours
def test_passages_are_prepared_behind_neighbours_that_are_encoded_once(scene):
    given = SimpleNamespace(tiny=True, passages=12, neighbours=3, together=4)
    timings, counts = preparation.measured(given, scene)
    found = {row["measure"]: row["value"] for row in counts if row["measure"] != "seconds"}
    assert found["encoded_once"] == 1 and 0 < found["host_share"] <= 1 and found["rate"] > 0
    seconds = {row["kind"]: row["value"] for row in counts if row["measure"] == "seconds"}
    assert seconds["all"] == pytest.approx(seconds["neighbours"] + seconds["passages over them"])
    (one,), rows, before = timings, 12 * 16, preparation.SYSTEM + 3 * 16
    assert one["runs"] == 3 and one["ms"] > 0
    assert 3 * one["flops"] == pytest.approx(scene.flops(rows, 12 * sum(before + i + 1 for i in range(16)), 0))


@pytest.mark.parametrize("without", shared_gpu.WITHOUT)
def test_processes_that_share_a_gpu_answer_batches_in_both_modes(without, monkeypatch):
    for module, name in ((shared_gpu.triton_import, "OVERLAP"), *shared_gpu.KERNELS.get(without, ())):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back behind the test
    shape = LLAMA | whole_model.TINY
    assert [*islice(shared_gpu.answers(0, 2, without, shape), 2)] == ["full", "block"]
