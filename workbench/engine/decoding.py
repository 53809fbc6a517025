"""Decoding after a prefill: greedy or sampled, streamed, batched."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from workbench.core.errors import BadInput, format_value
from workbench.core.kv import KV
from workbench.core.masks import Sees, causal
from workbench.core.plan import Backend, Plan
from workbench.core.utils import annotations
from workbench.engine.forward import run
from workbench.models.model_names import check_length
from workbench.models.spec import spec_for

LOWEST_TEMPERATURE = 1e-6  # logits divided by it stay finite
Tokens = list[int | None]  # one entry per request; None: the request has ended


def decode(
    model: PreTrainedModel,
    kvs: Sequence[KV],
    logits: Sequence[torch.Tensor] | torch.Tensor,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] = (),
    tokenizer: Any = None,
    sees: Sees | Sequence[Sees] = causal,
    backends: Sequence[Backend | None] = (),
) -> Iterator[Tokens]:
    """Stream the answers of a batch: one list of B token ids per step, None for requests that have ended.

    kvs          KV of each request's whole prompt; generated tokens except the last are appended in place
    logits       [B, V], or per request [V] or [R, V], whose last row is used (`PrefillOutput.logits`)
    temperature  0: greedy; above 0: sampled from the `top_p` nucleus (Holtzman et al., arXiv:1904.09751)
    seed         sampling seed: one for all requests (an answer then does not depend on its batch), or one per request
    stop         strings that end a request, also across tokens; the token that completes one is streamed
    sees         mask rule of the generated tokens: one for all requests, or one per request
    backends     attention backend of each request (`Plan.backend`); (): chosen automatically

    A request ends at the end-of-text token or at a special token that is a stop string; neither is streamed. It also
    ends at any other stop string, at the model's context length or after `max_new_tokens`. Raises BadInput for
    invalid arguments, when called and before any work.
    """
    annotations.check("stop", stop, str | Sequence[str])
    annotations.check("seed", seed, int | Sequence[int])
    annotations.check("logits", logits, torch.Tensor | Sequence[Any])
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    check_options(max_new_tokens, temperature, top_p, stops, tokenizer)
    rules = list(sees) if isinstance(sees, Sequence) else [sees] * len(kvs)
    seeds = [seed] * len(kvs) if isinstance(seed, int) else list(seed)
    for name, entries in (("logits", logits), ("seeds", seeds), ("mask rules", rules)):
        if len(entries) != len(kvs):
            raise BadInput(f"{len(entries)} {name} for {len(kvs)} requests: give one for each")
    if len({id(kv) for kv in kvs}) < len(kvs):
        raise BadInput("two requests share one KV: each request of a batch appends to its own (KV.clone)")
    for i, each in enumerate(logits):
        if not isinstance(each, torch.Tensor):
            raise BadInput(f"logits of request {i} are {format_value(each)}: a tensor is needed")
        if each.ndim == 0 or each.numel() == 0:
            raise BadInput(f"logits of request {i} are of shape {tuple(each.shape)}: [V] or [R, V] is needed")
    highest = [each.reshape(-1, each.shape[-1])[-1].amax() for each in logits]  # nan if any logit is nan
    for i, finite in enumerate(torch.stack(highest).isfinite().tolist() if highest else ()):  # one GPU synchronization
        if not finite:
            raise BadInput(f"logits of request {i} contain nan or infinity: its keys, values or weights are corrupt")
    spec = spec_for(model, kvs=kvs)
    for i, each in enumerate(logits):
        if each.shape[-1] < spec.vocabulary:
            raise BadInput(f"logits of request {i} are {each.shape[-1]} wide: the vocabulary has {spec.vocabulary:,}")
    context = spec.context
    check_length(max_new_tokens, context)
    requests = [
        DecodeRequest(kv, rule, torch.Generator().manual_seed(number), backend=backend)
        for kv, rule, number, backend in zip(kvs, rules, seeds, backends or [None] * len(kvs), strict=True)
    ]
    choose = TokenChoice(temperature, top_p)
    watch = StopStrings(stops, tokenizer)
    eos = eos_ids(model, tokenizer) | special_ids(stops, tokenizer)
    return _stream(model, requests, list(logits), max_new_tokens, choose, watch, context, eos)


def by_request(steps: Iterable[Tokens], requests: int) -> list[list[int]]:
    """Collect the stream of `decode`: return the token ids of every request."""
    answers: list[list[int]] = [[] for _ in range(requests)]
    for step in steps:
        for answer, token in zip(answers, step, strict=True):
            answer += [] if token is None else [token]
    return answers


def eos_ids(model: PreTrainedModel, tokenizer: Any = None) -> frozenset[int]:
    """Return all end-of-text ids, of the generation config, the config and the tokenizer."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update([] if ids is None else [ids] if isinstance(ids, int) else ids)
    return frozenset(found)


