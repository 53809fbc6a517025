"""Fidelity: how close a method's predictions of an answer are to those of full attention.

Two answers are teacher-forced: the gold answer, and full attention's own greedy answer. Each token is predicted from
the prompt as the method computed it and from the answer's earlier tokens. Neither needs long decoding, and the second
needs no labels. They distinguish methods even if few answers match.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench.core.blocks import Prompt
from workbench.core.plan import Plan
from workbench.data import Sample, layouts
from workbench.data.layouts import Layout
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.methods import ReadyRequest
from workbench.methods.answered import Answered, Generation
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.models.spec import attach

ROWS = 512  # tokens whose logits are converted to log-probabilities at a time
FIELDS = tuple("nll nll_full kl_gold agree_gold nll_own nll_own_full kl agree kl_first agree_first".split())
Tokens = tuple[int, ...]
Predict = Callable[[Sequence[Tokens]], list[Tensor]]  # answers of a batch → logits, as `predict`


@dataclass(frozen=True, eq=False)
class Reference:
    """Full attention over one prompt: its own greedy answer, and its logits for both answers.

    gold     the gold answer's tokens, with its end token; () if the sample has no answer
    own      tokens of full attention's greedy answer, with its end token
    text     its own answer as text, cut before the stop string
    logits   [G + O, V] logits of the gold answer's tokens, then of its own
    seconds  seconds to the first token, if the prompt was computed alone
    """

    gold: Tokens
    own: Tokens
    text: str
    logits: Tensor
    seconds: float | None = None

    @property
    def nbytes(self) -> int:
        return self.logits.nbytes


def gold_answers(samples: Sequence[Sample], layout: Layout, tokenizer: PreTrainedTokenizerBase) -> list[Tokens]:
    """Return the tokens of each sample's first answer in the layout's format, with its end token; () without one."""
    texts = [layout.answer.format(answer=sample.answers[0]) if sample.answers else "" for sample in samples]
    return [tuple(ids) for ids in layouts.encode(texts, tokenizer)]


def predict(
    model: PreTrainedModel, ready: Sequence[ReadyRequest], logits: Sequence[Tensor], answers: Sequence[Tokens]
) -> list[Tensor]:
    """Return logits [A, V] per request: each answer token is predicted from the prompt and the answer's earlier tokens.

    `ready` are requests whose last pass has run (`methods.method.finish`), and `logits` [V] those after their prompts.
    The answers run in one packed forward pass under each plan's mask rule, which overwrites the KV after the
    prompts.
    """
    requests, indices = [], []
    for i, (one, tokens) in enumerate(zip(ready, answers, strict=True)):
        if len(tokens) < 2:
            continue
        prompt, kv = one.request.tokens, one.request.kv
        extended = torch.cat((prompt, torch.tensor(tokens[:-1])))
        kv.grow(max(0, len(extended) - len(kv)))
        plan_of_prompt = one.request.plan
        plan = Plan(torch.arange(len(prompt), len(extended)), plan_of_prompt.sees, backend=plan_of_prompt.backend)
        requests.append(PrefillRequest(extended, plan, kv))
        indices.append(i)
    later = dict(zip(indices, prefill_many(model, requests), strict=True))
    predicted = []
    for i, tokens in enumerate(answers):
        parts = [logits[i][None]] if tokens else [logits[i][None][:0]]
        if i in later and (rows := later[i].logits) is not None:
            parts.append(rows)
        predicted.append(torch.cat(parts))
    return predicted


def predictor(model: PreTrainedModel, answered: Answered) -> Predict:
    """Return a function like `predict` for requests that were answered; it uses their pages if they still exist."""

    def predicted(answers: Sequence[Tokens]) -> list[Tensor]:
        if (later := answered.force(answers)) is None:
            return predict(model, answered.ready, answered.logits, answers)
        rows = zip(answered.logits, later, answers, strict=True)
        return [torch.cat((first[None][: len(tokens)], behind)) for first, behind, tokens in rows]

    return predicted


def _both(predicted: Predict, gold: Sequence[Tokens], own: Sequence[Tokens]) -> tuple[list[Tensor], list[Tensor]]:
    """Predict the gold and the own answers; answers that differ at most in the last token are predicted once."""
    same = [len(one) == len(other) and one[:-1] == other[:-1] for one, other in zip(gold, own, strict=True)]
    golden = predicted(gold)
    others = predicted([() if alike else tokens for alike, tokens in zip(same, own, strict=True)])
    return golden, [one if alike else other for alike, one, other in zip(same, golden, others, strict=True)]


def references(
    model: PreTrainedModel,
    tokenizer: Any,
    full: Answered,
    gold: Sequence[Tokens],
    max_new_tokens: int,
    stop: Sequence[str] = (),
) -> list[Reference]:
    """Return the reference of each prompt in a batch that full attention has answered greedily (`answer`)."""
    limits = _limits(model, full.generations)
    golden = [tokens[:limit] for tokens, limit in zip(gold, limits, strict=True)]
    generated = [generation.tokens for generation in full.generations]
    ended = [
        len(tokens) < min(max_new_tokens, limit) and not _stopped(tokenizer, tokens, stop)
        for tokens, limit in zip(generated, limits, strict=True)
    ]
    padded = [(*tokens, 0) if end else tokens for tokens, end in zip(generated, ended, strict=True)]  # 0 is not read
    of_gold, of_own = _both(predictor(model, full), golden, padded)
    last = torch.stack([rows[-1].argmax() for rows in of_own]).tolist() if of_own else []
    own = [(*tokens, end) if more else tokens for tokens, more, end in zip(generated, ended, last, strict=True)]
    texts = [generation.text.strip() for generation in full.generations]
    rows = [torch.cat(pair) for pair in zip(of_gold, of_own, strict=True)]
    seconds = [generation.alone for generation in full.generations]
    return [Reference(*each) for each in zip(golden, own, texts, rows, seconds, strict=True)]


def reference(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    gold: Sequence[Tokens],
    max_new_tokens: int = 32,
    stop: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Reference]:
    """Answer a batch of prompts greedily by full attention, and return the reference of each.

    `progress` is that of `methods.generation.answer`.
    """
    params = SamplingParams(max_new_tokens, stop=stop)
    full = answer(model, tokenizer, prompts, Full(), None, params, progress=progress)
    return references(model, tokenizer, full, gold, max_new_tokens, stop)


def compare(
    model: PreTrainedModel, ready: Sequence[ReadyRequest], logits: Sequence[Tensor], known: Sequence[Reference]
) -> list[dict[str, float | None]]:
    """Compare a method's requests, whose last forward pass has run, with full attention over the same prompts."""
    return compared(partial(predict, model, ready, logits), known)


