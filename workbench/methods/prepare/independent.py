"""Encode every block independently: it attends only to itself (Block-Attention, section 2.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.methods.prepare import KV, Prompt, contexts, split_by_prompt
from workbench.store import Store, fetch


@dataclass(frozen=True)
class Independent:
    r"""Each block is encoded from position 0, without a prefix.

    *Follows released code: `block_generate.py` of TemporaryLoRA/Block-Attention.*

    With $\mathrm{KV}(x \mid y)$ the keys and values of block $x$ after $y$:

    $$\mathrm{cached}_i = \mathrm{KV}(B_i \mid \varnothing)$$
    """

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        return split_by_prompt(prompts, fetch(model, contexts(prompts), store))
