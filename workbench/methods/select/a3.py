"""Select tokens by the question's attention in the first layer, where cached keys are exact (A³, arXiv:2511.17560)."""

from dataclasses import dataclass

from workbench.methods.select import QuestionGuided, layers, softmax


@dataclass(frozen=True)
class A3(QuestionGuided):
    r"""Attention of the question in layer 0, with a softmax over the tokens of all passages; layer 0 is not stale.

    layers   (0,) (the method), "all", "last", or other layer numbers
    softmax  over all "documents" (the method), "block", "context" or "prompt"

    *Follows a reimplementation: `kv_packet/cache_comb/methods/a3.py` of ChuangtaoChen-TUM/KVPacket at a861034; no code
    of A³'s authors was found.* That code computes layer 0 for every token and continues with the highest. Here only the
    question is computed for the scores: keys and values of layer 0 depend only on token and position, so the selected
    tokens have the same hidden states either way.

    With question rows $Q$, heads $h$ and the tokens $D$ of the passages, in layer 0:

    $$s_t = \sum_h \sum_{q \in Q} \frac{\exp(q_h \cdot k_t / \sqrt{d})}{\sum_{u \in D} \exp(q_h \cdot k_u / \sqrt{d})}$$
    """

    layers: str | tuple[int, ...] = layers((0,), "last", "all")
    softmax: str = softmax("documents")
