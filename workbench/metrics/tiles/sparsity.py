"""What a sparse method keeps and loses on prompts: by layer and head, and in the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import kl_div
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.engine.attention_maps import whole_layers
from workbench.engine.chunked import check_chunk, prefill_chunked
from workbench.engine.forward import PrefillOutput, all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.metrics.answers import wilson
from workbench.metrics.tiles.sparsity_counts import Counts, Head, of_layer

Methods = Mapping[str, Sparse]  # by name
MEASURES = ("density", "union", "tiles", "mass", "recall", "error")  # of a `Head`, means over heads


@dataclass(frozen=True)
class Sparsity:
    """What a method does to the next tokens of prompts.

    For each prompt, how the tokens at the question's rows differ from those under dense attention.
    """

    heads: tuple[Head, ...]
    kl: tuple[float, ...]  # divergence in nats, mean over the question's rows
    agree: tuple[float, ...]  # share of the question's rows with the same next token
    answer: tuple[bool, ...]  # the first token of the answer is the same
    seconds: tuple[float, ...]  # to choose, in all layers

    def mean(self, measure: str) -> float:
        """Return the mean over layers and heads of "density", "union", "tiles", "mass", "recall" or "error"."""
        return sum(getattr(head, measure) for head in self.heads) / max(1, len(self.heads))

    def record(self) -> dict[str, Any]:
        """Return the means over heads and prompts, with Wilson's 95% interval of the answers' agreement.

        "heads" has a record for every layer and head.
        """
        count = max(1, len(self.kl))
        low, high = wilson(sum(self.answer), len(self.answer))
        values = {name: self.mean(name) for name in MEASURES}
        values |= {"lowest": min((head.lowest for head in self.heads), default=1.0), "kl": sum(self.kl) / count}
        values |= {"agree": sum(self.agree) / count, "answer": sum(self.answer) / count, "low": low, "high": high}
        return values | {"seconds": sum(self.seconds) / count, "prompts": len(self.kl), "heads": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """Return a record for every layer and head."""
        return [asdict(head) for head in self.heads]


def measure(model: PreTrainedModel, prompts: Sequence[Prompt], method: Sparse, chunk: int | None = None) -> Sparsity:
    """Measure the method, `ready` for the model, on prompts prefilled at once or in chunks.

    Layers whose sliding window is narrower than a prompt are left out: they are not made sparse.
    """
    counts: dict[int, Counts] = {}
    gaps: list[tuple[float, float, bool]] = []
    seconds: list[float] = []
    for prompt in prompts:
        request = all_rows(model, prompt.tokens, sparse=method)
        step = len(prompt) + method.size if chunk is None else chunk  # one chunk for all
        check_chunk(request.plan, step)
        full = all_rows(model, prompt.tokens, return_queries=tuple(range(len(request.kv.keys))))
        (dense,) = prefill_many(model, [full])
        of_prompt = by_layer(model, dense, full.kv, method, chunk)
        counts |= {layer: counts[layer] + count if layer in counts else count for layer, count in of_prompt.items()}
        seconds.append(sum(count.seconds for count in of_prompt.values()))
        ours = prefill_chunked(model, request, step, len(prompt.question))
        gaps.append(compared(ours, dense, len(prompt.question)))
    heads = tuple(head for layer, count in sorted(counts.items()) for head in count.heads(layer))
    kl, agree, answer = zip(*gaps, strict=True) if gaps else ((), (), ())
    return Sparsity(heads, kl, agree, answer, tuple(seconds))


def by_layer(
    model: PreTrainedModel, dense: PrefillOutput, kv: KV, method: Sparse, chunk: int | None = None
) -> dict[int, Counts]:
    """Count what a method keeps, by layer of full attention, on the queries and `kv` of a dense prefill."""
    layers = whole_layers(model, len(kv))
    return {layer: of_layer(scaled(model, layer, dense), kv, layer, method, chunk) for layer in layers}


def compared(ours: PrefillOutput, dense: PrefillOutput, rows: int) -> tuple[float, float, bool]:
    """Compare the last `rows`: mean KL(dense ‖ ours) in nats, share of equal next tokens, whether the last is equal."""
    assert ours.logits is not None and dense.logits is not None
    a, b = (logits[-rows:].float().log_softmax(-1) for logits in (ours.logits, dense.logits))
    same = a.argmax(-1) == b.argmax(-1)
    gap = kl_div(a, b, reduction="none", log_target=True).sum(-1)
    return max(0.0, float(gap.mean())), float(same.float().mean()), bool(same[-1])


def scaled(model: PreTrainedModel, layer: int, step: PrefillOutput) -> Tensor:
    """Return the returned queries [Hq, R, D], scaled.

    Logits are queries · keys / sqrt(D) then, whatever the model's own scale.
    """
    queries = step.queries[layer]
    own = getattr(model.get_decoder().layers[layer].self_attn, "scaling", None)
    return queries if own is None else queries * (own * queries.shape[-1] ** 0.5)
