"""Every passage behind a few dummy tokens, whose keys and values are dropped (EPIC's LegoLink-0, arXiv:2410.15332)."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.methods import registry
from workbench.methods.prepare import KV, Block, Prompt, contexts, shaped
from workbench.store import Store, fetch


@dataclass(frozen=True)
class Link0:
    r"""Dummies are to take the attention that the first tokens of a text draw, in place of each passage's own.

    dummies  how many
    token    id of the dummy; None: the one with which the model's texts begin

    The first `system` blocks are cached as they are. The keys of a passage are rotated to its place in the prompt, as
    by any preparation; nothing has to be recomputed.

    *Follows released code: `benchmarks_ours/evals/zero-linking-overhead/main.py` of DerekHJH/epic at 3204410: three
    tokens that begin a text, and the one that its tokenizer puts there.*

    With $\mathrm{KV}(x \mid y)$ the keys and values of block $x$ behind $y$, and $d$ the dummy:

    $$\mathrm{cached}_i = \mathrm{KV}(B_i \mid d, d, d, d)$$
    """

    dummies: int = registry.whole(4, "how many dummy tokens a passage is encoded behind, 1 or more", least=1)
    token: int | None = registry.whole(None, "it is a token id, 0 or more")
    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        ahead = (Block((self.check(model),) * self.dummies, "dummies"),)
        after = [() if i < self.system else ahead for prompt in prompts for i in range(len(prompt.context))]
        return shaped(prompts, fetch(model, contexts(prompts), store, after))

    def check(self, model: PreTrainedModel) -> int:
        """Return the id of the dummy token. Raises BadInput for a model without a BOS token if none is given."""
        token = model.config.get_text_config(decoder=True).bos_token_id if self.token is None else self.token
        if token is None:
            raise BadInput("token is None: this model's texts begin with no token of their own, so name a dummy's id")
        return int(token)
