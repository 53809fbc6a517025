"""Create a tiny model with random weights, to try every command on your own data without a real model."""

import json
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from workbench.core.errors import BadInput
from workbench.core.utils.files import folder_atomically
from workbench.data import assets
from workbench.data.layouts import LAB

NOTE = "Its weights are random: scores, answers and selections mean nothing. Times and sizes are those of a tiny model."
TOKENIZER = "lab-full"  # its tokenizer has byte fallback, so it encodes any text
CONTEXT = 32768


def write(folder: str | Path, seed: int = 0) -> Path:
    """Write the checkpoint atomically and return its folder. Raises BadInput for an existing folder."""
    path = Path(folder)
    if path.exists():
        raise BadInput(f"{path} is there already: a new folder is needed")
    tokenizer = AutoTokenizer.from_pretrained(assets.model_path(TOKENIZER), local_files_only=True)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with folder_atomically(path) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        declared = {"layout": LAB.to_json(), "note": NOTE}
        (partial / "workbench.json").write_text(json.dumps(declared, indent=1) + "\n", encoding="utf-8")
    return path
