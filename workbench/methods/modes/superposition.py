"""Superposition prompting: every document is read with the question on a path of its own; the best paths are joined.

Merth et al., arXiv:2404.06910 (ICML 2024); a baseline of Block-Attention's table 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.core.rope import rotate_layers
from workbench.engine.attention_backends import choice
from workbench.engine.forward import PrefillRequest, all_rows, prefill_many
from workbench.engine.side_by_side import prefill_parts
from workbench.methods import ReadyRequest
from workbench.methods.registry import check_options
from workbench.models.spec import ModelSpec, attach
from workbench.store import UNLIMITED, MemoryStore, Store, fetch, fingerprint

Placed = tuple[KV, torch.Tensor]  # cached tokens, and the positions [T], whole or not, where their keys shall stand


@dataclass(frozen=True)
class Superposition:
    r"""Paths system → document → question run side by side; the `paths` best of them are joined for the answer.

    *Follows the paper, but for what is said below.*

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

    paths: int = 4
    prior: bool = True
    priors: dict[tuple[str, str, str], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self)
        if self.paths < 1:
            raise BadInput(f"paths is {self.paths}: at least 1 path is kept")

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        for prompt in prompts:
            if len(prompt.context) < 2 or len(prompt.blocks[-1]) < 2:
                raise BadInput("superposition needs a system block, a document and a question of at least two tokens")
        kept = MemoryStore(UNLIMITED) if store is None else store
        return [self._begin(model, prompt, kept, reserve) for prompt in prompts]

    def _begin(self, model: PreTrainedModel, prompt: Prompt, store: Store, reserve: int) -> ReadyRequest:
        spec = attach(model)
        system, *documents = prompt.context
        asked, last = Block(prompt.blocks[-1].tokens[:-1]), prompt.blocks[-1].tokens[-1]
        first, *cached = fetch(model, prompt.context, store, [(), *[(system,)] * len(documents)])
        span = len(documents) / sum(1 / len(document) for document in documents)  # harmonic mean of the lengths
        head = torch.arange(len(system), dtype=torch.float64)
        bodies = [len(system) + torch.arange(len(d)).double() * span / len(d) for d in documents]
        paths = [Prompt((system, document, asked)) for document in documents]
        late = [len(document) - span for document in documents]  # a question stands so much behind its place
        joined = [
            [(first, head + more), (kv, body + more)] for kv, body, more in zip(cached, bodies, late, strict=True)
        ]
        placed, *layers = _place(spec, joined, len(asked))
        requests = [PrefillRequest(p.tokens, Plan(p.question), kv) for p, kv in zip(paths, placed, strict=True)]
        known = fingerprint(model)
        keys = [(known, system.content, document.content) for document in documents]
        read = [d for d, key in zip(documents, keys, strict=True) if self.prior and key not in self.priors]
        best = self._best(model, system, keys, read, requests, prefill_parts(model, requests, *layers))
        end = len(system) + span + torch.arange(len(asked)).double()
        length = len(system) + sum(len(documents[i]) + len(asked) for i in best) + 1
        more = length - 1 - (len(system) + span + len(asked))
        questions = [requests[i].kv.slice(len(requests[i].kv) - len(asked), len(requests[i].kv)) for i in best]
        parts = [(first, head + more), *((cached[i], bodies[i] + more) for i in best)]
        ((kv,), *_) = _place(spec, [[*parts, *((question, end + more) for question in questions)]], 1, reserve)
        kept = chain.from_iterable(documents[i].tokens for i in best)
        tokens = torch.tensor([*system.tokens, *kept, *asked.tokens * len(best), last])
        spec.check_tokens(tokens)
        request = PrefillRequest(tokens, Plan(torch.tensor([length - 1])), kv)
        reused = len(system) + sum(map(len, documents)) - sum(map(len, read))
        return ReadyRequest(request, *self._counts(system, read, requests, length), reused)

    def _best(
        self,
        model: PreTrainedModel,
        system: Block,
        keys: Sequence[tuple[str, str, str]],
        read: Sequence[Block],
        requests: Sequence[PrefillRequest],
        logits: Sequence[torch.Tensor],
    ) -> list[int]:
        """Return the paths to keep, in reading order, by the logits of every path's question.

        `keys` name the priors of all documents; those of `read` are not known yet.
        """
        scores = _likelihoods(logits, requests)
        whole = [all_rows(model, Prompt((system, document)).tokens) for document in read]
        found = [output.logits for output in prefill_many(model, whole)]
        behind = _likelihoods([x[len(system) :] for x in found if x is not None], whole)
        for document, prior in zip(read, behind.tolist(), strict=True):
            self.priors[keys[0][0], system.content, document.content] = prior / (len(document) - 1 or 1)
        if self.prior:
            scores += torch.tensor([self.priors[key] for key in keys])
        return sorted(scores.topk(min(self.paths, len(requests))).indices.tolist())

    def _counts(
        self, system: Block, read: Sequence[Block], requests: Sequence[PrefillRequest], length: int
    ) -> tuple[tuple[Pass, ...], int]:
        """Return passes, and tokens computed."""
        passes = [Pass(request.plan.rows.tolist(), len(request.tokens), forward=1) for request in requests]
        passes += [Pass(range(len(system) + len(d)), len(system) + len(d)) for d in read]
        computed = sum(len(request.plan.rows) for request in requests) + 1 + sum(map(len, read))
        return (*passes, Pass([length - 1], length, forward=2)), computed


def _likelihoods(logits: Sequence[torch.Tensor], requests: Sequence[PrefillRequest]) -> torch.Tensor:
    """Return log-probabilities [B], on the CPU, of the last len(logits) tokens of requests, all but the first."""
    found = []
    for rows, request in zip(logits, requests, strict=True):
        tokens = request.tokens[len(request.tokens) - len(rows) + 1 :].to(rows.device)
        found.append(rows[:-1].float().log_softmax(-1).gather(1, tokens[:, None]).sum())
    return torch.stack(found).cpu() if found else torch.empty(0)  # a GPU is waited for once


def _place(
    spec: ModelSpec, paths: Sequence[Sequence[Placed]], unwritten: int, reserve: int = 0
) -> tuple[list[KV], list[torch.Tensor], list[torch.Tensor]]:
    """Join the parts of every path into one KV, `unwritten` tokens behind them; keys in one rotation a layer.

    Returns the KVs, and the keys and values of every layer of which they are parts, side by side.
    """
    gap, held, distance, lengths = spec.empty(unwritten + reserve), list[KV](), list[torch.Tensor](), list[int]()
    for parts in paths:
        held += [*(part for part, _ in parts), gap]
        distance += [positions - (part.start + torch.arange(len(part))) for part, positions in parts]
        distance.append(torch.zeros(len(gap)))
        lengths.append(sum(len(part) for part, _ in parts) + len(gap))
    keys = [torch.cat(layer, 1) for layer in zip(*(kv.keys for kv in held), strict=True)]
    values = [torch.cat(layer, 1) for layer in zip(*(kv.values for kv in held), strict=True)]
    if choice.on_gpu(spec.device):
        at = torch.cat(distance).to(spec.device)
        for layer, table in zip(keys, spec.inv_freq, strict=True):
            choice.rerotate(layer, at, table, spec.pairing, layer, kernels=True)
    else:
        keys = list(rotate_layers(keys, torch.cat(distance), spec.inv_freq, spec.pairing))
    each = (zip(*(x.split(lengths, 1) for x in layers), strict=True) for layers in (keys, values))
    kvs = [KV.within(list(k), list(v), n - reserve) for k, v, n in zip(*each, lengths, strict=True)]
    return kvs, keys, values
