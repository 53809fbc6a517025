"""Tiny GGUF files of any supported family, written with the `gguf` package: random weights, byte-level tokenizer."""

import json
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests import tiny

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FAMILIES = {  # architecture of GGUF: model type of transformers, what it needs besides
    "llama": ("llama", {"head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 128}),
    "phi3": ("phi3", {"pad_token_id": 1}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 16}),
}
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"


def model(architecture: str = "llama", **config) -> PreTrainedModel:
    """Return a random model of a family."""
    kind, extra = FAMILIES[architecture]
    words = len(tiny.tokenizer())
    settings = SHAPE | {"vocab_size": words, "bos_token_id": 0, "eos_token_id": 1} | extra | config
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
    for name, weight in made.named_parameters():
        if name.endswith(("norm.weight", "bias")):  # at their first values an error in them would not show
            torch.nn.init.normal_(weight, mean=1.0, std=0.2)
    return made.eval()


def write(
    path: Path,
    source: PreTrainedModel | None = None,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    values: dict | None = None,
    tensors: dict | None = None,
    pieces: list[str] | None = None,
) -> Path:
    """Write a model as a GGUF file: matrices stored as `kind`; `values` and `tensors` are added or replace.

    `pieces` are words of a SentencePiece vocabulary, likeliest first; None: a byte-level vocabulary.
    """
    source = source or model(architecture)
    writer = GGUFWriter(path, architecture)
    _add_shape(writer, source.config)
    if pieces is None:
        _add_bytes(writer)
    else:
        _add_pieces(writer, pieces, source.config.vocab_size)
    writer.add_chat_template(TEMPLATE)
    for key, value in (values or {}).items():
        if value is None:
            writer.kv_data[0].pop(key)
        else:
            writer.kv_data[0].pop(key, None)
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, tensor in (_tensors(source, architecture) | (tensors or {})).items():
        stored = kind if tensor.ndim == 2 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: GGUFWriter, config) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(width)
    writer.add_key_length(width)
    writer.add_value_length(width)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)


def _add_bytes(writer: GGUFWriter) -> None:
    core = json.loads(tiny.tokenizer().backend_tokenizer.to_str())
    words = sorted(core["model"]["vocab"], key=core["model"]["vocab"].get)
    special = {added["content"] for added in core["added_tokens"]}
    types = [gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in core["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)


def _add_pieces(writer: GGUFWriter, pieces: list[str], size: int) -> None:
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    words = first + [f"unused{i}" for i in range(size - len(first))]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (size - 259)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(size)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _tensors(source: PreTrainedModel, architecture: str) -> dict:
    """Weights by GGUF's names, as llama.cpp's converter stores them."""
    layers = source.config.num_hidden_layers
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), layers)
    tied = source.config.tie_word_embeddings
    stored = {}
    for name, weight in source.state_dict().items():
        if tied and name.startswith("lm_head"):
            continue
        array = weight.float().numpy().copy()
        if architecture == "llama" and "q_proj" in name:
            array = _interleaved(array, source.config.num_attention_heads)
        if architecture == "llama" and "k_proj" in name:
            array = _interleaved(array, source.config.num_key_value_heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            array = array + 1
        stored[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return stored


def _interleaved(array, heads: int):
    """Rows of a query or key projection in the order in which llama.cpp rotates them."""
    rows = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return rows.swapaxes(1, 2).reshape(array.shape)
