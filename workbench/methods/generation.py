"""The whole flow in one call: prompts in, answers out, by any method."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.plan import Pass
from workbench.engine.decoding import Tokens, by_request, check_options, decode, text_of
from workbench.methods import Method, ReadyRequest, finish
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.receipts import Receipt, WatchedStore, receipts_of, timed
from workbench.models.spec import spec_for
from workbench.store import MemoryStore, Store

MODES: dict[str, Method] = {"full": Full(), "block": Reuse(), "superposition": Superposition()}


@dataclass(frozen=True)
class Generation:
    """An answer, and what it took to compute."""

    tokens: tuple[int, ...]
    text: str  # up to the stop string
    rows_computed: int  # tokens of the prompt
    rows_reused: int
    ttft: float = field(compare=False)  # seconds from the call to the first tokens of its batch
    passes: tuple[Pass, ...] = field(repr=False)  # all that was computed up to the first token
    receipt: Receipt | None = field(default=None, repr=False, compare=False)  # blocks reused, missed and why, times


def generate(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    mode: Method | str = "full",
    store: Store | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] = (),
) -> list[Generation]:
    """Answer a batch of prompts of any lengths.

    mode   a method, or the name of one with its defaults. "full": every token of a prompt is computed; "block": every
           context block is cached independently (in `store`, or for this call only) and reused at its new place;
           "superposition": one path a document. `Full(sees=block_attention)`, `Reuse(positions="naive")` and others are
           in `workbench.methods`.
    The other arguments are those of `decode`.
    """
    options: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "seed": seed, "stop": stop}
    return answer(model, tokenizer, prompts, method_of(mode), store, max_new_tokens, **options).generations


@dataclass(frozen=True)
class Answered:
    """A batch as `answer` leaves it: every request's KV holds its prompt and the tokens that were decoded."""

    generations: list[Generation]
    ready: list[ReadyRequest]
    logits: list[Tensor]  # [V] behind every prompt


def answer(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    method: Method,
    store: Store | None = None,
    max_new_tokens: int = 64,
    **options: Any,
) -> Answered:
    """Answer a batch as `generate` does, and keep its requests; `options` are those of `decode`."""
    stop = options.get("stop", ())
    temperature, top_p = options.get("temperature", 0.0), options.get("top_p", 1.0)
    check_options(max_new_tokens, temperature, top_p, (stop,) if isinstance(stop, str) else stop, tokenizer)
    context, longest = spec_for(model, (prompt.tokens for prompt in prompts)).context, max(map(len, prompts), default=0)
    reserve = min(max_new_tokens, context - longest) if context else max_new_tokens
    watched = WatchedStore(MemoryStore(1 << 62) if store is None else store)
    begin = perf_counter()
    ready = method.begin(model, prompts, watched, reserve)
    begun = perf_counter()
    logits = finish(model, ready)
    stream = decode_ready(model, tokenizer, ready, logits, max_new_tokens, **options)
    steps = list(islice(stream, 1))
    first = perf_counter()
    tokens = by_request([*steps, *stream], len(prompts))
    seconds = watched.seconds | {"prefill": first - begun, "decode": perf_counter() - first}
    seconds["place"] = begun - begin - sum(watched.seconds.values())
    receipts = receipts_of(prompts, ready, watched.lookups, getattr(method, "positions", "re-encoded"))
    generations = [
        Generation(
            tuple(said),
            text_of(tokenizer, said, stop),
            r.computed,
            r.reused,
            first - begin,
            r.passes,
            timed(one, seconds),
        )
        for said, r, one in zip(tokens, ready, receipts, strict=True)
    ]
    return Answered(generations, ready, logits)


def decode_ready(
    model: PreTrainedModel,
    tokenizer: Any,
    ready: Sequence[ReadyRequest],
    logits: Sequence[Tensor],
    max_new_tokens: int,
    **options: Any,
) -> Iterator[Tokens]:
    """Decode the answers of requests whose last forward pass has run, under the rules of their plans."""
    kvs, rules = [r.request.kv for r in ready], [r.request.plan.sees for r in ready]
    return decode(model, kvs, logits, max_new_tokens, tokenizer=tokenizer, sees=rules, **options)


def method_of(mode: Method | str) -> Method:
    """Return the method itself, or the one of that name."""
    if isinstance(mode, str) and mode not in MODES:
        raise BadInput(f"mode {mode!r}: it is one of {', '.join(MODES)}, or a method of workbench.methods")
    return MODES[mode] if isinstance(mode, str) else mode


def first_token(model: PreTrainedModel, prompt: Prompt, mode: Method | str = "full", store: Store | None = None) -> int:
    """Return the most likely first token of an answer.

    What a time to first token measures: from token ids (and blocks in a store) to a token id on the host.
    """
    (logits,) = finish(model, method_of(mode).begin(model, [prompt], store))
    return int(logits.argmax())
