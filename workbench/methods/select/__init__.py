"""Selectors: which cached tokens to recompute; one per file, listed by `names`.

A selector scores the context tokens of a prompt; `choose` selects rows by the scores. A score of -inf is never chosen;
without a ratio, all other tokens are selected. A selector imports its types from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Pass
from workbench.engine.attention_maps import Layers, from_question, question_pass
from workbench.methods import registry
from workbench.methods.method_fields import check_ratio
from workbench.methods.registry import integer_option, option_where
from workbench.models.spec import spec_for

__all__ = [
    "KV",
    "Pass",
    "Prompt",
    "QuestionGuided",
    "Select",
    "check_budget",
    "choose",
    "from_spec",
    "integer_option",
    "names",
    "option_where",
]
PARTS = ("kv", "k", "v")
OVER = ("block", "documents", "context", "prompt")


def __dir__() -> list[str]:
    return sorted(__all__)


def layers(default: str | tuple[int, ...], *words: str) -> Any:
    """Declare the option `layers`: one of `words`, or layer numbers; negative numbers count from the end."""

    def fits(value: Any) -> bool:
        return value in words or (type(value) is tuple and value != () and {*map(type, value)} == {int})

    return option_where(default, f"it is {', '.join(words)} or layer numbers in brackets, as in (0, -1)", fits)


def softmax(default: str = "block") -> Any:
    """Declare the option `softmax`: "block", "documents", "context" or "prompt"."""
    rule = "within each 'block', over all 'documents', over the 'context' or the whole 'prompt'"
    return option_where(default, rule, OVER.__contains__)


def part() -> Any:
    """Declare the option `part`: "kv" (keys and values), "k" or "v"."""
    return option_where("kv", f"allowed are {', '.join(PARTS)} (keys and values, keys, values)", PARTS.__contains__)


@dataclass(frozen=True, kw_only=True)
class Select:
    """Base class of selectors; `system` is the number of leading blocks whose tokens are selected at score inf only."""

    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def score(self, prompt: Prompt) -> Tensor:
        """Return scores [T] of the context tokens from the prompt only; a selector implements this or `scores`."""
        raise NotImplementedError

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> Sequence[Tensor]:
        """Return scores [T] of the context tokens of each prompt, in any float dtype, on any device.

        The caller masks the system blocks.
        """
        return [self.score(prompt) for prompt in prompts]

    @property
    def reads_cache(self) -> bool:
        """Whether `scores` reads its argument `kvs`."""
        return type(self).scores is not Select.scores

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        """Return the forward passes that scoring adds to a request.

        Called before any work; raises BadInput for a model that cannot run them.
        """
        return ()

    def __call__(self, model: PreTrainedModel, prompt: Prompt, kv: KV) -> Tensor:
        """Score the T context tokens, [T] fp32 on the CPU: the highest are recomputed first, -inf never, inf always.

        `kv` is the assembled cache of this request. Its question rows may be written; its context rows are only read,
        except by `kv_deviation(fresh=True)`.
        """
        return self.score_many(model, [prompt], [kv])[0]

    def score_many(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        """Score a batch of requests, with packed forward passes."""
        spec_for(model, kvs=kvs)
        for prompt, kv in zip(prompts, kvs, strict=True):
            if len(kv) != len(prompt):
                raise BadInput(f"a KV of {len(kv)} tokens for a prompt of {len(prompt)}: assemble it from this prompt")
        if not prompts:
            return []
        return [
            without_system(scores.float().cpu(), prompt, self.system)
            for scores, prompt in zip(self.scores(model, prompts, kvs), prompts, strict=True)
        ]

    def rows(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Prompt],
        kvs: Sequence[KV],
        ratio: float | None = None,
        tokens: int | None = None,
    ) -> list[Tensor]:
        """Select the context rows to recompute of every request, as `choose` does, without the question."""
        check_budget(ratio, tokens)
        scores = self.score_many(model, prompts, kvs)
        return [choose(score, p, ratio, tokens, self.system) for score, p in zip(scores, prompts, strict=True)]


class QuestionGuided(Select):
    """Scores tokens by the question's attention to them, from a prefill of the question over the assembled cache.

    A subclass sets the `layers`, the number of `last` question tokens (None: all), and the range of the `softmax`.
    """

    @property
    def last(self) -> int | None:
        """Number of tokens at the end of the question that count; None: all."""
        return None

    @property
    def layers(self) -> Layers:
        """Layers: "all", "last" or layer numbers."""
        raise NotImplementedError

    @property
    def softmax(self) -> str:
        """Range of the softmax: "block", "documents", "context" or "prompt"."""
        raise NotImplementedError

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        return from_question(model, prompts, kvs, self.layers, self.last, self.softmax, self.system)

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return (question_pass(model, prompt, self.layers),)


def names() -> list[str]:
    """Return the names of all selectors."""
    return registry.names(__name__)


def from_spec(spec: str) -> Select:
    """Return a selector from `query_guided` or `query_guided(layers=all)`."""
    return registry.make_policy(__name__, spec)


def documents(prompt: Prompt, system: int = 1) -> Tensor:
    """Return the positions [N] of the document tokens: the context without its first `system` blocks."""
    return torch.arange(prompt.starts[min(system, len(prompt.context))], prompt.starts[-1])


def check_budget(ratio: float | None, tokens: int | None = None) -> None:
    """Raise BadInput for a ratio outside [0, 1], a negative number of tokens, and both at once."""
    if ratio is not None and tokens is not None:
        raise BadInput(f"ratio {ratio} and tokens {tokens} are both given: one of them sets the budget")
    check_ratio(ratio)
    if tokens is not None and tokens < 0:
        raise BadInput(f"tokens {tokens}: it is a number of document tokens, 0 or more")


def budget(prompt: Prompt, ratio: float, system: int = 1) -> int:
    """Return `ratio` of the number of document tokens, rounded (FusionRAG, section 3.2: without the question)."""
    check_budget(ratio)
    return round(ratio * len(documents(prompt, system)))


def choose(
    scores: Tensor, prompt: Prompt, ratio: float | None = None, tokens: int | None = None, system: int = 1
) -> Tensor:
    """Choose rows [R] to recompute, in ascending order, from scores [T] of the context tokens.

    The budget is `ratio` of the document tokens or `tokens` of them, and is met exactly unless fewer tokens have a
    score above -inf; without either, all of those are selected. Ties are broken by position. Tokens with score inf are
    selected in any case and do not count.
    """
    check_budget(ratio, tokens)
    if scores.shape != (prompt.starts[-1],):
        raise BadInput(
            f"scores of {tuple(scores.shape)} for a context of {prompt.starts[-1]} tokens: one each is needed"
        )
    known = scores.detach().double().cpu().numpy()  # exact for every float dtype
    if (bad := int(np.isnan(known).sum())) > 0:
        raise BadInput(
            f"{bad} scores are nan: the selector returns them, or the keys and values of this prompt are damaged"
        )
    always = known == np.inf
    scored = np.where(always, -np.inf, known)
    most = int((scored > -np.inf).sum())
    limit = tokens if ratio is None else budget(prompt, ratio, system)
    count = most if limit is None else min(limit, most)
    if count:  # a partition is enough: the order is irrelevant
        least = np.partition(scored, len(scored) - count)[len(scored) - count]
        above = scored > least
        always |= above
        always[np.flatnonzero(scored == least)[: count - int(above.sum())]] = True
    return torch.from_numpy(np.flatnonzero(always))


def without_system(scores: Tensor, prompt: Prompt, system: int) -> Tensor:
    """Return scores with -inf for system blocks, except where they are inf."""
    head, documents = scores.tensor_split([prompt.starts[min(system, len(prompt.context))]])
    return torch.cat((head.masked_fill(head != torch.inf, -torch.inf), documents))
