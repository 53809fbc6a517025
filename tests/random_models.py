"""Tiny random models of every family, prompts of random tokens, and a tokenizer of one letter per token."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.metrics.kv.position_encoding import TINY
from workbench.models import families

VOCABULARY = 97
SHAPE: dict[str, Any] = TINY | {"vocab_size": VOCABULARY}

# a family file is tested by existing
FAMILIES: dict[str, dict[str, Any]] = {}
for _path in sorted(Path(families.__file__).parent.glob("[!_]*.py")):
    FAMILIES |= import_module(f"workbench.models.families.{_path.stem}").TINY


def config_of(**settings: Any):
    return AutoConfig.for_model(**{**SHAPE, "model_type": "llama", **settings})


def model_of(name: str = "llama", seed: int = 0, **settings: Any):
    """A random model in stock (sdpa) mode; its weights are large enough for attention to matter."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config_of(**{**FAMILIES[name], **settings}), attn_implementation="sdpa"
    ).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    return model


def block_of(length: int, seed: int = 0) -> Block:
    generator = torch.Generator().manual_seed(seed)
    return Block(tuple(torch.randint(1, VOCABULARY - 1, (length,), generator=generator).tolist()))


def prompt_of(*lengths: int, seed: int = 0) -> Prompt:
    return Prompt(tuple(block_of(length, 100 * seed + i) for i, length in enumerate(lengths)))


def stitched(model, prompt: Prompt) -> KV:
    """The KV of a prompt whose passages were cached behind its system block, which stands at the front."""
    system, *rest = prompt.context
    return assemble(model, prompt, encode_many(model, prompt.context, [(), *[(system,)] * len(rest)]))


def stock(model, tokens, seen=None):
    """Stock logits under a dense mask [T, T]."""
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits = model(tokens[None], attention_mask=None if seen is None else seen[None, None]).logits[0]
    model.set_attn_implementation(before)
    return logits


class Letters:
    """Token t is the letter chr(33 + t); the last id ends a text."""

    eos_token_id = VOCABULARY - 1

    def decode(self, ids, **_: Any) -> str:
        return "".join(chr(33 + int(i)) for i in ids)
