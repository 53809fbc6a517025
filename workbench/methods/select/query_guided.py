"""Select tokens by the question's attention to them (FusionRAG, section 3.2)."""

from dataclasses import dataclass

from workbench.methods.select import QuestionGuided, layers, option_where, softmax


@dataclass(frozen=True)
class QueryGuided(QuestionGuided):
    r"""Prefill the question over the assembled cache; a token's score is the attention it gets from the question.

    *Follows the paper, whose "attention weights [...] for each chunk" are read as a softmax within it; other options
    are ours.* The paper names no code. Public code of its name, `modeling_qwen3.py` and `utils_v2.py` in
    `ktransformers/` of qiyuxinlin/FusionRAG at 41864e8 and 06c9636, uses the same softmax, layer and sums. It scores
    keys at the positions where they were cached, as if each passage came first, and omits the part of the last block
    before the question. Here keys are at their new positions, and the whole last block is the query.

    layers   "last" (the paper; with sliding windows, the last layer without one), "all", or layer numbers
    tokens   of the question: "all" (the paper), or "last", the one that gives the first token of the answer
    softmax  within each "block", so that blocks do not compete (the paper), over all "documents", over the "context",
             system prompt included, or over the whole "prompt", as in the model

    Scores are summed over question tokens, heads and layers.

    With question rows $Q$, heads $h$ and layers $L$, and $B(t)$ the block of token $t$:

    $$s_t = \sum_{l \in L} \sum_h \sum_{q \in Q}
    \frac{\exp(q_h^l \cdot k_t^l / \sqrt{d})}{\sum_{u \in B(t)} \exp(q_h^l \cdot k_u^l / \sqrt{d})}$$
    """

    layers: str | tuple[int, ...] = layers("last", "last", "all")
    tokens: str = option_where("all", "'all' or 'last' of the question", ("all", "last").__contains__)
    softmax: str = softmax()

    @property
    def last(self) -> int | None:
        """Number of tokens at the end of the question that count; None: all."""
        return 1 if self.tokens == "last" else None
