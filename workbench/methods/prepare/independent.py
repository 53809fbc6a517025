"""Every block on its own: it sees nothing but itself (Block-Attention, section 2.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.methods.prepare import KV, Prompt, contexts, shaped
from workbench.store import Store, fetch


@dataclass(frozen=True)
class Independent:
    r"""Every block is encoded at position 0 with nothing before it.

    *Follows released code: `block_generate.py` of TemporaryLoRA/Block-Attention.*

    With $\mathrm{KV}(x \mid y)$ the keys and values of block $x$ behind $y$:

    $$\mathrm{cached}_i = \mathrm{KV}(B_i \mid \varnothing)$$
    """

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        return shaped(prompts, fetch(model, contexts(prompts), store))
