"""Layers over pages with few kernels: the model's own results, its weights still its own, and a clause where not."""

import copy
import gc
import json
import weakref

import pytest
import torch
from torch import nn

from tests.random_models import block_of, model_of, prompt_of
from tests.refusals import refused
from workbench.core.plan import Plan
from workbench.engine import forward
from workbench.engine.assembly import assemble, empty
from workbench.engine.attention_backends import attention
from workbench.engine.chunked import prefill_chunked
from workbench.engine.encoding import encode_many
from workbench.engine.forward import PrefillRequest, all_rows, prefill, prefill_many
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.graphs.graph_step import WeightWatch
from workbench.engine.layers import between_attentions, fused_layers, gemm_dispatch
from workbench.engine.layers.fused_layers import FusedLayers, fused, layers_of, reason_against, side_by_side
from workbench.engine.layers.gemm_dispatch import TORCH, GemmTable
from workbench.engine.pages.paged_pool import Pool

LENGTHS = (19, 7, 33)
QUESTIONS = (5, 9)


def answers(model, layers, kernels=False, count=6, tokens=16):
    pool = Pool(model, 40, tokens, kernels=kernels)
    cached = pool.encode(model, [block_of(n, seed=n) for n in LENGTHS])
    runner = Runner(model, pool, layers=layers)
    held = [pool.open(cached[::-1], QUESTIONS[0] + count), pool.open(cached[:2], QUESTIONS[1] + count)]
    ids = [torch.tensor(block_of(n, seed=n).tokens) for n in QUESTIONS]
    logits, queries = runner.prefill_queries(held, ids, (0, model.config.num_hidden_layers - 1))
    return logits, queries, list(runner.decode(held, logits, count)), runner


@pytest.mark.parametrize("name", ["llama", "llama3", "yarn", "mistral", "qwen2", "qwen3"])
def test_they_compute_what_the_model_computes(name):
    """Prefill of two requests, the queries that are kept, and answers."""
    model = model_of(name, num_hidden_layers=3)
    logits, queries, tokens, _ = answers(model, "model")
    fused, kept, same, runner = answers(model, "fused")
    assert runner.layers == "fused" and same == tokens
    torch.testing.assert_close(fused, logits, atol=1e-3, rtol=1e-4)
    for layer, wanted in queries.items():
        for i, count in enumerate(QUESTIONS):
            torch.testing.assert_close(kept[layer][i, :, :count], wanted[i, :, :count], atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled there: tests/test_engine_gpu.py holds them")
def test_their_kernels_compute_what_their_references_compute():
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    model = model_of("qwen3", num_hidden_layers=2)
    logits, _, tokens, _ = answers(model, "fused", count=2)
    fused, _, same, _ = answers(model, "fused", kernels=True, count=2)
    torch.testing.assert_close(fused, logits, atol=1e-3, rtol=1e-4)
    assert same == tokens


def test_weights_lie_once_in_memory_and_stay_the_models_own(tmp_path):
    model = model_of(num_hidden_layers=2)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    assert not isinstance(layers := layers_of(model, False), str)
    a = model.get_decoder().layers[0].self_attn
    assert a.q_proj.weight.untyped_storage().data_ptr() == a.v_proj.weight.untyped_storage().data_ptr()
    assert layers.layers[0].qkv[0].data_ptr() == a.q_proj.weight.data_ptr()
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]), name
    other = layers_of(model, False)
    assert other.layers[0].qkv[0].data_ptr() == layers.layers[0].qkv[0].data_ptr(), "nothing is moved twice"
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for name, x in again.state_dict().items():
        assert torch.equal(x, before[name]), name
    alone = copy.deepcopy(model)
    with torch.no_grad():
        a.k_proj.weight.add_(1)  # as an adapter is merged
    assert torch.equal(layers.layers[0].qkv[0][len(a.q_proj.weight) :][: len(a.k_proj.weight)], a.k_proj.weight)
    assert not torch.equal(alone.get_decoder().layers[0].self_attn.k_proj.weight, a.k_proj.weight)
    assert not layers.stale
    a.q_proj.weight = nn.Parameter(a.q_proj.weight.clone())
    assert layers.stale


