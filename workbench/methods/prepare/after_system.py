"""Encode every passage after the system prompt, without other passages (FusionRAG, equation 5: Full Reuse)."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.methods import registry
from workbench.methods.prepare import KV, Prompt, contexts, preceding_blocks, split_by_prompt
from workbench.store import Store, fetch


@dataclass(frozen=True)
class AfterSystem:
    r"""Each passage is encoded after the first `system` blocks of its prompt, starting at position |S|.

    *Follows the paper.*

    With $\mathrm{KV}(x \mid y)$ the keys and values of block $x$ after $y$, and $S$ the system blocks:

    $$\mathrm{cached}_i = \mathrm{KV}(B_i \mid S)$$
    """

    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        return split_by_prompt(prompts, fetch(model, contexts(prompts), store, preceding_blocks(prompts, self.system)))
