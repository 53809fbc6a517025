"""Errors of position re-encoding: rounding, exactness by model family, drift compared with naive positions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.masks import block_attention
from workbench.core.plan import Plan
from workbench.core.rope import rotate
from workbench.engine.assembly import Positions, assemble, empty
from workbench.engine.encoding import encode, encode_many
from workbench.engine.forward import PrefillRequest, all_rows, prefill, prefill_many
from workbench.metrics.answers import wilson
from workbench.models import families
from workbench.models.spec import attach

# mode that `drift` reports → positions of reused keys
POSITIONS: Mapping[str, Positions] = {"block": "re-encoded", "naive": "naive"}


def drift(model: PreTrainedModel, prompts: Sequence[Prompt]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Compare the question after reuse ("block", "naive") with the question under full attention.

    Returns records {mode, layer, error}, relative L2 over the question's keys and values, one value per prompt; and
    records {mode, kl, agree, low, high} of the first token: divergence in nats, one value per prompt, and the share of
    equal tokens with Wilson's 95% interval.
    """
    by_mode: dict[str, list[tuple[list[float], float, bool]]] = {mode: [] for mode in POSITIONS}
    for prompt in prompts:
        full = all_rows(model, prompt.tokens)
        expected = _first_token(model, full)
        cached = encode_many(model, prompt.context)
        for mode, positions in POSITIONS.items():
            kv = assemble(model, prompt, cached, positions)
            log_probs = _first_token(model, PrefillRequest(prompt.tokens, Plan(prompt.question), kv))
            divergence = float(kl_div(log_probs, expected, reduction="sum", log_target=True))
            same = bool(log_probs.argmax() == expected.argmax())
            by_mode[mode].append((_errors(kv, full.kv, prompt.starts[-1]), max(0.0, divergence), same))
    layers: list[dict[str, Any]] = []
    first_tokens = []
    for mode, measured in by_mode.items():
        by_layer = zip(*(errors for errors, _, _ in measured), strict=True)
        layers += [{"mode": mode, "layer": layer, "error": list(errors)} for layer, errors in enumerate(by_layer)]
        equal = sum(same for _, _, same in measured)
        low, high = wilson(equal, len(prompts))
        first_token = {"mode": mode, "kl": [kl for _, kl, _ in measured], "agree": equal / max(len(prompts), 1)}
        first_tokens.append({**first_token, "low": low, "high": high})
    return layers, first_tokens


def _first_token(model: PreTrainedModel, request: PrefillRequest) -> Tensor:
    """Prefill a request and return the log-probabilities [V] of the first token."""
    (output,) = prefill_many(model, [request], logits_to_keep=1)
    assert output.logits is not None
    return output.logits[-1].float().log_softmax(-1)


def _errors(kv: KV, exact: KV, begin: int) -> list[float]:
    """Return the relative L2 distance of the tokens from `begin` on, keys and values together, per layer."""
    errors = []
    for k, v, k0, v0 in zip(kv.keys, kv.values, exact.keys, exact.values, strict=True):
        ours = torch.cat((k[:, begin:], v[:, begin:]), -1).float()
        theirs = torch.cat((k0[:, begin:], v0[:, begin:]), -1).float()
        errors.append(float((ours - theirs).norm() / theirs.norm()))
    return errors


@dataclass(frozen=True)
class KeyRotation:
    """Some channel pairs of one key, as cached and as the model computes them at other positions."""

    pairs: tuple[int, ...]  #: [P] indices of the channel pairs
    inv_freq: np.ndarray  #: [P] radians per token
    cached: np.ndarray  #: [P, 2] encoded with its block at position 0
    distances: tuple[int, ...]  #: [N] tokens
    in_place: np.ndarray  #: [N, P, 2] computed by the model with the block at each distance


