"""Encode every passage between trained soft tokens that mark its boundaries (KV Packet, arXiv:2604.13226)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.methods import registry
from workbench.methods.prepare import KV, Block, Prompt, contexts, split_by_prompt
from workbench.models.weights.soft_tokens import SoftTokens, soft_tokens
from workbench.store import Store, fetch


@dataclass(frozen=True)
class Packet:
    r"""Each passage is encoded independently between a header and a trailer of trained vectors.

    They are read from the model's folder. `workbench tune --header 8 --trailer 8 --mode block --teacher self` writes
    them: it freezes the model and distills these vectors from its own full attention. Links are at the end of a
    passage, and `select="first_k(k=5, last=True)"` recomputes five (KVLink). The first `system` blocks have none.

    *Follows released code: `kv_packet/cache_comb/methods/kv_packet.py` of ChuangtaoChen-TUM/KVPacket: a header and a
    trailer of 8, distilled, keys rotated to their new position, nothing recomputed.* Soft tokens are stored and loaded
    with each passage; full attention reads the prompt without them.

    With $\mathrm{KV}(x \mid y)$ the keys and values of $x$ after $y$, header $h$ and trailer $t$:

    $$\mathrm{cached}_i = \mathrm{KV}(h \, B_i \, t \mid \varnothing)$$
    """

    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        prompts = self.with_soft_tokens(model, prompts)
        return split_by_prompt(prompts, fetch(model, contexts(prompts), store))

    def with_soft_tokens(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return prompts with soft tokens around their passages; passages that have them already stay unchanged."""
        soft = soft_tokens(model)
        if soft is None:
            name = Path(model.config.name_or_path or "").name or "this model"
            raise BadInput(
                f"{name} has no soft tokens: smollm2-reader-packet and "
                "smollm2-reader-links have some, `workbench tune` with --header, --trailer or --links trains others"
            )
        return [
            Prompt(
                (
                    *prompt.context[: self.system],
                    *(_wrapped(soft, block.tokens, block.label) for block in prompt.context[self.system :]),
                    prompt.blocks[-1],
                )
            )
            for prompt in prompts
        ]


@lru_cache(maxsize=2048)
def _wrapped(soft: SoftTokens, tokens: tuple[int, ...], label: str) -> Block:
    """Return a passage between its soft tokens; cached for all requests, since its key is expensive to compute."""
    return Block(soft.wrap_passage(tokens), label)