@pytest.mark.parametrize("name", ["self_attn.q_proj", "mlp.down_proj", "post_attention_layernorm"])
def test_a_step_that_was_prepared_sees_weights_that_were_exchanged(name):
    model = model_of(num_hidden_layers=2)
    pool = Pool(model, 40, 16)
    runner, ids = Runner(model, pool, layers="fused"), torch.tensor([1, 2, 3])
    runner.prefill([pool.blank(3)], [ids])
    module = model.get_decoder().layers[1].get_submodule(name)
    module.weight = nn.Parameter(module.weight * 2)
    (fused,) = runner.prefill([pool.blank(3)], [ids])
    assert len(runner.captured) == 1
    (plain,) = Runner(model, pool).prefill([pool.blank(3)], [ids])
    torch.testing.assert_close(fused, plain, atol=1e-3, rtol=1e-4)
    longer = torch.arange(20)  # a step that was not prepared
    (fused,), (plain,) = (each.prefill([pool.blank(20)], [longer]) for each in (runner, Runner(model, pool)))
    torch.testing.assert_close(fused, plain, atol=1e-3, rtol=1e-4)
    before = next(iter(runner.captured.values()))
    runner.prefill([pool.blank(3)], [ids])
    assert next(iter(runner.captured.values())) is before, "nothing was exchanged since"


def test_weights_that_were_moved_or_exchanged_are_seen():
    model = model_of(num_hidden_layers=2)
    watch = WeightWatch(model)
    assert not watch.replaced
    with torch.no_grad():
        model.get_decoder().layers[0].mlp.up_proj.weight.add_(1)  # as an adapter is merged
    assert not watch.replaced
    model.to(torch.float64)
    assert watch.replaced and watch.replaced
    watch = WeightWatch(model)
    nn.Linear(2, 2)  # of another model
    assert not watch.replaced
    model.get_decoder().norm.weight = nn.Parameter(torch.ones(1))
    assert watch.replaced and watch.replaced


