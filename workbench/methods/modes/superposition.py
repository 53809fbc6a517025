"""Superposition prompting: every document is read with the question on its own path; the likeliest are joined.

Merth et al., arXiv:2404.06910 (ICML 2024); a baseline of Block-Attention's table 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.core.rope import rotate_layers
from workbench.engine.attention_backends import choice
from workbench.engine.forward import PrefillRequest, all_rows, prefill_many
from workbench.engine.side_by_side import Parts, prefill_parts
from workbench.methods import ReadyRequest
from workbench.methods.registry import check_options, whole
from workbench.models.spec import ModelSpec, attach
from workbench.store import UNLIMITED, MemoryStore, Store, fetch, fingerprint

PATHS = 4  # paths whose logits are in memory in fp32 at a time


class Placed(NamedTuple):
    """Cached tokens, the position that the first one shall get, and the step between tokens; both may be fractional."""

    kv: KV
    first: float
    step: float = 1.0


@dataclass(frozen=True)
class Superposition:
    r"""Paths system → document → question run side by side; the `paths` likeliest of them are joined for the answer.

    *Follows the paper, but for what is said below.* Its released code, `transformers.patch` of
    apple/ml-superposition-prompting at 69c1203, takes P(q | d) per token as well, so that P(d) weighs more, and weakens
    what the answer sees of the joined paths by their probabilities.

    A path's question sees the system block and its own document only. Paths are ranked by the posterior of their
    document, P(d | q) ∝ P(q | d) P(d), probabilities of the model after the system block. P(d) is taken per token, so
    that a long document is not put behind for its length, and kept with this object: whoever reads a document first is
    charged for it. `prior=False` leaves it out and saves reading the documents.

    Positions are at equilibrium: every document spans the harmonic mean of all lengths, so all paths end at the same
    position. A document is encoded at its own length and its keys are stretched afterwards, which keeps it cacheable
    (the paper encodes it stretched). The last token of the question is held back to join the paths: it sees the system
    block, the kept documents and their questions, and gives the first token.

    $$P(d \mid q) \propto P(q \mid d)\, P(d)$$
    """

    paths: int = whole(4, "at least 1 path is kept", least=1)
    prior: bool = True
    priors: dict[tuple[str, str, str], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self)

    def check(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> None:
        """Raise BadInput for prompts without a document, or with a question of one token."""
        for prompt in prompts:
            if len(prompt.context) < 2 or len(prompt.blocks[-1]) < 2:
                raise BadInput("superposition needs a system block, a document and a question of at least two tokens")

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        self.check(model, prompts)
        kept = MemoryStore(UNLIMITED) if store is None else store
        return [self._begin(model, prompt, kept, reserve) for prompt in prompts]

    def _begin(self, model: PreTrainedModel, prompt: Prompt, store: Store, reserve: int) -> ReadyRequest:
        spec = attach(model)
        system, *documents = prompt.context
        asked, last = Block(prompt.blocks[-1].tokens[:-1]), prompt.blocks[-1].tokens[-1]
        spec.check_tokens(Prompt((system, max(documents, key=len), asked)).tokens)
        first, *cached = fetch(model, prompt.context, store, [(), *[(system,)] * len(documents)])
        start, span = len(system), len(documents) / sum(1 / len(document) for document in documents)  # harmonic mean
        steps = [span / len(document) for document in documents]
        late = [len(document) - span for document in documents]  # distance of a question from its place
        paths = _place(
            spec,
            [
                [Placed(first, more), Placed(kv, start + more, step)]
                for kv, step, more in zip(cached, steps, late, strict=True)
            ],
            len(asked),
        )
        known = fingerprint(model)
        keys = [(known, system.content, document.content) for document in documents]
        read = [d for d, key in zip(documents, keys, strict=True) if self.prior and key not in self.priors]
        question = torch.tensor(asked.tokens)
        best = self._best(model, system, keys, read, question, prefill_parts(model, question, paths))
        length = start + sum(len(documents[i]) + len(asked) for i in best) + 1
        more = length - 1 - (start + span + len(asked))
        parts = [Placed(first, more), *(Placed(cached[i], start + more, steps[i]) for i in best)]
        ends = [(paths.kv(i), len(documents[i]) + start) for i in best]
        parts += [Placed(kv.slice(end, len(kv)), start + span + more) for kv, end in ends]
        kv = _place(spec, [parts], 1 + reserve).kv(0, reserve)
        kept = chain.from_iterable(documents[i].tokens for i in best)
        tokens = torch.tensor([*system.tokens, *kept, *asked.tokens * len(best), last])
        spec.check_tokens(tokens)
        request = PrefillRequest(tokens, Plan(torch.tensor([length - 1])), kv)
        passes = [Pass(range(n - len(asked), n), n, forward=1) for n in paths.lengths]
        passes += [Pass(range(start + len(d)), start + len(d)) for d in read]
        computed = len(asked) * len(documents) + 1 + sum(map(len, read))
        reused = start + sum(map(len, documents)) - sum(map(len, read))
        return ReadyRequest(request, (*passes, Pass([length - 1], length, forward=2)), computed, reused)

    def _best(
        self,
        model: PreTrainedModel,
        system: Block,
        keys: Sequence[tuple[str, str, str]],
        read: Sequence[Block],
        question: torch.Tensor,
        logits: torch.Tensor,
    ) -> list[int]:
        """Return the paths to keep, in reading order, by the likelihood of the question (`logits` [B, R, V]).

        `keys` are the keys of all documents in `priors`; those of `read` are computed here.
        """
        asked = question.to(logits.device)
        scores = torch.cat([_likelihood(some, asked) for some in logits.split(PATHS)]).cpu()  # waits for the GPU once
        outputs = prefill_many(model, [all_rows(model, Prompt((system, document)).tokens) for document in read])
        for document, output in zip(read, outputs, strict=True):
            assert output.logits is not None
            tokens = torch.tensor(document.tokens, device=logits.device)
            prior = float(_likelihood(output.logits[len(system) :], tokens))
            self.priors[keys[0][0], system.content, document.content] = prior / (len(document) - 1 or 1)
        if self.prior:
            scores += torch.tensor([self.priors[key] for key in keys])
        return sorted(scores.topk(min(self.paths, len(scores))).indices.tolist())


def _likelihood(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability [...] of a text's tokens [R] after the first, by its logits [..., R, V]."""
    told = logits[..., :-1, :].float().log_softmax(-1)
    return told.gather(-1, tokens[1:, None].expand(*told.shape[:-1], 1)).sum((-2, -1))


