"""Superposition prompting: one path per document, with the question; the most likely paths are joined.

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
from workbench.methods.registry import check_options, integer_option
from workbench.models.spec import ModelSpec, attach
from workbench.store import UNLIMITED, MemoryStore, Store, fetch, fingerprint

PATHS = 4  # paths whose logits are in memory in fp32 at a time


class PlacedTokens(NamedTuple):
    """Cached tokens, the new position of the first, and the distance between tokens; both may be fractional."""

    kv: KV
    first: float
    step: float = 1.0


@dataclass(frozen=True)
class Superposition:
    r"""Compute paths system → document → question in parallel, and join the `paths` most likely for the answer.

    *Follows the paper, with the exceptions below.* Its released code, `transformers.patch` of
    apple/ml-superposition-prompting at 69c1203, also normalizes P(q | d) per token, which gives P(d) more weight, and
    scales the answer's attention to the joined paths by their probabilities.

    The question of a path attends to the system block and its own document only. Paths are ranked by the posterior of
    their document, P(d | q) ∝ P(q | d) P(d), with probabilities of the model after the system block. P(d) is normalized
    per token, to avoid a penalty for long documents, and cached in this object: the first request with a document pays
    for it. `prior=False` omits P(d) and saves this pass over the documents.

    Positions are at equilibrium: every document spans the harmonic mean of all lengths, so all paths end at the same
    position. A document is encoded at its own length and its keys are stretched afterwards, which keeps it cacheable
    (the paper encodes it stretched). The last token of the question joins the paths: it is computed after the ranking,
    attends to the system block, the kept documents and their questions, and gives the first token.

    $$P(d \mid q) \propto P(q \mid d)\, P(d)$$
    """

    paths: int = integer_option(4, "at least 1 path is kept", least=1)
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
        store = MemoryStore(UNLIMITED) if store is None else store
        return [self._begin(model, prompt, store, reserve) for prompt in prompts]

    def _begin(self, model: PreTrainedModel, prompt: Prompt, store: Store, reserve: int) -> ReadyRequest:
        spec = attach(model)
        system, *documents = prompt.context
        head, last = Block(prompt.blocks[-1].tokens[:-1]), prompt.blocks[-1].tokens[-1]
        spec.check_tokens(Prompt((system, max(documents, key=len), head)).tokens)
        first, *cached = fetch(model, prompt.context, store, [(), *[(system,)] * len(documents)])
        start, span = len(system), len(documents) / sum(1 / len(document) for document in documents)  # harmonic mean
        steps = [span / len(document) for document in documents]
        late = [len(document) - span for document in documents]  # distance of a question from its place
        paths = _place(
            spec,
            [
                [PlacedTokens(first, more), PlacedTokens(kv, start + more, step)]
                for kv, step, more in zip(cached, steps, late, strict=True)
            ],
            len(head),
        )
        known = fingerprint(model)
        keys = [(known, system.content, document.content) for document in documents]
        read = [d for d, key in zip(documents, keys, strict=True) if self.prior and key not in self.priors]
        question = torch.tensor(head.tokens)
        best = self._best(model, system, keys, read, question, prefill_parts(model, question, paths))
        length = start + sum(len(documents[i]) + len(head) for i in best) + 1
        more = length - 1 - (start + span + len(head))
        parts = [PlacedTokens(first, more), *(PlacedTokens(cached[i], start + more, steps[i]) for i in best)]
        ends = [(paths.kv(i), len(documents[i]) + start) for i in best]
        parts += [PlacedTokens(kv.slice(end, len(kv)), start + span + more) for kv, end in ends]
        kv = _place(spec, [parts], 1 + reserve).kv(0, reserve)
        kept = chain.from_iterable(documents[i].tokens for i in best)
        tokens = torch.tensor([*system.tokens, *kept, *head.tokens * len(best), last])
        spec.check_tokens(tokens)
        request = PrefillRequest(tokens, Plan(torch.tensor([length - 1])), kv)
        passes = [Pass(range(n - len(head), n), n, forward=1) for n in paths.lengths]
        passes += [Pass(range(start + len(d)), start + len(d)) for d in read]
        computed = len(head) * len(documents) + 1 + sum(map(len, read))
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
        question = question.to(logits.device)
        scores = torch.cat([_likelihood(part, question) for part in logits.split(PATHS)]).cpu()  # one synchronization
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
    logs = logits[..., :-1, :].float().log_softmax(-1)
    return logs.gather(-1, tokens[1:, None].expand(*logs.shape[:-1], 1)).sum((-2, -1))


def _place(spec: ModelSpec, paths: Sequence[Sequence[PlacedTokens]], unwritten: int) -> Parts:
    """Concatenate the parts of every path, with room for `unwritten` tokens after each; one rotation per layer."""
    gap = PlacedTokens(spec.empty(unwritten), 0)
    joined = [part for parts in paths for part in (*parts, gap)]
    distance = _distances(joined, spec.device)
    keys, values = (
        [torch.cat(layer, 1) for layer in zip(*x, strict=True)]
        for x in ([p.kv.keys for p in joined], [p.kv.values for p in joined])
    )
    if choice.on_gpu(spec.device):
        for layer, table in zip(keys, spec.inv_freq, strict=True):
            choice.rerotate(layer, distance, table, spec.pairing, layer, kernels=True)
    else:
        keys = list(rotate_layers(keys, distance, spec.inv_freq, spec.pairing))
    return Parts(keys, values, [sum(len(part.kv) for part in parts) + unwritten for parts in paths])


def _distances(parts: Sequence[PlacedTokens], device: torch.device) -> torch.Tensor:
    """Return by how many positions every token of `parts` moves (fp64).

    This runs on `device`: the tensors are large enough for torch to use several host threads, which are slow to wake.
    """
    sizes = torch.tensor([len(part.kv) for part in parts])
    ends, moved = sizes.cumsum(0), [(part.first - part.kv.start, part.step - 1) for part in parts]
    starts, total = (ends - sizes).to(device), int(ends[-1])
    of = torch.arange(len(parts), device=device).repeat_interleave(sizes.to(device), output_size=total)
    shift, step = torch.tensor(moved, dtype=torch.float64).to(device).unbind(1)
    return shift[of] + (torch.arange(total, device=device) - starts[of]) * step[of]
