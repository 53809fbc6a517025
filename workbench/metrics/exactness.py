"""Are cached and moved blocks the blocks that would have been computed in place? Asked of every supported family."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.core.masks import block_attention
from workbench.core.plan import Plan
from workbench.engine.forward import assemble, empty, encode_many, prefill
from workbench.models import families

TOLERANCE = 2e-5  # of fp32 logits, keys and values, absolute
TINY = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip


def tiny(config: dict[str, Any], seed: int = 0) -> PreTrainedModel:
    """A random model of `config` (with a `model_type`) in the smallest shape that has every part, fp32."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**TINY, **config})).eval()


def tiny_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, config) of every variant that the files of workbench/families declare."""
    for module in sorted(iter_modules(families.__path__), key=lambda found: (found.name != "standard", found.name)):
        yield from import_module(f"{families.__name__}.{module.name}").TINY.items()


def exactness(seed: int = 0, blocks: int = 8, length: int = 12) -> list[dict]:
    """One record per family variant: largest absolute difference in keys, values and the question's logits between
    `blocks`
    cached at position 0 and moved, and the same blocks computed in place under the block mask; `naive`: logits, keys
    unmoved."""
    records = []
    for name, config in tiny_configs():
        model = tiny(config, seed)
        draw = torch.Generator().manual_seed(seed)
        tokens = torch.randint(2, TINY["vocab_size"], (blocks + 1, length), generator=draw).tolist()
        records.append({"family": name, **differences(model, Prompt(tuple(Block(tuple(ids)) for ids in tokens)))})
    return records


def differences(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    """Largest absolute differences of keys, values and logits; of the naive logits; and the furthest move (tokens)."""
    place = empty(model, len(prompt))
    rows = torch.arange(len(prompt))
    expected = _logits(model, prompt, place, Plan(rows, sees=block_attention(prompt)))
    cached = encode_many(model, prompt.context)
    moved = assemble(model, prompt, cached)
    end = prompt.starts[-1]
    gap = lambda a, b: max(float((x[:, :end] - y[:, :end]).abs().max()) for x, y in zip(a, b, strict=True))  # noqa: E731
    found = {"keys": gap(moved.keys, place.keys), "values": gap(moved.values, place.values)}
    for name, kv in (("logits", moved), ("naive", assemble(model, prompt, cached, "naive"))):
        found[name] = float((_logits(model, prompt, kv, Plan(prompt.question)) - expected).abs().max())
    return {**found, "distance": prompt.starts[-2]}


def _logits(model: PreTrainedModel, prompt: Prompt, kv: KV, plan: Plan) -> torch.Tensor:
    """[Q, V] of the question."""
    step = prefill(model, prompt.tokens, plan, kv, logits_to_keep=len(prompt.question))
    assert step.logits is not None
    return step.logits
