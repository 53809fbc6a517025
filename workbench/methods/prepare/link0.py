"""Encode every passage after a few dummy tokens, whose KV is dropped (EPIC's LegoLink-0, arXiv:2410.15332)."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.methods import registry
from workbench.methods.prepare import KV, Block, Prompt, contexts, split_by_prompt
from workbench.store import Store, fetch


@dataclass(frozen=True)
class Link0:
    r"""Dummy tokens become the attention sink, instead of the first tokens of each passage.

    dummies  number of dummy tokens
    token    id of the dummy token; None: the model's BOS token

    The first `system` blocks are cached unchanged. The keys of a passage are rotated to its position in the prompt, as
    for any preprocessing; recomputation is not needed.

    *Follows released code: `benchmarks_ours/evals/zero-linking-overhead/main.py` of DerekHJH/epic at 3204410: three BOS
    tokens, and the one that its tokenizer adds.*

    With $\mathrm{KV}(x \mid y)$ the keys and values of block $x$ after $y$, and $d$ the dummy:

    $$\mathrm{cached}_i = \mathrm{KV}(B_i \mid d, d, d, d)$$
    """

    dummies: int = registry.integer_option(4, "how many dummy tokens a passage is encoded behind, 1 or more", least=1)
    token: int | None = registry.integer_option(None, "it is a token id, 0 or more")
    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        ahead = (Block((self.check(model),) * self.dummies, "dummies"),)
        after = [() if i < self.system else ahead for prompt in prompts for i in range(len(prompt.context))]
        return split_by_prompt(prompts, fetch(model, contexts(prompts), store, after))

    def check(self, model: PreTrainedModel) -> int:
        """Return the id of the dummy token. Raises BadInput if none is given and the model has no BOS token."""
        token = model.config.get_text_config(decoder=True).bos_token_id if self.token is None else self.token
        if token is None:
            raise BadInput("token is None: this model's texts begin with no token of their own, so name a dummy's id")
        return int(token)
