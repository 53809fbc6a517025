"""Each chunk recomputes as many tokens as its cache lacks context (Cache-Craft, arXiv:2502.15734, section 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.engine.attention_maps import crossing, layers_of
from workbench.engine.chunk_past import ChunkContext, pasts, prefix_fit
from workbench.engine.full_context import context_pass
from workbench.methods.registry import is_number
from workbench.methods.select import KV, Pass, Select, layers, option_where
from workbench.store import fingerprint


@dataclass(frozen=True)
class CacheCraft(Select):
    r"""Of every chunk, the ⌈CFO · length⌉ tokens that pay most attention to other chunks.

    *Follows the paper; no code of its authors was found.* A reimplementation, `baselines/cachecraft` of
    Kevin-Yang1/OmniKV at 33f0a47, has the same formulas; it takes α = 1, and β' = 1 for a chunk that was cached alone,
    which so recomputes nothing.

    CFO  clip(α · CCI · (1 - β'), 0, 1), the share of a chunk that must be recomputed
    CCI  σ(a / b), how much its KV depends on other chunks: inter-attention over intra-attention, per token pair
    β'   β (1 - γ), how much of its old context is there again: β by attention, γ by order

    alpha   Cache-Craft's α: what share is recomputed at most
    layers  that attention is averaged over: "all" or layer numbers
    before  tells how a chunk was cached (see `pasts`). Without it a chunk was cached alone: β' is 0, and a first chunk
            lacks nothing

    CCI and inter-attention of a chunk are measured once, in the first prompt in which it stands behind others, as the
    paper measures them where a chunk's cache is made; they are kept with this object. That prompt is computed in full
    for it, and is charged so; later ones, of known chunks, compute nothing before their tokens are recomputed.

    Without a ratio these numbers decide; a ratio takes the highest of these tokens.

    $$\mathrm{CFO} = \mathrm{clip}(\alpha \, \sigma(a / b) \, (1 - \beta (1 - \gamma)),\ 0,\ 1)$$
    """

    alpha: float = option_where(0.5, "it is 0 or more", lambda value: is_number(value) and value < inf)
    layers: str | tuple[int, ...] = layers("all", "all", "last")
    before: Callable[[Block], ChunkContext | None] | None = field(default=None, repr=False)

    kept: dict[tuple[str, str], tuple[float, Tensor]] = field(  #: CCI, and inter-attention [n] of every token
        default_factory=dict, init=False, repr=False, compare=False
    )
    measured: set[tuple[str, ...]] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def reads_cache(self) -> bool:
        return False

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        known = fingerprint(model)
        new = [prompt for prompt in prompts if self._lacks(known, prompt)]
        self.measured.difference_update(map(_name, prompts))
        self.measured.update(map(_name, new))
        for prompt, attention in zip(new, crossing(model, new, self.layers), strict=True):
            paid = attention.paid.cpu()
            for i, past in enumerate(pasts(prompt, attention, self.system), self.system):
                inter = paid[prompt.starts[i] : prompt.starts[i + 1], self.system : i].sum(1)
                if i > self.system:
                    self.kept.setdefault((known, prompt.blocks[i].content), (past.cci, inter))
        return [self._scores(known, prompt) for prompt in prompts]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        if self.kept and _name(prompt) not in self.measured and not self._lacks(fingerprint(model), prompt):
            return ()
        return context_pass(model, prompt, layers_of(model, self.layers)[-1] + 1)

    def _lacks(self, known: str, prompt: Prompt) -> bool:
        """Return whether a chunk after the first has not been measured yet."""
        return any((known, block.content) not in self.kept for block in prompt.context[self.system + 1 :])

    def _scores(self, known: str, prompt: Prompt) -> Tensor:
        scores = torch.full((prompt.starts[-1],), -torch.inf)
        chunks = prompt.context[self.system :]
        kept = [self.kept.get((known, chunk.content), (0.5, torch.zeros(len(chunk)))) for chunk in chunks]
        shares = self.shares(prompt, [cci for cci, _ in kept])
        for begin, (_, inter), share in zip(prompt.starts[self.system :], kept, shares, strict=False):
            best = inter.sort(descending=True, stable=True).indices[: ceil(share * len(inter))]
            scores[begin + best] = inter[best]
        return scores

    def shares(self, prompt: Prompt, ccis: Sequence[float]) -> list[float]:
        """Return the CFO of every document block, with the CCI of `ccis` where `before` does not know the block."""
        shares, keys = [], [block.key for block in prompt.context[self.system :]]
        for i, (block, cci) in enumerate(zip(prompt.context[self.system :], ccis, strict=True)):
            then = (self.before(block) if self.before else None) or ChunkContext((), cci)
            shares.append(min(max(self.alpha * then.cci * (1 - prefix_fit(then.prefix, keys[:i])), 0.0), 1.0))
        return shares


def _name(prompt: Prompt) -> tuple[str, ...]:
    return tuple(block.content for block in prompt.context)
