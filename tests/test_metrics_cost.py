import numpy as np
import pytest
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, MixtralConfig, T5Config

from workbench.core.errors import BadInput
from workbench.metrics import cost, published_numbers

SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48  # q, o; k, v; gate, up, down


@pytest.fixture(scope="module")
def llama():
    return cost.shape(LlamaConfig(**published_numbers.LLAMA_3_8B))


def test_weights_of_a_llama_by_hand():
    shape = cost.shape(LlamaConfig(**SMALL, tie_word_embeddings=False))
    assert (shape.linear, shape.head, shape.stored) == (3 * LAYER, 3200, 3 * LAYER + 6400 + 7 * 32)
    assert cost.shape(LlamaConfig(**SMALL, tie_word_embeddings=True)).stored == shape.stored - 3200


def test_the_convention_reproduces_the_published_table(llama):
    assert llama.convention == 8030261248 - 128256 * 4096 - 65 * 4096  # all of it but the input embedding and the norms
    table = published_numbers.TABLE_3
    for length, full, block in zip(table["length"], table["flops"]["full"], table["flops"]["block"], strict=True):
        ours = cost.convention(llama.convention, length)
        unit = 10.0 ** (np.floor(np.log10(full)) - (2 if full == 2.45e14 else 1))
        assert np.floor(ours / unit) * unit == pytest.approx(full)  # the table cuts digits off
        question = cost.convention(llama.convention, published_numbers.QUESTION)
        assert np.floor(question / 1e10) * 1e10 == pytest.approx(block)


def test_attention_is_counted_apart_and_grows_with_the_square(llama):
    full = cost.first_token(llama, range(32768), 32768)
    assert full.attention == 32 * 4 * 4096 * 32768 * 32769 / 2
    assert full.linear == pytest.approx(2 * (llama.linear * 32768 + llama.head))
    assert full.flops > cost.convention(llama.convention, 32768)
    question = cost.first_token(llama, range(32768 - 50, 32768), 32768)
    assert question.attention == 32 * 4 * 4096 * sum(range(32768 - 49, 32769))
    assert 1 - question.flops / full.flops > 0.99


def test_bytes_of_a_cached_prompt_of_an_8b_model(llama):
    block = cost.first_token(llama, range(32768 - 50, 32768), 32768)
    per_token = 32 * 2 * 8 * 128 * 2  # 128 KiB a token
    assert block.weights == pytest.approx(16.06e9, rel=1e-3)
    assert (block.kv_written, block.kv_read, block.kv_loaded) == (50 * per_token, 32768 * per_token, 32718 * per_token)
    assert block.bytes == block.weights + 2 * 32768 * per_token


def test_a_sliding_layer_sees_its_window():
    shape = cost.shape(
        Gemma3TextConfig(
            **SMALL, sliding_window=8, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
        )
    )
    assert shape.windows == (8, None, 8)
    seen = [min(row + 1, 8) for row in range(20)]
    assert cost.first_token(shape, range(20), 20).attention == 4 * 32 * (2 * sum(seen) + 210)


def test_experts_count_as_far_as_they_are_used():
    shape = cost.shape(MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2))
    assert shape.linear == 3 * (32 * 32 * 2 + 32 * 16 * 2 + 2 * 3 * 32 * 48 + 32 * 4)


def test_blocks_encoded_apart_cost_less_than_together():
    shape = cost.shape(LlamaConfig(**SMALL))
    apart = cost.encoding(shape, [10, 10])
    assert apart.attention == 2 * 3 * 4 * 32 * 55
    assert apart.linear == 2 * shape.linear * 20


def test_gpt2_without_gqa_fields():
    shape = cost.shape(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64))
    assert shape.kv_width == (64, 64)


@pytest.mark.parametrize("rows", [[], [5], [-1]])
def test_rows_outside_the_prompt_are_refused(rows):
    with pytest.raises(BadInput, match="positions from 0 to 4"):
        cost.first_token(cost.shape(LlamaConfig(**SMALL)), rows, 5)


def test_a_config_without_a_causal_model_is_refused():
    with pytest.raises(BadInput, match="T5Config"):
        cost.shape(T5Config())
