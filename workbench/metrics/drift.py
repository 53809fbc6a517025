"""What reuse changes in the question: its keys and values, and the distribution of the first token."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.engine.forward import assemble, empty, encode_many, prefill
from workbench.metrics.answers import wilson

POSITIONS = {"block": "re-encoded", "naive": "naive"}


def drift(model: PreTrainedModel, prompts: Sequence[Prompt]) -> tuple[list[dict], list[dict]]:
    """Against full attention, per way to reuse: records {mode, layer, error [per prompt]} and {mode, kl [nats, per
    prompt], agree,
    low, high}. Errors are relative L2 over the question's keys and values; agree is the share of equal first tokens,
    with
    Wilson's 95% interval."""
    errors: dict[str, list[list[float]]] = {mode: [] for mode in POSITIONS}
    divergences: dict[str, list[float]] = {mode: [] for mode in POSITIONS}
    same = dict.fromkeys(POSITIONS, 0)
    for prompt in prompts:
        truth, expected = _answer(model, prompt, empty(model, len(prompt)), torch.arange(len(prompt)))
        cached = encode_many(model, prompt.context)
        for mode, positions in POSITIONS.items():
            kv = assemble(model, prompt, cached, positions)  # type: ignore[arg-type]
            kv, logits = _answer(model, prompt, kv, prompt.question)
            errors[mode].append(_errors(kv, truth, prompt.starts[-1]))
            gap = torch.nn.functional.kl_div(logits, expected, reduction="sum", log_target=True)
            divergences[mode].append(max(0.0, float(gap)))
            same[mode] += int(logits.argmax() == expected.argmax())
    layers = [
        {"mode": mode, "layer": layer, "error": list(error)}
        for mode in POSITIONS
        for layer, error in enumerate(zip(*errors[mode], strict=True))
    ]
    logits_ = []
    for mode in POSITIONS:
        low, high = wilson(same[mode], len(prompts))
        agree = same[mode] / max(len(prompts), 1)
        logits_.append({"mode": mode, "kl": divergences[mode], "agree": agree, "low": low, "high": high})
    return layers, logits_


def _answer(model: PreTrainedModel, prompt: Prompt, kv: KV, rows: torch.Tensor) -> tuple[KV, torch.Tensor]:
    """The KV after the prefill and the log-probabilities [V] of the first token."""
    output = prefill(model, prompt.tokens, Plan(rows), kv, logits_to_keep=1)
    assert output.logits is not None
    return kv, output.logits[-1].float().log_softmax(-1)


def _errors(kv: KV, truth: KV, begin: int) -> list[float]:
    """Relative L2 distance of the tokens from `begin` on, per layer, keys and values together."""
    errors = []
    for k, v, k0, v0 in zip(kv.keys, kv.values, truth.keys, truth.values, strict=True):
        ours = torch.cat((k[:, begin:], v[:, begin:]), -1).float()
        theirs = torch.cat((k0[:, begin:], v0[:, begin:]), -1).float()
        errors.append(float((ours - theirs).norm() / theirs.norm()))
    return errors