def key_rotation(
    model: PreTrainedModel, block: Block, token: int, layer: int, head: int, distances: Sequence[int], count: int = 6
) -> KeyRotation:
    """Compute the key of token `token` of `block` in one layer and KV head, with the block at each distance.

    Selects `count` channel pairs, from the fastest to the slowest. Distances beyond the model's context are left out.
    Raises BadInput for a layer, head or token that does not exist.
    """
    spec = attach(model)
    if not -spec.layers <= layer < spec.layers:
        raise BadInput(f"layer is {layer}: the model has layers 0 to {spec.layers - 1}")
    layer %= spec.layers
    heads = spec.shapes[layer][0]
    if not 0 <= head < heads:
        raise BadInput(f"head is {head}: the model has KV heads 0 to {heads - 1}")
    if not 0 <= token < len(block):
        raise BadInput(f"token is {token}: the block has tokens 0 to {len(block) - 1}")
    inv_freq = spec.inv_freq[layer].float().cpu().numpy()
    half = len(inv_freq)
    fits = [d for d in distances if not spec.context or d + len(block) <= spec.context]
    pairs = sorted({round(i) for i in np.linspace(0, half - 1, min(count, half))})
    cached = _pairs(encode(model, block).keys[layer][head, token], half, spec.pairing)[pairs]
    keys = [_in_place(model, block, distance, layer)[head, token] for distance in fits]
    in_place = np.stack([_pairs(key, half, spec.pairing)[pairs] for key in keys])
    return KeyRotation(tuple(pairs), inv_freq[pairs], cached, tuple(fits), in_place)


def _in_place(model: PreTrainedModel, block: Block, distance: int, layer: int) -> Tensor:
    """Return keys [H, T, D] of a block computed alone at `distance`."""
    tokens = torch.tensor([block.tokens[0]] * distance + list(block.tokens))
    rows = torch.arange(distance, len(tokens))
    kv = empty(model, len(tokens))
    prefill(model, tokens, Plan(rows, sees=lambda row, col: (col <= row) & (col >= distance), num_layers=layer + 1), kv)
    return kv.keys[layer][:, distance:]


def _pairs(key: Tensor, half: int, pairing: str) -> np.ndarray:
    """Return [R/2, 2] channel pairs of a key [D]."""
    rotated = key[: 2 * half].float().cpu().numpy()
    return np.stack(np.split(rotated, 2), -1) if pairing == "neox" else rotated.reshape(half, 2)


SCHEMES = {
    "fp32 cache, fp32 shift": "keys kept in fp32",
    "stored un-rotated, rotated once": "bf16 keys before RoPE, one fp32 rotation when loaded",
    "computed in place in bf16": "no reuse: RoPE as a bf16 model applies it",
    "bf16 cache, fp32 shift": "what the workbench does",
    "bf16 cache, to zero and on": "rerotated to position 0, rounded, rotated to its place (the paper's three steps)",
    "bf16 cache, bf16 shift": "the same shift in bf16 arithmetic",
    "20 chained fp32 shifts": "moved 20 times, rounded to bf16 each time",
    "20 chained bf16 shifts": "moved 20 times in bf16 arithmetic",
    "naive: not moved": "the key keeps its cached position",
}


def shift_errors(
    inv_freq: Tensor, distances: list[int], keys: int = 256, start: int = 100, seed: int = 0
) -> list[dict[str, Any]]:
    """Measure the rounding error of shifting a cached key: records {scheme, distance, error}.

    The error is the relative L2 distance from exact (fp64) rotation over `keys` random normal keys of 2·len(inv_freq)
    channels. A key, exact in bf16 before RoPE, is cached `start` tokens into its block and shifted by `distance`
    tokens. bf16 caches hold the output of a bf16 model's own RoPE, and every scheme returns bf16 keys. Chained schemes
    take 20 steps.
    """
    x = torch.randn(1, keys, 2 * len(inv_freq), generator=torch.Generator().manual_seed(seed)).bfloat16().double()
    records = []
    for distance in distances:
        exact = _rope(x, start + distance, inv_freq)
        for scheme, shifted in _shifted(x, start, distance, inv_freq):
            error = float((shifted.double() - exact).norm() / exact.norm())
            records.append({"scheme": scheme, "distance": distance, "error": error})
    return records


