"""On a GPU: the same results as on the CPU, and long prompts without a [T, T] mask in memory."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.random_models import FAMILIES, Letters, model_of, prompt_of
from workbench.engine import assemble, empty, encode_many, prefill
from workbench.generation import generate
from workbench.masks import block_attention, causal, window
from workbench.plan import Plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROMPT = prompt_of(13, 7, 11, 5)
ROWS = torch.arange(len(PROMPT))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_computes_what_it_computes_on_the_cpu(name):
    for rule in (causal, block_attention(PROMPT), window(4)):
        results = []
        for device in ("cpu", "cuda"):
            model = model_of(name).to(device)
            whole = prefill(model, PROMPT.tokens, Plan(ROWS, rule), empty(model, len(PROMPT))).logits
            moved = assemble(model, PROMPT, encode_many(model, PROMPT.context))
            reused = prefill(model, PROMPT.tokens, Plan(PROMPT.question), moved).logits
            results.append(torch.cat((whole, reused)).cpu())
        torch.testing.assert_close(*results, atol=1e-3, rtol=1e-3)


def test_answers_are_those_of_the_cpu():
    prompts = [prompt_of(5, 7, 3, seed=1), prompt_of(9, 2, seed=2)]
    settings = {"mode": "block", "max_new_tokens": 10, "temperature": 1.0, "top_p": 0.9}
    on_cpu, on_gpu = (generate(model_of().to(d), Letters(), prompts, **settings) for d in ("cpu", "cuda"))
    assert on_cpu == on_gpu


@pytest.mark.parametrize("rule", ["full", "block", "scattered"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_32k_tokens_need_no_mask_of_32k_by_32k(rule, dtype):
    """Such a mask of 16 heads takes 16 GiB even as one byte an entry."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 512, "head_dim": 128}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 1 << 15}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape, **heads))
    model = model.eval().to("cuda", dtype)
    prompt = prompt_of(*[4096] * 7, 4095, 1)
    rows = torch.arange(0, 1 << 15, 7) if rule == "scattered" else torch.arange(1 << 15)
    kv = empty(model, len(prompt))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sees = block_attention(prompt) if rule == "block" else causal
    logits = prefill(model, prompt.tokens, Plan(rows, sees), kv, logits_to_keep=1).logits
    assert logits.isfinite().all() and torch.cuda.max_memory_allocated() - before < 4 << 30
