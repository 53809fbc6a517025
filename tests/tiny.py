"""A whole checkpoint in a folder, small enough to build in a test: random Llama, byte-level tokenizer, lab layout."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workbench import data
from workbench.data import layouts


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    texts = [passage.text for sample in data.load("lab", samples=8, seed=9) for passage in sample.ctxs]
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


def checkpoint(path: Path, shard: str = "5GB", **config) -> Path:
    torch.manual_seed(0)
    words = tokenizer()
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 2048, "vocab_size": len(words)}
    model = LlamaForCausalLM(LlamaConfig(**shape | {"bos_token_id": 0, "eos_token_id": 1} | config))
    model.save_pretrained(path, max_shard_size=shard)
    words.save_pretrained(path)
    (path / "workbench.json").write_text(json.dumps({"layout": layouts.LAB.to_json()}))
    return path
