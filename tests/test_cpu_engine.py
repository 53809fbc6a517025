"""What carries a question out on a CPU computes what torch and the model's own modules compute, and is used rightly."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from tests.random_models import model_of, prompt_of
from workbench.core.kv import KV, layered
from workbench.core.plan import Plan
from workbench.core.rope import cos_sin, rotate, rotate_by
from workbench.engine import assembly, forward
from workbench.engine.assembly import assemble
from workbench.engine.attention_backends import attention
from workbench.engine.encoding import encode_many
from workbench.engine.forward import all_rows, prefill, prefill_many
from workbench.experiments.latency.ttft import stock_of
from workbench.experiments.trials.trial_measures import first_tokens
from workbench.methods.generation import first_token
from workbench.methods.modes.reuse import Reuse
from workbench.models.spec import attach
from workbench.models.weights.compact import by_input_channel
from workbench.store import MemoryStore, fetching, keys

PROMPT = prompt_of(17, 8, 17, 11)


@pytest.mark.parametrize("threads", [1, 2, 8])  # KV heads that are computed at a time
@pytest.mark.parametrize(("heads", "kv_heads", "rows", "scale"), [(6, 3, 5, None), (4, 4, 7, 0.3), (6, 2, 2, None)])
def test_attention_of_few_rows_is_torchs_with_a_causal_mask(heads, kv_heads, rows, scale, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    torch.manual_seed(0)
    q, keys, values = torch.randn(heads, rows, 16), torch.randn(kv_heads, 600, 16), torch.randn(kv_heads, 600, 16)
    mask = torch.ones(rows, 600, dtype=torch.bool).tril(600 - rows)
    k, v = (x.repeat_interleave(heads // kv_heads, 0)[None] for x in (keys, values))
    wanted = scaled_dot_product_attention(q[None], k, v, mask, scale=scale)[0]
    assert attention.prefers_few_rows(q, keys)
    torch.testing.assert_close(attention.over_few_rows(q, keys, values, scale), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "rows", "scale"), [(6, 3, 192, None), (4, 4, 199, 0.3), (6, 2, 241, None)]
)
def test_attention_of_a_prompt_is_torchs(heads, kv_heads, rows, scale):
    torch.manual_seed(0)
    q, keys, values = (torch.randn(count, rows, 16) for count in (heads, kv_heads, kv_heads))
    k, v = (x.repeat_interleave(heads // kv_heads, 0)[None] for x in (keys, values))
    wanted = scaled_dot_product_attention(q[None], k, v, is_causal=True, scale=scale)[0]
    assert attention.suits_prompt(q, keys)
    torch.testing.assert_close(attention.over_prompt(q, keys, values, scale), wanted, atol=1e-5, rtol=1e-5)


def test_defaults_of_dtype_and_device_leave_few_rows_and_norms_alone():
    attention._later.cache_clear()
    forward._number.cache_clear()
    q, keys, norm = torch.randn(2, 5, 16), torch.randn(1, 600, 16), nn.RMSNorm(16, eps=1e-5)
    norm.variance_epsilon = norm.eps
    wanted = attention.over_few_rows(q, keys, keys), forward._normed(norm, q)
    attention._later.cache_clear()
    forward._number.cache_clear()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = attention.over_few_rows(q, keys, keys), forward._normed(norm, q)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert all(map(torch.equal, found, wanted))
    torch.testing.assert_close(wanted[1], norm(q), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rotary", [16, 8], ids=["whole heads", "half of a head"])
def test_heads_rotate_as_transformers_rotates_them_and_to_the_same_bits_by_joined_angles(rotary):
    x, angle = torch.randn(3, 9, 16), torch.randn(9, rotary // 2).repeat(1, 2)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.cat((-x[..., rotary // 2 : rotary], x[..., : rotary // 2]), -1)
    wanted = torch.cat((x[..., :rotary] * cos + turned * sin, x[..., rotary:]), -1)
    torch.testing.assert_close(forward._rotated(x, cos, *sin.chunk(2, -1)), wanted)
    keys = torch.randn(3, 2, 9, 16)
    cos, sin = cos_sin(37, 1e4 ** (-torch.arange(0, rotary, 2) / rotary), "cpu")
    joined = rotate_by(keys, torch.cat((cos, cos), -1), sin)
    assert torch.equal(joined, rotate_by(keys, cos, sin))
    assert torch.equal(rotate_by(keys.double(), torch.cat((cos, cos), -1), sin), rotate_by(keys.double(), cos, sin))


def test_few_rows_are_left_to_torch_where_they_are_many_single_or_no_fp32():
    q, keys = torch.randn(4, 8, 16), torch.randn(2, 600, 16)
    assert attention.prefers_few_rows(q, keys)
    assert not attention.prefers_few_rows(q[:, :1], keys) and not attention.prefers_few_rows(
        q.bfloat16(), keys.bfloat16()
    )
    assert not attention.prefers_few_rows(q, keys[:, :100]) and not attention.prefers_few_rows(
        torch.randn(4, 200, 16), keys
    )


@pytest.mark.parametrize("name", ["llama", "llama3", "yarn", "mistral", "qwen2", "qwen3"])
def test_layers_compute_what_the_modules_compute(name, monkeypatch):
    """Packed requests: a whole prompt, a question over cached blocks, an early stop; and the queries that are kept."""
    model = model_of(name, num_hidden_layers=3)

    def answers():
        asked = Plan(PROMPT.question, return_queries=(0, 2))
        over = assemble(model, PROMPT, encode_many(model, PROMPT.context))
        requests = [all_rows(model, PROMPT.tokens), forward.PrefillRequest(PROMPT.tokens, asked, over)]
        return prefill_many(model, requests, 2), over

    if attach(model).window is None:
        assert forward.cpu_layers(model) is not None
    found, kv = answers()
    monkeypatch.setattr(forward, "cpu_layers", lambda model: None)
    wanted, same = answers()
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.logits, theirs.logits, atol=1e-3, rtol=1e-4)
        for layer, queries in theirs.queries.items():
            torch.testing.assert_close(mine.queries[layer], queries, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close([*kv.tensors()], [*same.tensors()], atol=1e-4, rtol=1e-4)


def test_a_model_that_is_hooked_or_changed_runs_as_it_is():
    model = model_of(num_hidden_layers=2)
    attach(model)
    assert forward.cpu_layers(model) is not None
    seen = []
    hook = model.get_decoder().layers[1].mlp.register_forward_hook(lambda *_: seen.append(1))
    prefill(model, PROMPT.tokens, Plan(torch.arange(len(PROMPT))), attach(model).empty(len(PROMPT)))
    assert seen and forward.cpu_layers(model) is None
    hook.remove()
    assert forward.cpu_layers(model) is not None
    attention = model.get_decoder().layers[0].self_attn
    old = attention.q_proj
    attention.q_proj = nn.Sequential(old)
    assert forward.cpu_layers(model) is None
    attention.q_proj = old
    assert forward.cpu_layers(model) is not None
    assert forward.cpu_layers(model.bfloat16()) is None


def test_weights_that_are_exchanged_are_the_ones_that_are_used():
    model = model_of(num_hidden_layers=2)
    before = prefill_many(model, [all_rows(model, PROMPT.tokens)], 1)[0].logits
    up = model.get_decoder().layers[0].mlp.up_proj
    up.weight.data = up.weight.data * 2
    after = prefill_many(model, [all_rows(model, PROMPT.tokens)], 1)[0].logits
    assert not torch.equal(before, after)


def test_layers_of_a_model_end_with_it():
    model = model_of(num_hidden_layers=1)
    attach(model)
    known = weakref.ref(forward.cpu_layers(model))
    del model
    gc.collect()
    assert known() is None


def test_keys_and_values_of_all_layers_lie_side_by_side():
    kv = KV.zeros([(2, 4)] * 3, 5, reserve=2)
    whole = layered(kv.keys)
    assert whole.shape == (3, 2, 5, 4)
    whole[1, :, 2] = 7
    assert bool((kv.keys[1][:, 2] == 7).all()) and not kv.keys[0].any() and not kv.keys[2].any()
    assert layered(kv.clone().values) is not None
    assert layered(KV.zeros([(2, 4), (1, 4)], 5).keys) is None
    assert layered([torch.zeros(2, 5, 4) for _ in range(3)]) is None
    assert layered([kv.keys[0], kv.keys[2], kv.keys[1]]) is None
    assert layered([kv.keys[0], kv.keys[1].double(), kv.keys[2]]) is None


@pytest.mark.parametrize("name", ["llama", "glm4", "qwen3"])
@pytest.mark.parametrize("positions", ["re-encoded", "naive"])
def test_blocks_are_joined_alike_side_by_side_or_layer_by_layer(name, positions, monkeypatch):
    model = model_of(name, num_hidden_layers=3)
    cached = encode_many(model, PROMPT.context)
    together = assemble(model, PROMPT, cached, positions, reserve=3)
    monkeypatch.setattr(assembly, "_together", lambda *_: None)
    apart = assemble(model, PROMPT, cached, positions, reserve=3)
    assert len(together) == len(apart)
    torch.testing.assert_close([*together.tensors()], [*apart.tensors()], atol=1e-6, rtol=1e-6)
    together.grow(3)
    assert not any(x[:, -3:].any() for x in together.tensors())


def test_rotation_of_all_layers_at_once_is_that_of_each():
    keys = torch.randn(3, 2, 5, 8)
    table = torch.tensor([1.0, 0.1, 0.01])  # two channels are not rotary
    assert torch.equal(rotate(keys, 9, table), torch.stack([rotate(layer, 9, table) for layer in keys]))


def test_weights_lie_by_input_channel_and_stay_what_they_are(tmp_path):
    model = model_of(num_hidden_layers=2)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    by_input_channel(model)
    weight = model.get_decoder().layers[0].mlp.down_proj.weight
    assert not weight.is_contiguous() and weight.t().is_contiguous()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(x, before[name]) for name, x in again.state_dict().items())
    stock = stock_of(model)
    assert all(x.is_contiguous() for x in stock.parameters()) and not weight.is_contiguous()
    assert stock.get_input_embeddings().weight is model.get_input_embeddings().weight


def test_a_timed_request_takes_the_blocks_that_are_there_and_encodes_none(monkeypatch):
    model, method, kept = model_of(num_hidden_layers=2), Reuse(), MemoryStore()
    method.begin(model, [PROMPT], kept)
    wanted = first_token(model, PROMPT, method, kept)
    encoded = []
    monkeypatch.setattr(fetching, "encode_many", lambda model, blocks, after: encoded.extend(blocks) or [])
    (job,) = first_tokens(model, [PROMPT], method, "auto", kept)
    assert job() == wanted and not encoded


def test_a_kv_knows_anew_how_its_layers_lie_when_one_is_exchanged():
    kv = KV.zeros([(2, 4)] * 3, 5)
    keys, values = kv.stacked()
    assert kv.stacked()[0] is keys and keys.shape == values.shape == (3, 2, 5, 4)
    kv.keys[1] = torch.ones(2, 5, 4)
    assert kv.stacked() is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
def test_a_checksum_is_the_sum_of_bits_times_odd_numbers_of_their_places(dtype, monkeypatch):
    """However it is cut to pieces, so that keys of stores stay what they are."""
    monkeypatch.setattr(keys, "_CHUNK", 512)
    monkeypatch.setattr(keys, "_PIECE", 100)
    x = torch.randn(33, 40).mul(100).abs().to(dtype)
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    flat, before, total = x.view(-1).view(words).tolist(), x.clone(), 0
    for begin in range(0, len(flat), 512):
        added = 0
        for place, bits in enumerate(flat[begin : begin + 512], begin):
            number = keys._wrapped(place * 6364136223846793005 + 1442695040888963407)
            added += bits * ((number ^ (number >> 29)) | 1)
        total = (total * 31 + added) % 2**64
    assert keys._checksum(x) == total and torch.equal(x, before)