def compared(predicted: Predict, known: Sequence[Reference]) -> list[dict[str, float | None]]:
    """Compare a method's predictions of answers with those of full attention over the same prompts.

    Returns one dictionary per request; values are means over the tokens of an answer, in nats per token:

    nll, nll_full          negative log-likelihood of the gold answer's tokens, by the method and by full attention
    nll_own, nll_own_full  the same for full attention's own answer
    kl, kl_gold            KL(full attention ‖ method) over its own answer, and over the gold answer
    agree, agree_gold      share of these tokens for which both have the same most likely token
    kl_first, agree_first  the same for the first token, which both answers share

    Values of a gold answer are None if there is none.
    """
    golden, own = _both(predicted, [one.gold for one in known], [one.own for one in known])
    return scores(known, [torch.cat(pair) for pair in zip(golden, own, strict=True)])


def scores(known: Sequence[Reference], predicted: Sequence[Tensor]) -> list[dict[str, float | None]]:
    """Score logits [G + O, V] per request, of the tokens of both answers, as `compare` does."""
    if not known:
        return []
    targets = torch.tensor([token for one in known for token in (*one.gold, *one.own)])
    ours = torch.cat(list(predicted))
    table = _by_token(torch.cat([one.logits.to(ours.device) for one in known]), ours, targets.to(ours.device))
    lengths = [len(one.gold) + len(one.own) for one in known]
    return [_means(part, len(one.gold)) for part, one in zip(table.split(lengths), known, strict=True)]


def _by_token(full: Tensor, ours: Tensor, targets: Tensor) -> Tensor:
    """Return nll, nll of full attention, KL and agreement [N, 4] on the CPU, for logits [N, V] and tokens [N]."""
    parts = []
    for rows in torch.arange(len(targets)).split(ROWS):
        at = slice(int(rows[0]), int(rows[-1]) + 1)
        p, q = (x[at].float().log_softmax(-1) for x in (full, ours))
        token = targets[at, None]
        kl = (p.exp() * (p - q)).sum(-1).clamp_min(0)  # below 0 by rounding only
        agree = (p.argmax(-1) == q.argmax(-1)).float()
        parts.append(torch.stack([-q.gather(1, token)[:, 0], -p.gather(1, token)[:, 0], kl, agree], 1))
    return torch.cat(parts).cpu()


def _means(table: Tensor, gold: int) -> dict[str, float | None]:
    """Return the means over one request's tokens [G + O, 4]; the first `gold` tokens are of the gold answer."""
    of_gold = table[:gold].double().mean(0).tolist() if gold else [None] * 4
    of_own = table[gold:].double().mean(0).tolist()
    nll, nll_full, kl_gold, agree_gold = of_gold
    return dict(zip(FIELDS, (nll, nll_full, kl_gold, agree_gold, *of_own, *table[gold, 2:].tolist()), strict=True))


def _limits(model: PreTrainedModel, full: Sequence[Generation]) -> list[int]:
    """Return per prompt how many answer tokens fit into the context; the last token needs no KV slot."""
    context = attach(model).context
    return [context - one.rows_computed - one.rows_reused + 1 if context else 1 << 62 for one in full]


def _stopped(tokenizer: Any, tokens: Tokens, stop: Sequence[str]) -> bool:
    """Return whether an answer ends with a stop string, not with the end-of-text token."""
    text = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return any(end in text for end in stop)
