"""Every supported family against the stock model of transformers; every other one refused before any work."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.random_models import FAMILIES, SHAPE, block_of, config_of, model_of, prompt_of, stock
from tests.refusals import refused
from workbench.core.errors import BadInput
from workbench.core.masks import block_attention
from workbench.core.plan import Plan
from workbench.engine.assembly import assemble, empty
from workbench.engine.encoding import encode, encode_many
from workbench.engine.forward import prefill
from workbench.models.families import check
from workbench.models.spec import attach

PROMPT = prompt_of(13, 7, 11, 5)
ROWS = torch.arange(len(PROMPT))


@pytest.fixture(params=sorted(FAMILIES))
def model(request):
    return model_of(request.param)


def in_place(model):
    """KV and question logits of the prompt computed at once under the block mask."""
    kv = empty(model, len(PROMPT))
    logits = prefill(model, PROMPT.tokens, Plan(ROWS, block_attention(PROMPT)), kv).logits
    return kv, logits[PROMPT.question]


def assert_same_kv(moved, computed, tokens):
    for a, b in zip(moved.tensors(), computed.tensors(), strict=True):
        torch.testing.assert_close(a[:, :tokens], b[:, :tokens], atol=2e-5, rtol=1e-4)


def test_a_full_plan_gives_the_stock_logits_which_stay_what_they_were(model):
    expected = stock(model, PROMPT.tokens)
    ours = prefill(model, PROMPT.tokens, Plan(ROWS), empty(model, len(PROMPT))).logits
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)
    assert torch.equal(stock(model, PROMPT.tokens), expected)


def test_cached_and_moved_blocks_equal_blocks_computed_in_place(model):
    computed, expected = in_place(model)
    moved = assemble(model, PROMPT, encode_many(model, PROMPT.context))
    assert_same_kv(moved, computed, PROMPT.starts[-1])
    logits = prefill(model, PROMPT.tokens, Plan(PROMPT.question), moved).logits
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)


def test_blocks_encoded_far_behind_others_move_back_to_where_they_stand(model):
    """Block 1 is encoded at position 40 + 13 under a mask that hides what is before it, then moved to 13."""
    far = prompt_of(15, 10, 15, 13)  # its first three blocks only push the last one away
    pushed = type(far)((*far.blocks[:3], PROMPT.blocks[0], PROMPT.blocks[1], PROMPT.blocks[-1]))
    kv = empty(model, len(pushed))
    prefill(model, pushed.tokens, Plan(torch.arange(len(pushed)), block_attention(pushed)), kv)
    start = pushed.starts[4]
    cached = [kv.slice(pushed.starts[3], start), kv.slice(start, start + 7), encode(model, PROMPT.blocks[2])]
    computed, _ = in_place(model)
    assert_same_kv(assemble(model, PROMPT, cached), computed, PROMPT.starts[-1])


def test_naive_positions_leave_keys_as_they_were_cached(model):
    cached = encode_many(model, PROMPT.context)
    kv = assemble(model, PROMPT, cached, positions="naive")
    for layer in range(attach(model).layers):
        assert torch.equal(kv.keys[layer][:, : PROMPT.starts[-1]], torch.cat([c.keys[layer] for c in cached], 1))


@pytest.mark.parametrize("name", ["llama", "gemma3", "glm4"])
def test_bfloat16_models_keep_their_dtype_and_stay_near_fp32(name):
    model = model_of(name).to(torch.bfloat16)
    moved = assemble(model, PROMPT, encode_many(model, PROMPT.context))
    computed, _ = in_place(model)
    assert moved.keys[0].dtype == torch.bfloat16
    for a, b in zip(moved.keys, computed.keys, strict=True):
        error = (a - b)[:, : PROMPT.starts[-1]].float().norm() / b[:, : PROMPT.starts[-1]].float().norm()
        assert error < 0.03


@pytest.mark.parametrize("name", ["gemma3", "mistral-window"])
def test_sliding_windows_take_long_prompts_but_no_block_that_does_not_fit(name):
    model = model_of(name)
    long = prompt_of(16, 16, 16, 16, 5)
    rows = torch.arange(len(long))
    expected = stock(model, long.tokens)
    torch.testing.assert_close(prefill(model, long.tokens, Plan(rows), empty(model, len(long))).logits, expected)
    refused(r"block of 17 tokens does not fit the sliding window of 16", encode, model, block_of(17))
    too_long = prompt_of(17, 5)
    refused("sliding window", assemble, model, too_long, [empty(model, 17)])


REFUSED = {
    "dynamic RoPE": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        r"llama cannot be used: its RoPE is dynamic",
    ),
    "longrope that switches": (
        {
            "model_type": "phi3",
            "eos_token_id": 1,
            "original_max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 128,
            },
        },
        r"phi3 cannot be used: its longrope RoPE switches",
    ),
    "soft-capping": ({"model_type": "gemma2"}, r"gemma2 cannot be used: .*soft-capped \(attn_logit_softcapping=50"),
    "attention sinks": ({"model_type": "gpt_oss", "num_local_experts": 2}, "gpt_oss cannot .*: its attention sinks"),
    "latent attention": (
        {"model_type": "deepseek_v3", "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1},
        r"deepseek_v3 cannot be used: its latent attention",
    ),
    "hybrid layers": (
        {"model_type": "qwen3_next", "layer_types": ["linear_attention", "linear_attention", "full_attention"]},
        r"qwen3_next cannot be used: its linear_attention layers",
    ),
    "hybrid layers of Jamba": ({"model_type": "jamba"}, r"jamba cannot be used: its \w+ layers \(linear, hybrid"),
    "state space": ({"model_type": "mamba"}, r"mamba cannot be used"),
    "chunked attention": ({"model_type": "llama4_text"}, r"llama4_text cannot be used: its chunked_attention layers"),
    "absolute positions": ({"model_type": "gpt2"}, r"gpt2 cannot be used: its positions are not rotary"),
    "ALiBi": ({"model_type": "bloom"}, r"bloom cannot be used: its positions are not rotary"),
    "encoder-decoder": ({"model_type": "t5"}, r"t5 cannot be used: it is an encoder-decoder"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_the_configuration_alone(what):
    settings, sentence = REFUSED[what]
    with pytest.raises(BadInput, match=sentence) as refusal:
        check(config_of(**settings))
    assert isinstance(refusal.value, NotImplementedError) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("what", ["dynamic RoPE", "soft-capping", "attention sinks", "absolute positions"])
def test_a_refused_model_is_left_as_it_was(what):
    settings, sentence = REFUSED[what]
    config = config_of(**{**settings, "num_hidden_layers": 2, "layer_types": None})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for verb in (attach, lambda m: encode(m, block_of(3)), lambda m: empty(m, 3)):
        refused(sentence, verb, model)
    assert model.config._attn_implementation == "eager"


def test_a_name_is_told_beside_the_type():
    config = config_of(model_type="gemma2")
    config.name_or_path = "someone/gemma-2-tiny"
    refused(r"^someone/gemma-2-tiny \(gemma2\) cannot be used: ", check, config)


def test_soft_capping_that_is_switched_off_is_no_reason_to_refuse():
    config = config_of(model_type="gemma2", attn_logit_softcapping=None, sliding_window=16)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model(PROMPT.tokens[None]).logits[0]
    ours = prefill(model, PROMPT.tokens, Plan(ROWS), empty(model, len(PROMPT))).logits
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"model_type": "nanochat"},
            r"nanochat cannot be used: keys of its layer 0 do not move by one neox rotation",
        ),
        ({"model_type": "diffllama"}, r"diffllama cannot be used: its layers \[0, 1, 2\] attend more than once"),
        ({"model_type": "stablelm"}, r"stablelm cannot be used: a plan does not reach its attention function"),
        ({"model_type": "doge"}, r"doge cannot be used: a plan does not reach .* \(an attention mask was passed"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0, 1]}, r"smollm3 cannot be used: keys of its layer 1"),
    ],
)
def test_what_a_configuration_does_not_tell_is_measured_and_refused(settings, sentence):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(**settings), attn_implementation="sdpa").eval()
    refused(sentence, attach, model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_without_a_head_says_how_to_load_it():
    refused("llama cannot be used: it has no language-model head", attach, model_of().model)


def test_a_prepared_model_without_a_plan_says_what_to_do():
    model = model_of()
    attach(model)
    refused(r"needs a plan: call workbench.prefill, or .*'sdpa'", model, PROMPT.tokens[None])


def test_head_counts_and_widths_are_read_from_the_model_itself():
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**SHAPE, "head_dim": 24})).eval()
    assert attach(model).shapes == [(2, 24)] * 3
