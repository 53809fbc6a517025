"""Tokens that the answer is about to be read from: question-guided, asked of the token that gives the answer."""

from dataclasses import dataclass

from workbench.methods.select import QuestionGuided, layers, softmax, whole


@dataclass(frozen=True)
class AnswerGuided(QuestionGuided):
    r"""Attention of the prompt's last `window` tokens, over all layers; one pass of the question.

    FusionRAG (section 3.2) sums over all question tokens at the last layer. The idea here: many question tokens look
    nothing up, the last layer need not be where the model looks things up, and the prompt's last token has read the
    question and is about to give the answer. Cache compression asks the end of the prompt, too (SnapKV,
    arXiv:2404.14469). `workbench claims --paper ours` compares it with FusionRAG's choice.

    With $W$ the last `window` tokens, heads $h$, all layers $l$, and $B(t)$ the block of token $t$:

    $$s_t = \sum_l \sum_h \sum_{q \in W}
    \frac{\exp(q_h^l \cdot k_t^l / \sqrt{d})}{\sum_{u \in B(t)} \exp(q_h^l \cdot k_u^l / \sqrt{d})}$$
    """

    window: int = whole(1, "how many tokens at the question's end, 1 or more", least=1)
    layers: str | tuple[int, ...] = layers("all", "last", "all")
    softmax: str = softmax()

    @property
    def last(self) -> int:
        """How many tokens at the question's end are asked."""
        return self.window
