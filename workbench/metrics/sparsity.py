"""What a sparse choice keeps and loses: by layer and head on the states of dense attention, and in the answer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.plan import Plan
from workbench.engine.chunked import check_chunk, prefill_chunked
from workbench.engine.forward import PrefillOutput, PrefillRequest, empty, prefill
from workbench.engine.support import attach
from workbench.methods.sparse import Sparse
from workbench.metrics.answers import wilson
from workbench.metrics.counts import Counts, Head, of_layer


@dataclass(frozen=True)
class Sparsity:
    """A method on a set of prompts. Per prompt: divergence in nats and agreement, over the question's tokens, of what
    follows under the method from what follows under dense attention."""

    heads: tuple[Head, ...]
    kl: tuple[float, ...]  # mean over the question's rows
    agree: tuple[float, ...]  # share of the question's rows with the same next token
    answer: tuple[bool, ...]  # the first token of the answer is the same
    seconds: tuple[float, ...]  # to choose, in all layers

    def mean(self, what: str) -> float:
        """Mean over layers and heads of "density", "union", "tiles", "mass", "recall" or "error"."""
        return sum(getattr(head, what) for head in self.heads) / max(1, len(self.heads))

    def record(self) -> dict[str, Any]:
        """Means over heads and prompts, with Wilson's 95% interval of the answers' agreement."""
        count = max(1, len(self.kl))
        low, high = wilson(sum(self.answer), len(self.answer))
        found = {name: self.mean(name) for name in ("density", "union", "tiles", "mass", "recall", "error")}
        found |= {"lowest": min((head.lowest for head in self.heads), default=1.0), "kl": sum(self.kl) / count}
        found |= {"agree": sum(self.agree) / count, "answer": sum(self.answer) / count, "low": low, "high": high}
        return found | {"seconds": sum(self.seconds) / count, "prompts": len(self.kl)}

    def rows(self) -> list[dict[str, Any]]:
        """A record for every layer and head."""
        return [asdict(head) for head in self.heads]


def measure(model: PreTrainedModel, prompts: Sequence[Prompt], method: Sparse, chunk: int | None = None) -> Sparsity:
    """The method, `ready` for the model, on prompts prefilled at once or in chunks.

    Layers whose sliding window is narrower than a prompt are left out: they are not made sparse.
    """
    counts: dict[int, Counts] = {}
    gaps: list[tuple[float, float, bool]] = []
    seconds: list[float] = []
    for prompt in prompts:
        plan = Plan(torch.arange(len(prompt)), sparse=method)
        step = len(prompt) + method.size if chunk is None else chunk  # one chunk for all
        check_chunk(plan, step)
        kv = empty(model, len(prompt))
        dense = prefill(model, prompt.tokens, Plan(plan.rows, return_queries=tuple(range(len(kv.keys)))), kv)
        seconds.append(0.0)
        for layer, size in enumerate(attach(model).windows):
            if not size or size >= len(prompt):
                (found,) = of_layer(scaled(model, layer, dense), kv, layer, [method], chunk)
                counts[layer] = counts[layer] + found if layer in counts else found
                seconds[-1] += found.seconds
        request = PrefillRequest(prompt.tokens, plan, empty(model, len(prompt)))
        ours = prefill_chunked(model, request, step, len(prompt.question))
        gaps.append(compared(ours, dense, len(prompt.question)))
    heads = tuple(head for layer, count in sorted(counts.items()) for head in count.heads(layer))
    kl, agree, answer = (tuple(gap[i] for gap in gaps) for i in range(3))
    return Sparsity(heads, kl, agree, answer, tuple(seconds))  # type: ignore[arg-type]


def compared(ours: PrefillOutput, dense: PrefillOutput, rows: int) -> tuple[float, float, bool]:
    """Of the last `rows`: mean KL(dense ‖ ours) in nats, share of equal next tokens; is the last one equal?"""
    assert ours.logits is not None and dense.logits is not None
    a, b = (step.logits[-rows:].float().log_softmax(-1) for step in (ours, dense))  # type: ignore[index]
    same = a.argmax(-1) == b.argmax(-1)
    gap = kl_div(a, b, reduction="none", log_target=True).sum(-1)
    return max(0.0, float(gap.mean())), float(same.float().mean()), bool(same[-1])


def scaled(model: PreTrainedModel, layer: int, step: PrefillOutput) -> Tensor:
    """Watched queries [Hq, R, D], so that logits are queries · keys / sqrt(D) whatever the model's own scale."""
    queries = step.queries[layer]
    own = getattr(model.get_decoder().layers[layer].self_attn, "scaling", None)
    return queries if own is None else queries * (own * queries.shape[-1] ** 0.5)


def operations(
    method: Sparse, heads: int, rows: int, length: int, width: int, density: float
) -> tuple[float, float, float]:
    """Multiply-adds of one layer, `rows` that end a prompt of `length` keys: to choose, to attend to the share
    `density` of the causal pairs (scores and values), and to attend to all of them. Sparse pays where the first two
    together are below the third."""
    pairs = heads * rows * (2 * length - rows + 1) / 2
    return float(method.operations(heads, rows, length, width)), 2 * width * pairs * density, 2 * width * pairs