def test_a_model_whose_layers_are_known_can_be_dropped(monkeypatch):
    monkeypatch.setattr(fused_layers, "on_gpu", lambda device: True)
    model = model_of()
    assert fused_layers.packed_layers(model) is fused_layers.packed_layers(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_layers_that_are_known_are_left_while_the_model_is_hooked_or_trained_and_made_anew_for_other_weights(
    monkeypatch,
):
    monkeypatch.setattr(fused_layers, "on_gpu", lambda device: True)
    model = model_of(num_hidden_layers=2)
    first, mlp = fused_layers.packed_layers(model), model.get_decoder().layers[1].mlp
    handle = mlp.register_forward_hook(lambda *_: None)
    assert fused_layers.packed_layers(model) is None
    handle.remove()
    assert fused_layers.packed_layers(model) is not None
    model.train()
    assert fused_layers.packed_layers(model) is None
    model.eval()
    again = fused_layers.packed_layers(model)
    mlp.gate_proj = nn.Linear(mlp.gate_proj.in_features, mlp.gate_proj.out_features, bias=False)
    assert fused_layers.packed_layers(model) is not again is not first
    mlp.gate_proj = Adapted(mlp.gate_proj.in_features, mlp.gate_proj.out_features, bias=False)
    assert fused_layers.packed_layers(model) is None


class Adapted(nn.Linear):
    """As libraries of adapters put in the place of a projection."""


def test_what_is_not_known_runs_as_it_is_and_says_why():
    model = model_of()
    attention = model.get_decoder().layers[0].self_attn
    attention.q_proj.__class__ = Adapted
    assert reason_against(model) == "a projection is Adapted, not a plain Linear"
    attention.q_proj.__class__ = nn.Linear
    handle = model.get_decoder().layers[0].register_forward_hook(lambda *_: None)
    assert "hook" in reason_against(model)
    handle.remove()
    assert reason_against(model) == ""
    assert "cohere" in reason_against(model_of("cohere"))
    other = model_of("cohere")
    pool = Pool(other, 9, 16)
    refused("model type is cohere", Runner, other, pool, layers="fused")
    refused(r"'fast'.*fused, compiled, model", Runner, model, pool, layers="fast")
    assert Runner(model, Pool(model, 9, 16)).layers == "model"


def test_tensors_that_lie_side_by_side_are_not_moved():
    parts = [nn.Parameter(torch.randn(n, 4)) for n in (3, 2, 5)]
    values = torch.cat([x.detach().clone() for x in parts])
    whole = side_by_side(parts)
    assert torch.equal(whole, values) and side_by_side(parts).data_ptr() == whole.data_ptr()
    assert torch.equal(side_by_side(parts[::-1]), torch.cat([x.detach() for x in parts[::-1]])), (
        "another order is moved"
    )


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_packed_requests_compute_what_the_model_computes(name, monkeypatch):
    """As on a GPU: blocks encoded together, prompts of different lengths, a plan that stops early, chosen logits."""
    model, prompts = model_of(name, num_hidden_layers=3), [prompt_of(20, 13, 6), prompt_of(7, 5, seed=1)]

    def computed():
        kvs = [assemble(model, prompt, encode_many(model, prompt.context), reserve=2) for prompt in prompts]
        plans = [Plan(prompts[0].question, return_queries=(1,)), Plan(torch.arange(len(prompts[1])))]
        asked = [PrefillRequest(p.tokens, plan, kv) for p, plan, kv in zip(prompts, plans, kvs, strict=True)]
        found = prefill_many(model, asked, logits_to_keep=2)
        early = prefill_many(model, [all_rows(model, prompts[0].tokens, num_layers=2, return_queries=(1,))])
        assert early[0].logits is None
        return [*(x.logits for x in found), found[0].queries[1], early[0].queries[1], *kvs[0].keys, *kvs[1].values]

    expected = computed()
    monkeypatch.setattr(forward, "packed_layers", lambda model: FusedLayers(model, kernels=False))
    torch.testing.assert_close(computed(), expected, atol=1e-3, rtol=1e-4)


def test_rows_of_one_request_are_written_where_they_stay(monkeypatch):
    """A chunk behind a cached context: right as the model's own layers, and copied by no layer."""
    model, prompt = model_of(num_hidden_layers=3), prompt_of(20, 13, 6)
    cached = assemble(model, prompt, encode_many(model, prompt.context), reserve=2)

    def computed():
        kv = cached.clone()
        (found,) = prefill_many(model, [PrefillRequest(prompt.tokens, Plan(prompt.question), kv)])
        return [found.logits, *kv.keys, *kv.values]

    expected = computed()
    monkeypatch.setattr(forward, "packed_layers", lambda model: FusedLayers(model, kernels=False))
    monkeypatch.setattr(attention, "copy", None)
    torch.testing.assert_close(computed(), expected, atol=1e-3, rtol=1e-4)


def as_captured(works, first):
    """Stand-in for graphs: what is replayed is written where the first run left it, and nowhere else."""
    replays = []
    for work in works:
        given, first = first, work(first)
        replays.append(lambda work=work, given=given, to=first: to.copy_(work(given)))
    return first, replays


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_passes_that_repeat_compute_what_each_computes(name, monkeypatch):
    """Chunks of one length, replayed from the second on, over a cached context, and a shorter last one."""
    model, prompt = model_of(name, num_hidden_layers=3), prompt_of(20, 50, 13)
    layers, replayed = FusedLayers(model, kernels=False), []
    monkeypatch.setattr(forward, "packed_layers", lambda model: layers)
    behind = between_attentions.BetweenAttentions.next_qkv
    monkeypatch.setattr(
        between_attentions.BetweenAttentions, "next_qkv", lambda *given: replayed.append(given[1]) or behind(*given)
    )

    def computed(chunk):
        kv = assemble(model, prompt, encode_many(model, prompt.context), reserve=2)
        plan = Plan(torch.arange(20, len(prompt)), return_queries=(1,))
        found = prefill_chunked(model, PrefillRequest(prompt.tokens, plan, kv), chunk, 3)
        return [found.logits, found.queries[1], *kv.keys, *kv.values]

    monkeypatch.setattr(between_attentions, "captured", as_captured)
    expected = computed(63)
    for chunk, passes in ((15, 3), (15, 4), (7, 8)):
        torch.testing.assert_close(computed(chunk), expected, atol=1e-4, rtol=1e-4)
        assert replayed == [0, 1] * passes
        replayed.clear()

    def refuse(works, first):
        raise RuntimeError("no memory for graphs")

    monkeypatch.setattr(between_attentions, "captured", refuse)
    torch.testing.assert_close(computed(9), expected, atol=1e-4, rtol=1e-4)
    assert not replayed and layers.why_uncaptured == "no memory for graphs"


# --- Products of few rows: the fastest way is measured once, kept in a file, and gives torch's numbers
X, WEIGHTS = torch.randn(8, 64), [torch.randn(96, 64) for _ in range(2)]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Times that are made up: our kernel in two parts is the fastest, or torch, by `times`."""
    times = {TORCH: 2.0, "two": 1.0}
    way = gemm_dispatch.kernel("few_rows_linear").LinearConfig(tile=32, channels=16, splits=2)
    monkeypatch.setattr(gemm_dispatch, "_where", lambda device: "a GPU")
    monkeypatch.setattr(gemm_dispatch, "launch_configs", lambda *_: [way])
    monkeypatch.setattr(gemm_dispatch, "median_ms", lambda work, weights: times[TORCH])
    monkeypatch.setattr(gemm_dispatch, "_time_of", lambda *_: times["two"])
    monkeypatch.setattr(gemm_dispatch, "LARGE", 0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    return times


def test_what_was_measured_is_kept_and_read(as_on_a_gpu, tmp_path):
    found = GemmTable(tmp_path / "cache" / "products.json")
    found.prepare(8, WEIGHTS, parts=True)
    assert [way.splits for way in found.chosen.values()] == [2]
    (name,) = json.loads(found.path.read_text())
    assert name == "a GPU, 8x64x96 float32 parts"
    as_on_a_gpu["two"] = 9.0
    again = GemmTable(found.path)
    again.prepare(8, WEIGHTS, parts=True)
    assert again.chosen == found.chosen, "not measured once more"
    again.prepare(8, WEIGHTS)
    assert again.chosen["8x64x96 float32"] is None, "torch is the fastest"


def test_a_file_that_is_damaged_or_cannot_be_written_stops_nobody(as_on_a_gpu, tmp_path):
    path = tmp_path / "products.json"
    path.write_text("[1, 2")
    found = GemmTable(path)
    found.prepare(8, WEIGHTS)
    assert len(found.chosen) == 1 and len(json.loads(path.read_text())) == 1
    nowhere = GemmTable(tmp_path / "products.json" / "x.json")
    nowhere.prepare(8, WEIGHTS)
    assert len(nowhere.chosen) == 1


def test_both_ways_give_the_same_numbers():
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    way = gemm_dispatch.kernel("few_rows_linear").LinearConfig(tile=32, channels=16, warps=4, stages=2, splits=3)
    own = GemmTable(chosen={"8x64x96 float32 parts": way})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight, bias = (one.to(device) for one in (X, WEIGHTS[0], torch.zeros(96)))
    parts = own(x, weight, parts=True)
    assert parts.shape == (3, 8, 96)
    torch.testing.assert_close(parts.sum(0), GemmTable()(x, weight, parts=True), atol=1e-4, rtol=1e-4)
    assert own(x, weight).shape == (8, 96), "no parts where none are taken"
    assert own(x, weight, bias, parts=True).shape == (8, 96), "nor with a bias"


def test_nothing_is_measured_without_a_gpu():
    found = GemmTable()
    found.prepare(8, [torch.zeros(4096, 4096)], parts=True)
    assert found.chosen == {} and found.times == {}
    assert all(way.splits == 1 for way in gemm_dispatch.launch_configs(28672, 4096, False))
    assert {way.splits for way in gemm_dispatch.launch_configs(4096, 14336, True)} >= {4, 8}


# --- Fused layers: one compilation for all of them, the same results, and the model as before afterwards
PROMPT = prompt_of(20, 13, 6)


def test_layers_share_compilations_and_compute_the_same():
    model, compiled = model_of("qwen3", num_hidden_layers=6), []  # a Llama with norms of heads

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    def answers():
        kv = assemble(model, PROMPT, encode_many(model, PROMPT.context))
        step = prefill(model, PROMPT.tokens, Plan(PROMPT.question), kv)
        whole = prefill(model, PROMPT.tokens, Plan(torch.arange(len(PROMPT))), empty(model, len(PROMPT)))
        return torch.cat((step.logits, whole.logits))

    expected = answers()
    with fused(model, backend):
        first = answers()
        count = len(compiled)
        again = answers()
    assert 0 < count == len(compiled) <= 4 * 3 * 2, "three numbers of rows, few pieces of a layer each, for all layers"
    for found in (first, again, answers()):
        torch.testing.assert_close(found, expected)
    assert len(compiled) == count, "the model is as before"


def test_layers_are_compiled_for_graphs():
    model = model_of()
    refused("graphs", lambda: Runner(model, Pool(model, 9, 16), graphs=False, compile=True))


@pytest.mark.parametrize("layers", ["fused", "model"])
def test_logits_behind_every_row_are_those_of_the_rows_one_by_one(layers):
    model = model_of(num_hidden_layers=2)
    pool = Pool(model, 60, 16)
    runner, asked = Runner(model, pool, layers=layers), [torch.tensor([1, 2, 3]), torch.tensor([4])]
    cached = pool.encode(model, [block_of(20)])
    found = runner.prefill_each([pool.open(cached, 3) for _ in asked], asked)
    for ids, logits in zip(asked, found, strict=True):
        held = pool.open(cached, 3)
        rows = torch.cat([runner.prefill([held], [one[None]]) for one in ids])
        torch.testing.assert_close(logits, rows, atol=1e-4, rtol=1e-4)
