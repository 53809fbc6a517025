"""How far the question drifts from full attention over reused blocks, with re-encoded and with naive positions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.engine.assembly import Positions, assemble
from workbench.engine.encoding import encode_many
from workbench.engine.forward import PrefillRequest, all_rows, prefill_many
from workbench.metrics.answers import wilson

# mode that `drift` reports → positions of reused keys
POSITIONS: Mapping[str, Positions] = {"block": "re-encoded", "naive": "naive"}


def drift(model: PreTrainedModel, prompts: Sequence[Prompt]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Compare the question after reuse ("block", "naive") with the question under full attention.

    Returns records {mode, layer, error}, relative L2 over the question's keys and values, one number a prompt; and
    records {mode, kl, agree, low, high} of the first token: divergence in nats, one number a prompt, and the share of
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
    """Return the relative L2 distance of the tokens from `begin` on, per layer, keys and values together."""
    errors = []
    for k, v, k0, v0 in zip(kv.keys, kv.values, exact.keys, exact.values, strict=True):
        ours = torch.cat((k[:, begin:], v[:, begin:]), -1).float()
        theirs = torch.cat((k0[:, begin:], v0[:, begin:]), -1).float()
        errors.append(float((ours - theirs).norm() / theirs.norm()))
    return errors
