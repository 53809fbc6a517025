"""Select tokens by the question's attention, summed over all layers (ProphetKV, arXiv:2602.02579)."""

from dataclasses import dataclass

from workbench.methods.select import QuestionGuided, layers, softmax


@dataclass(frozen=True)
class ProphetKv(QuestionGuided):
    r"""Run the question over the stale cache once, and sum its attention over all layers.

    Stage one of the paper is the scoring here, stage two the recomputation. The rule differs from FusionRAG's
    (`query_guided`) in its layers, and in that blocks compete for the budget.

    layers   "all" (the paper), "last", or layer numbers
    softmax  over the "context", system prompt included and question excluded; "prompt" includes the question's own
             keys, as QCFuse's code does in its comparison with ProphetKV; "block", "documents"

    *Follows a description: the paper's abstract, public notes of its formulas, and a public reimplementation that
    checks these sums; no code of its authors was found.*

    With question rows $Q$, heads $h$, layers $l$ and context tokens $C$:

    $$s_t = \sum_l \sum_h \sum_{q \in Q}
    \frac{\exp(q_h^l \cdot k_t^l / \sqrt{d})}{\sum_{u \in C} \exp(q_h^l \cdot k_u^l / \sqrt{d})}$$
    """

    layers: str | tuple[int, ...] = layers("all", "last", "all")
    softmax: str = softmax("context")