def _shifted(x: Tensor, start: int, distance: int, w: Tensor) -> Iterator[tuple[str, Tensor]]:
    in_bf16 = partial(_rope, dtype=torch.bfloat16)
    low = x.bfloat16()
    cached = in_bf16(low, start, w)
    yield "fp32 cache, fp32 shift", rotate(_rope(x, start, w).float(), distance, w)
    yield "stored un-rotated, rotated once", rotate(low, start + distance, w)
    yield "computed in place in bf16", in_bf16(low, start + distance, w)
    yield "bf16 cache, fp32 shift", rotate(cached, distance, w)
    yield "bf16 cache, to zero and on", rotate(rotate(cached, -start, w), start + distance, w)
    yield "bf16 cache, bf16 shift", in_bf16(cached, distance, w)
    yield "20 chained fp32 shifts", _chained(rotate, cached, distance, w)
    yield "20 chained bf16 shifts", _chained(in_bf16, cached, distance, w)
    yield "naive: not moved", cached


def _chained(rotation: Callable[..., Tensor], keys: Tensor, distance: int, w: Tensor, steps: int = 20) -> Tensor:
    for step in range(steps):
        keys = rotation(keys, distance * (step + 1) // steps - distance * step // steps, w)
    return keys


def _rope(x: Tensor, distance: int, w: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Apply RoPE to `x` as a model of `dtype` does: in bf16, cos and sin are rounded, and products are in bf16."""
    angle = distance * w.to(torch.promote_types(dtype, torch.float32))
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


TOLERANCE = 2e-5  # of fp32 logits, keys and values, absolute
TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}


def tiny(config: dict[str, Any], seed: int = 0) -> PreTrainedModel:
    """Return a random fp32 model of `config` (with a `model_type`), in the smallest shape that has every part."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**TINY, **config})).eval()


def tiny_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, config) of every variant that the files of `workbench/models/families` declare."""
    for module in sorted(iter_modules(families.__path__), key=lambda info: (info.name != "standard", info.name)):
        yield from import_module(f"{families.__name__}.{module.name}").TINY.items()


def exactness(seed: int = 0, blocks: int = 8, length: int = 12) -> list[dict[str, Any]]:
    """Compare `blocks` re-encoded from position 0 with blocks computed in place: {family} and `differences`."""
    records = []
    for name, config in tiny_configs():
        model = tiny(config, seed)
        draw = torch.Generator().manual_seed(seed)
        tokens = torch.randint(2, TINY["vocab_size"], (blocks + 1, length), generator=draw).tolist()
        records.append({"family": name, **differences(model, Prompt(tuple(Block(tuple(ids)) for ids in tokens)))})
    return records


def differences(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    """Return the largest absolute differences between re-encoded blocks and blocks computed in place.

    The latter are computed under the block mask. `naive` is the difference of the question's `logits` with keys at
    their cached positions; `distance` is the largest shift (tokens).
    """
    exact = empty(model, len(prompt))
    rows = torch.arange(len(prompt))
    expected = _question_logits(model, prompt, exact, Plan(rows, sees=block_attention(prompt)))
    cached = encode_many(model, prompt.context)
    reencoded = assemble(model, prompt, cached)
    end = prompt.starts[-1]
    result = {half: _largest(getattr(reencoded, half), getattr(exact, half), end) for half in ("keys", "values")}
    for name, kv in (("logits", reencoded), ("naive", assemble(model, prompt, cached, "naive"))):
        result[name] = float((_question_logits(model, prompt, kv, Plan(prompt.question)) - expected).abs().max())
    return {**result, "distance": prompt.starts[-2]}


def _largest(ours: Sequence[Tensor], theirs: Sequence[Tensor], end: int) -> float:
    return max(float((x[:, :end] - y[:, :end]).abs().max()) for x, y in zip(ours, theirs, strict=True))


def _question_logits(model: PreTrainedModel, prompt: Prompt, kv: KV, plan: Plan) -> Tensor:
    """Return [Q, V] of the question."""
    output = prefill(model, prompt.tokens, plan, kv, logits_to_keep=len(prompt.question))
    assert output.logits is not None
    return output.logits


def angles(rotated: KeyRotation) -> list[dict[str, Any]]:
    """Return the angle of every channel pair at every distance: records {distance, pair, turned_radians}."""
    return [
        {"distance": distance, "pair": pair, "turned_radians": float(distance * speed)}
        for distance in rotated.distances
        for pair, speed in zip(rotated.pairs, rotated.inv_freq, strict=True)
    ]


def rope_frequencies(theta: float, width: int) -> Tensor:
    """Return RoPE's fp64 frequencies [width/2] (radians a token) for keys of `width` channels and base `theta`."""
    return theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