def _place(spec: ModelSpec, paths: Sequence[Sequence[Placed]], unwritten: int) -> Parts:
    """Join the parts of every path, with room for `unwritten` tokens behind each; one rotation per layer."""
    gap = Placed(spec.empty(unwritten), 0)
    held = [part for parts in paths for part in (*parts, gap)]
    distance = _distances(held, spec.device)
    keys, values = (
        [torch.cat(layer, 1) for layer in zip(*x, strict=True)]
        for x in ([p.kv.keys for p in held], [p.kv.values for p in held])
    )
    if choice.on_gpu(spec.device):
        for layer, table in zip(keys, spec.inv_freq, strict=True):
            choice.rerotate(layer, distance, table, spec.pairing, layer, kernels=True)
    else:
        keys = list(rotate_layers(keys, distance, spec.inv_freq, spec.pairing))
    return Parts(keys, values, [sum(len(part.kv) for part in parts) + unwritten for parts in paths])


def _distances(held: Sequence[Placed], device: torch.device) -> torch.Tensor:
    """Return by how much every token of `held` moves (fp64).

    Computed on `device`: more numbers than torch gives to one thread of a host, whose others are slow to wake.
    """
    sizes = torch.tensor([len(part.kv) for part in held])
    ends, moved = sizes.cumsum(0), [(part.first - part.kv.start, part.step - 1) for part in held]
    starts, total = (ends - sizes).to(device), int(ends[-1])
    of = torch.arange(len(held), device=device).repeat_interleave(sizes.to(device), output_size=total)
    shift, step = torch.tensor(moved, dtype=torch.float64).to(device).unbind(1)
    return shift[of] + (torch.arange(total, device=device) - starts[of]) * step[of]
