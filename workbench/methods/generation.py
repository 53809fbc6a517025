"""Answer prompts with any method in one call."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput, format_value, not_allowed
from workbench.core.utils.stages import stage
from workbench.engine.decoding import Tokens, by_request, decode, text_of
from workbench.engine.pages.page_allocator import NoPages
from workbench.methods import Method, ReadyRequest, finish, presets
from workbench.methods.answered import Answered, Generation
from workbench.methods.engines import EngineChoice, UnreadKV, choose_engine, pages_of
from workbench.methods.method import SamplingParams
from workbench.methods.method_fields import check_engine
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse, as_computed
from workbench.methods.modes.superposition import Superposition
from workbench.methods.paged.answers import MOST, PagedAnswers
from workbench.methods.paged.request import generation_of, requests_of
from workbench.methods.request_report import WatchedStore, receipts_of, with_seconds
from workbench.models.model_names import check_length
from workbench.models.spec import spec_for
from workbench.store import UNLIMITED, MemoryStore, Store
from workbench.store.fetching import checked

GREEDY = SamplingParams()
MODES: dict[str, Method] = {"full": Full(), "block": Reuse(), "superposition": Superposition()}


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
    engine: str = "auto",
) -> list[Generation]:
    """Answer a batch of prompts of any lengths.

    mode    a method, or the name of one with its defaults. "full": every token of a prompt is computed; "block": every
            context block is cached independently (in `store`, or for this call only) and reused at its new position;
            "superposition": one path per document; or a published method (`workbench.methods.presets`), as "fusionrag",
            whose neighbours are looked up among the passages of these prompts. Methods with options, such as
            `Reuse(positions="naive")`, are in `workbench.methods`
    engine  "paged" (pages and CUDA graphs), "contiguous", or "auto": paged on a GPU if model and method allow it
            (`methods.engines`)

    stop    strings that end an answer, as `layout.stop`; without them, an answer ends at the model's end-of-sequence
            token or after `max_new_tokens`

    `temperature` 0 is greedy decoding; else tokens are sampled from the smallest set whose probability reaches `top_p`,
    by `seed` (one, or one per prompt). Raises BadInput for invalid arguments, before any work.
    """
    params = SamplingParams(max_new_tokens, temperature, top_p, seed, stop)
    method = method_of(mode, prompts, tokenizer)
    return answer(model, tokenizer, prompts, method, store, params, engine=engine, keep=False).generations


def answer(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    method: Method,
    store: Store | None = None,
    params: SamplingParams = GREEDY,
    engine: str = "auto",
    keep: bool = True,
    most: int = MOST,
    progress: Callable[[int, int], None] | None = None,
) -> Answered:
    """Answer prompts as `generate` does, and also return logits and requests.

    keep      keep the requests with their KV (`Answered.ready`)
    most      maximum number of requests decoded together over pages; contiguous KVs are all decoded together
    progress  called as progress(ended, total); with contiguous KVs only if prompts are computed one by one
    """
    batch = _Batch(model, tokenizer, prompts, method, _store_of(store), params)
    chosen = _engine_for(batch, engine)
    if chosen.name == "contiguous":
        return _contiguous(batch, str(chosen), progress)
    begin = perf_counter()
    requests = requests_of(*batch, keep)
    stage("answering")
    with pages_of(model).use(model):
        try:
            answers = PagedAnswers(model, requests, most)
        except NoPages as problem:
            if engine != "auto":
                raise
            return _contiguous(batch, f"contiguous: {problem}", progress)
        answers.progress = progress
        for _ in answers.run():
            pass
    generations = [generation_of(request, tokenizer, begin) for request in requests]
    logits = [request.logits for request in requests if request.logits is not None]
    if not keep:
        return Answered(generations, logits, str(chosen), list)
    unread = UnreadKV(pages_of(model), answers, requests)
    return Answered(generations, logits, str(chosen), unread.copy_out, unread.force)


def stream(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    mode: Method | str = "full",
    store: Store | None = None,
    engine: str = "auto",
    **options: Any,
) -> Iterator[tuple[int, int]]:
    """Answer prompts as `generate` does, and stream (prompt index, token id).

    `options` are the fields of `SamplingParams`. Over pages, tokens of several requests are interleaved, and the
    model's pages are locked until the stream is exhausted or closed.
    """
    method = method_of(mode, prompts, tokenizer)
    batch = _Batch(model, tokenizer, prompts, method, _store_of(store), SamplingParams(**options))
    return _streamed(batch, _engine_for(batch, engine).name == "paged")


class _Batch(NamedTuple):
    """A batch of prompts with method, store and sampling parameters: the arguments of `requests_of`."""

    model: PreTrainedModel
    tokenizer: Any
    prompts: Sequence[Prompt]
    method: Method
    store: Store
    params: SamplingParams


def _streamed(batch: _Batch, paged: bool) -> Iterator[tuple[int, int]]:
    model = batch.model
    if paged:
        requests = requests_of(*batch)
        numbers = {id(request): number for number, request in enumerate(requests)}
        with pages_of(model).use(model):
            for request, token in PagedAnswers(model, requests).run():
                yield numbers[id(request)], token
        return
    ready = batch.method.begin(model, batch.prompts, batch.store, _reserve(batch))
    for step in decode_ready(model, batch.tokenizer, ready, finish(model, ready), batch.params):
        yield from ((number, token) for number, token in enumerate(step) if token is not None)


def _store_of(store: Store | None) -> Store:
    """Return `store`, or a new one in memory if it is None. Raises BadInput for an object that is no store."""
    return MemoryStore(UNLIMITED) if store is None else checked(store)


def _engine_for(batch: _Batch, engine: str) -> EngineChoice:
    """Raise BadInput for invalid options or prompts; return the engine."""
    model, tokenizer, prompts, method, _, params = batch
    if not isinstance(prompts, Sequence) or not all(isinstance(prompt, Prompt) for prompt in prompts):
        raise BadInput(f"prompts is {format_value(prompts)}: a list of prompts is needed")
    if not callable(getattr(tokenizer, "decode", None)):
        raise BadInput(f"tokenizer is {format_value(tokenizer)}: what turns tokens into text is needed")
    check_engine(engine)
    params.check(tokenizer)
    spec = spec_for(model, (prompt.tokens for prompt in prompts))
    check_length(params.max_new_tokens, spec.context)
    method.check(model, prompts)
    return choose_engine(model, method, prompts, params.max_new_tokens, engine)


def _reserve(batch: _Batch) -> int:
    context, most = spec_for(batch.model).context, batch.params.max_new_tokens
    return min(most, context - max(map(len, batch.prompts), default=0)) if context else most


def _contiguous(batch: _Batch, engine: str, progress: Callable[[int, int], None] | None) -> Answered:
    model, tokenizer, prompts, method, store, params = batch
    watched = WatchedStore(store)
    reserve = _reserve(batch)
    begin = perf_counter()
    alone = list[float | None]()
    if type(method) is Full and model.device.type == "cpu":  # one prompt saturates a CPU
        placed, ready, logits = begin, list[ReadyRequest](), list[Tensor]()
        for prompt in prompts:
            started = perf_counter()
            ready += method.begin(model, [prompt], watched, reserve)
            logits += finish(model, ready[-1:])
            int(logits[-1].argmax())
            alone.append(perf_counter() - started)
            if progress:
                progress(len(alone), len(prompts))
    else:
        ready = method.begin(model, prompts, watched, reserve)
        stage("answering")
        placed = perf_counter()
        logits = finish(model, ready)
    stream = decode_ready(model, tokenizer, ready, logits, params)
    steps = list(islice(stream, 1))
    first = perf_counter()
    tokens = by_request([*steps, *stream], len(prompts))
    seconds = watched.seconds | {"prefill": first - placed, "decode": perf_counter() - first}
    seconds["place"] = placed - begin - sum(watched.seconds.values())
    positions = getattr(method, "positions", "re-encoded")
    receipts = receipts_of(as_computed(model, method, prompts), ready, watched.lookups, positions)
    generations = [
        Generation(
            tuple(answer),
            text_of(tokenizer, answer, params.stops),
            r.computed,
            r.reused,
            first - begin,
            r.passes,
            with_seconds(one, seconds),
            time,
        )
        for answer, r, one, time in zip(tokens, ready, receipts, alone or [None] * len(ready), strict=True)
    ]
    return Answered(generations, logits, engine, lambda: ready)


def decode_ready(
    model: PreTrainedModel,
    tokenizer: Any,
    ready: Sequence[ReadyRequest],
    logits: Sequence[Tensor],
    params: SamplingParams,
) -> Iterator[Tokens]:
    """Decode the answers of prefilled requests, with the mask rules and backends of their plans."""
    kvs, rules = [r.request.kv for r in ready], [r.request.plan.sees for r in ready]
    backends = [r.request.plan.backend for r in ready]
    return decode(model, kvs, logits, tokenizer=tokenizer, sees=rules, backends=backends, **vars(params))


def method_of(mode: Method | str, prompts: Sequence[Prompt] = (), tokenizer: Any = None) -> Method:
    """Return the method with this name, or `mode` itself if it is a method.

    A published method takes neighbours from the passages of `prompts`.
    """
    if not isinstance(mode, str):
        if not hasattr(mode, "begin"):
            raise not_allowed("mode", mode, (*MODES, "a published method", "methods of workbench.methods"))
        return mode
    if mode in MODES:
        return MODES[mode]
    if not prompts or mode not in presets.METHODS:
        published = [name for name in presets.METHODS if prompts and name not in MODES]
        raise not_allowed("mode", mode, (*MODES, *published, "methods of workbench.methods"))
    from workbench.data.retrieval_corpus import Corpus
    from workbench.methods.config import MethodConfig

    return MethodConfig(**presets.options(mode, {})).method(Corpus.of_prompts(prompts, tokenizer))


def first_token(
    model: PreTrainedModel,
    prompt: Prompt,
    mode: Method | str = "full",
    store: Store | None = None,
    engine: str = "auto",
) -> int:
    """Return the most likely first token of an answer: the work that TTFT measures.

    The input is token ids (and blocks in a store), the output a token id on the host.
    """
    method = method_of(mode)
    store = _store_of(store)
    if choose_engine(model, method, [prompt], 1, engine).name == "contiguous":
        (logits,) = finish(model, method.begin(model, [prompt], store))
        return int(logits.argmax())
    (request,) = requests_of(model, None, [prompt], method, store, SamplingParams(max_new_tokens=1))
    request.eos = frozenset()
    with pages_of(model).use(model):
        return next(token for _, token in PagedAnswers(model, [request]).run())
