"""Select tokens by the attention of the prompt's last token, which gives the first token of the answer."""

from dataclasses import dataclass

from workbench.methods.select import QuestionGuided, integer_option, layers, softmax


@dataclass(frozen=True)
class AnswerGuided(QuestionGuided):
    r"""Attention of the prompt's last `window` tokens, over all layers, from one pass of the question.

    FusionRAG (section 3.2) sums over all question tokens in the last layer. The hypothesis here: many question tokens
    retrieve nothing, retrieval need not happen in the last layer, and the prompt's last token has attended to the whole
    question and predicts the answer. KV cache compression also scores by the end of the prompt (SnapKV,
    arXiv:2404.14469). `workbench claims --paper ours` compares it with FusionRAG's selection.

    With $W$ the last `window` tokens, heads $h$, all layers $l$, and $B(t)$ the block of token $t$:

    $$s_t = \sum_l \sum_h \sum_{q \in W}
    \frac{\exp(q_h^l \cdot k_t^l / \sqrt{d})}{\sum_{u \in B(t)} \exp(q_h^l \cdot k_u^l / \sqrt{d})}$$
    """

    window: int = integer_option(1, "how many tokens at the question's end, 1 or more", least=1)
    layers: str | tuple[int, ...] = layers("all", "last", "all")
    softmax: str = softmax()

    @property
    def last(self) -> int:
        """Number of tokens at the end of the question that count."""
        return self.window
