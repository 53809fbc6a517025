"""Tokens that the question attends to in any layer, fused into one set (ProphetKV, arXiv:2602.02579)."""

from dataclasses import dataclass

from workbench.methods.select import QuestionGuided, layers, softmax


@dataclass(frozen=True)
class ProphetKv(QuestionGuided):
    r"""The question runs over the stale cache once; its attention of all layers is summed, the highest recomputed.

    Stage one and stage two of the paper are the scores here and the forward pass behind them. It differs from
    FusionRAG's rule (`query_guided`) by its layers and by letting blocks compete.

    layers   "all" (the paper), "last", or layer numbers
    softmax  over the "context", system prompt included and question excluded; "prompt" lets the question's own keys
             take part, as QCFuse's code does where it compares itself with ProphetKV; "block", "documents"

    *Follows a description: the paper's abstract, public notes of its formulas, and a public reimplementation that
    checks these sums; no code of its authors was found.*

    With question rows $Q$, heads $h$, layers $l$ and context tokens $C$:

    $$s_t = \sum_l \sum_h \sum_{q \in Q}
    \frac{\exp(q_h^l \cdot k_t^l / \sqrt{d})}{\sum_{u \in C} \exp(q_h^l \cdot k_u^l / \sqrt{d})}$$
    """

    layers: str | tuple[int, ...] = layers("all", "last", "all")
    softmax: str = softmax("context")