def special_ids(stops: Sequence[str], tokenizer: Any) -> frozenset[int]:
    """Return the ids of stop strings that are special tokens: these end a request and are not part of its text."""
    known: dict[str, int] = getattr(tokenizer, "get_added_vocab", dict)()
    ids = [known[stop] for stop in stops if stop in known]
    return frozenset(i for i in ids if not tokenizer.decode([i], skip_special_tokens=True))


def text_of(tokenizer: Any, tokens: Sequence[int], stop: str | Sequence[str] = ()) -> str:
    """Return the text of generated tokens, cut before the first stop string."""
    text = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    ends = [text.find(s) for s in ((stop,) if isinstance(stop, str) else stop)]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


@dataclass
class DecodeRequest:
    """Decoding state of a request: its KV, mask rule, random generator and generated tokens."""

    kv: KV
    sees: Sees
    random: torch.Generator
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    backend: Backend | None = None


@dataclass(frozen=True)
class TokenChoice:
    """Sampling rule: greedy, or nucleus sampling with `top_p` at a temperature."""

    temperature: float
    top_p: float

    def __call__(self, logits: torch.Tensor, random: torch.Generator) -> int:
        """Return a token id for logits [V]; sampling is on the CPU in fp32, so all devices agree."""
        if self.temperature == 0:
            return int(logits.argmax())
        probability, order = (
            (logits.float().cpu() / float(self.temperature)).softmax(-1).sort(descending=True, stable=True)
        )
        before = probability.cumsum(-1) - probability
        nucleus = probability.masked_fill((before >= self.top_p) & (before > 0), 0)  # keeps the likeliest token
        return int(order[torch.multinomial(nucleus, 1, generator=random)])


@dataclass(frozen=True)
class StopStrings:
    """Strings that end an answer."""

    stops: tuple[str, ...]
    tokenizer: Any

    def __call__(self, tokens: list[int]) -> bool:
        """Return whether the last token completes a stop string. Only the last few tokens are decoded."""
        if not self.stops:
            return False
        tail = 4 * max(map(len, self.stops)) + 4  # a character is at most 4 byte-level tokens
        text = self.tokenizer.decode(tokens[-tail:], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return any(s in text for s in self.stops)


def _stream(
    model: PreTrainedModel,
    requests: list[DecodeRequest],
    logits: list[torch.Tensor],
    count: int,
    choose: TokenChoice,
    watch: StopStrings,
    context: int | None,
    eos: frozenset[int],
) -> Iterator[Tokens]:
    latest: list[torch.Tensor | None] = list(logits)
    for left in reversed(range(count)):
        step: Tokens = []
        for request, row in zip(requests, latest, strict=True):
            step.append(None if request.ended or row is None else next_token(request, row, choose, watch, eos))
        if all(token is None for token in step):
            return
        yield step
        live = [i for i, r in enumerate(requests) if not r.ended and (context is None or len(r.kv) < context)]
        if not live or not left:
            return
        latest = [None] * len(requests)
        reserve = left if context is None else min(left, context - min(len(requests[i].kv) for i in live))
        for i, row in zip(live, forward_step(model, [requests[i] for i in live], reserve), strict=True):
            latest[i] = row


def next_token(
    request: DecodeRequest, row: torch.Tensor, choose: TokenChoice, watch: StopStrings, eos: frozenset[int]
) -> int | None:
    token = choose(row if row.ndim == 1 else row[-1], request.random)
    if token in eos:
        request.ended = True
        return None
    request.tokens.append(token)
    request.ended = watch(request.tokens)
    return token


def forward_step(model: PreTrainedModel, requests: list[DecodeRequest], reserve: int) -> list[torch.Tensor]:
    """Return logits [1, V] after the last token of each request, whose KV is appended in place."""
    parts = []
    for request in requests:
        if len(request.tokens) == 1:
            request.kv.reserve(reserve)
        request.kv.grow(1)
        plan = Plan(torch.tensor([len(request.kv) - 1]), request.sees, backend=request.backend)
        parts.append((torch.tensor(request.tokens[-1:]), plan, request.kv))
    return [step.logits for step in run(model, parts) if step.logits is not None]


def check_options(count: int, temperature: float, top_p: float, stops: Sequence[str], tokenizer: Any) -> None:
    """Raise BadInput for invalid options of `decode`."""
    for name, value, annotation in (("max_new_tokens", count, int), ("temperature", temperature, float)):
        annotations.check(name, value, annotation)
    annotations.check("top_p", top_p, float)
    annotations.check("stop", stops, Sequence[str])
    if count < 1:
        raise BadInput(f"max_new_tokens {count}: it is 1 or more")
    if temperature != 0 and not LOWEST_TEMPERATURE <= temperature < float("inf"):
        raise BadInput(f"temperature {temperature}: it is 0 (greedy) or at least {LOWEST_TEMPERATURE}")
    if not 0 < top_p <= 1:
        raise BadInput(f"top_p {top_p}: it is above 0 and at most 1")
    if not all(stops):
        raise BadInput("a stop string is empty: give at least one character")
    if stops and tokenizer is None:
        raise BadInput(f"stop strings {list(stops)} need the tokenizer")
