"""Attention weights by token and by block, per layer and head, from the queries and keys of a prefill."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.masks import Sees, causal
from workbench.core.plan import Plan
from workbench.data.prompt_view import PromptView
from workbench.engine import attention_maps
from workbench.engine.assembly import Positions, assemble, empty
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.methods.generation import generate
from workbench.methods.modes.full import Full
from workbench.metrics.answers import Records, exact_match
from workbench.models.loading import Loaded


@dataclass(frozen=True)
class AttentionMass:
    """Attention weights of one prompt, computed by one method, with its `kv`."""

    tokens: Tensor  #: [L, Hq, T] fp32, of the last token (which predicts the answer); sums to 1
    blocks: Tensor  #: [L, Hq, B, B] fp32, mean over the computed tokens of a block; rows of cached blocks are 0
    logits: Tensor  #: [V] fp32, of the last token
    kv: KV


def busiest(tokens: Tensor, mask: Tensor) -> tuple[int, int]:
    """Return the (layer, head) with the most attention (`AttentionMass.tokens`) at the positions `mask` [T] bool."""
    return peak(tokens[:, :, mask].sum(-1))


def peak(scores: Tensor) -> tuple[int, int]:
    """Return (layer, head) of the largest of `scores` [L, Hq]."""
    return divmod(int(scores.argmax()), scores.shape[1])


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return [L, Hq]: 1 minus the total variation distance of attention `a` and `b` [L, Hq, T]; 1 if they are equal."""
    return torch.minimum(a, b).sum(-1)


def measure_masked(model: PreTrainedModel, prompt: Prompt, sees: Sees = causal) -> AttentionMass:
    """Compute the whole prompt under the mask rule `sees`, and measure its attention."""
    return _measure(model, prompt, torch.arange(len(prompt)), empty(model, len(prompt)), sees)


def reused(model: PreTrainedModel, prompt: Prompt, positions: Positions) -> AttentionMass:
    """Compute the question over separately encoded passages, and measure its attention."""
    kv = assemble(model, prompt, encode_many(model, prompt.context), positions)
    return _measure(model, prompt, prompt.question, kv, causal)


def _measure(model: PreTrainedModel, prompt: Prompt, rows: Tensor, kv: KV, sees: Sees) -> AttentionMass:
    layers = range(len(kv.keys))
    output = prefill(model, prompt.tokens, Plan(rows, sees=sees, return_queries=tuple(layers)), kv, logits_to_keep=1)
    assert output.logits is not None
    block_of = prompt.block_of.to(model.device)
    block_of_row = block_of[rows.to(model.device)]
    count = len(prompt.blocks)
    sizes = torch.bincount(block_of_row, minlength=count).clamp(min=1)
    tokens, blocks = [], []
    for share in softmax(model, output.queries, kv, rows, sees):  # [Hq, R, T] of one layer
        to_blocks = share.new_zeros(*share.shape[:2], count).index_add_(2, block_of, share)
        between = share.new_zeros(share.shape[0], count, count).index_add_(1, block_of_row, to_blocks)
        tokens.append(share[:, -1].cpu())
        blocks.append((between / sizes[:, None]).cpu())
    return AttentionMass(torch.stack(tokens), torch.stack(blocks), output.logits[-1].float().cpu(), kv)


def softmax(model: PreTrainedModel, queries: dict[int, Tensor], kv: KV, rows: Tensor, sees: Sees) -> Iterator[Tensor]:
    """Yield the attention weights [Hq, R, T] (fp32) of each layer, in order; 0 for queries with no visible key."""
    for layer, keys in enumerate(kv.keys):
        by_rows = attention_maps.logits(model, layer, queries[layer], keys, rows, sees)
        yield torch.cat([attention_maps.softmax(logits) for _, logits in by_rows], 1)


def positions_of(prompt: Prompt, blocks: Collection[int] = ()) -> Tensor:
    """Return bool [T]: the positions of `blocks`, by default of all passages (without first block and question)."""
    return torch.isin(prompt.block_of, torch.tensor(list(blocks) or range(1, len(prompt.blocks) - 1)))


def to_other_blocks(mass: AttentionMass) -> float:
    """Return the share of the passages' attention that goes to other blocks, mean over passages, layers and heads."""
    passages = range(1, mass.blocks.shape[-1] - 1)
    own = sum(mass.blocks[:, :, b, b].mean().item() for b in passages)
    return 1 - own / max(1, len(passages))


def answers_under(
    loaded: Loaded,
    view: PromptView,
    rules: Mapping[str, Sees],
    masses: Mapping[str, AttentionMass],
    max_new_tokens: int,
) -> Records:
    """Answer one prompt under each mask rule: records {mask, answer, right (None if no answer is known), kl}.

    `masses` holds `measure_masked` of every rule; kl (nats) is the divergence of its first token from that of the
    first rule.
    """
    model, tokenizer, layout = loaded
    reference = next(iter(masses.values())).logits.log_softmax(-1)
    records = []
    for name, rule in rules.items():

        def rule_of(_: Prompt, rule: Sees = rule) -> Sees:
            return rule

        method = Full(rule_of)
        (output,) = generate(model, tokenizer, [view.prompt], method, max_new_tokens=max_new_tokens, stop=layout.stop)
        answer, logits = output.text.strip(), masses[name].logits.log_softmax(-1)
        right = bool(exact_match(answer, view.answers)) if view.answers else None
        kl = max(0.0, float((reference.exp() * (reference - logits)).sum()))
        records.append({"mask": name, "answer": answer, "right": right, "kl": kl})
    return records


def most_changed(masses: Mapping[str, AttentionMass], mask: Tensor) -> tuple[int, int]:
    """Return the (layer, head) that attends to `mask` [T] bool and is alike in "full" and "block", unlike "naive"."""
    full, block, naive = (masses[name].tokens for name in ("full", "block", "naive"))
    return peak(full[:, :, mask].sum(-1) * overlap(full, block) * (1 - overlap(full, naive)))
