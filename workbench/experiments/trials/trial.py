"""Run a trial: one model, one data set, one method; it returns a `Record`."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from itertools import zip_longest
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench import data, models
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput, format_value
from workbench.core.utils.annotations import check_fields
from workbench.core.utils.stages import stage
from workbench.core.utils.watched import Progress, progress_shown
from workbench.data import Sample, layouts
from workbench.data.layouts import Layout
from workbench.data.retrieval_corpus import Corpus
from workbench.data.sources import files as given_samples
from workbench.experiments.trials import budget, trial_measures
from workbench.experiments.trials.record import Record, device_name, versions
from workbench.experiments.trials.trial_fields import TrialFields
from workbench.experiments.trials.trial_fields import check_fields as check_given
from workbench.experiments.trials.trial_measures import (
    FidelityWatch,
    cache_of,
    check_context,
    content_of,
    costs,
    first_tokens,
    mean,
    receipts,
)
from workbench.methods import Method, own, own_function, registry
from workbench.methods import generation as generating
from workbench.methods import prepare as preparations
from workbench.methods.answered import Generation
from workbench.methods.config import MethodConfig
from workbench.methods.engines import choose_engine, default_pool_tokens
from workbench.methods.method import SamplingParams
from workbench.methods.method_fields import check_engine, check_ratio_used
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.preprocessing.precompute import kind_of
from workbench.methods.sparse._small import CHUNKED, for_short_prompts
from workbench.metrics.answers import Records
from workbench.metrics.faithfulness import check_judge, judge
from workbench.metrics.faithfulness import faithfulness as measure_faithfulness
from workbench.metrics.latency import WARM, WARM_UP, Quantiles, measure, quantiles
from workbench.metrics.quality import of_answered
from workbench.metrics.tiles.sparsity import measure as measure_sparsity
from workbench.models.loading import Loaded
from workbench.models.model_names import check_length
from workbench.store import MemoryStore, Store
from workbench.store.urls import is_begun, opened, place_of
from workbench.store.views import CountingStore, KeepingStore

BATCH_TOKENS = 16384  # maximum number of prompt tokens per batch, whatever `batch` is, or half of a pool on a GPU
# Fields missing in records of earlier versions.
LATER = ("faithfulness", "fidelity", "layout", "store", "receipt", "engine", "charged")
FULL_TIMED = 5  # maximum number of prompts to time full attention on
FULL_SECONDS = 5.0  # time after which no further timing starts
SPARSE_PROMPTS = 8  # maximum number of prompts on which to compare sparse with dense attention


@dataclass(frozen=True, repr=False)
class Trial(TrialFields, MethodConfig):
    """A method on a model and questions, by the fields of `TrialFields`.

    In Python, policies may be objects, `select` also a function of (prompt) or (model, prompt, kv)
    (`methods.own_function`), and `data` anything that `data.load` takes. Raises BadInput for a value that is not
    allowed, before anything is loaded.
    """

    def __post_init__(self) -> None:
        for name in own.KINDS:  # replaces policy objects by their specs
            if not isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, _spec(name, given))
        if not isinstance(given := vars(self)["data"], str):
            object.__setattr__(self, "data", given_samples.save_samples(given))
        check_fields(self)
        check_given(vars(self))
        self.check()
        if self.faithfulness is not None:
            check_judge(self.faithfulness)
        layouts.check(self.layout)
        check_engine(self.engine)

    def settings(self) -> dict[str, Any]:
        """Return the fields as results store them; unset fields that earlier versions lack are left out."""
        values = asdict(self)
        for name in LATER:
            if values[name] == getattr(Trial, name):
                del values[name]
        return values

    def run(self, progress: Progress | None = None, loaded: Loaded | None = None) -> Record:
        """Answer all questions, measure, and score.

        `loaded` is the model if it is in memory already (`models.load`). `progress` is called after each batch; without
        it, interactive sessions show a bar. Raises BadInput, before any work, for unknown names, invalid files, a ratio
        without a selector, and a prompt over the model's context.
        """
        if self.ratio != Trial.ratio:  # a sweep may still choose a selector
            check_ratio_used(vars(self))
        with progress_shown(self.model, progress) as tell:
            return self.run_each(tell, loaded)[0]

    def run_each(
        self, progress: Progress | None = None, loaded: Loaded | None = None, store: MemoryStore | None = None
    ) -> tuple[Record, Records]:
        """Return the record, and one row per question: {id, kind, answer, expected, em, f1}, in the order of the data.

        With `fidelity`, a row also has what `metrics.fidelity.compare` returns, and `full_em`: full attention's score.
        `store` holds blocks that other trials have cached; hit rate and seconds are then those of a warm store.
        """
        samples = data.load(self.data, self.samples, self.seed, self.passages, answered=False)
        if self.faithfulness is not None:
            check_judge(self.faithfulness, samples)
        loaded = models.Loaded(*(loaded or models.load(self.model, self.device, self.dtype, self.layout)))
        loaded = loaded.with_layout(self.layout)
        model, tokenizer, layout = loaded
        prompts = layout.prompts(samples, tokenizer)
        check_context(loaded.spec.context, samples, prompts)
        check_length(self.max_new_tokens, loaded.spec.context)
        method = self.method(self.corpus(layout, tokenizer), system=bool(layout.system))
        method.check(model, prompts)
        if self.charged is not None:
            method = budget.fit_to_budget(model, method, prompts, self.charged)
        fewer = preparations.few_neighbours_note(getattr(method, "prepare", None), loaded.spec.context, prompts)
        engine = choose_engine(model, method, prompts, self.max_new_tokens, self.engine)
        created = self.store is not None and store is None and not is_begun(place_of(self.store))
        if store is None:  # not `or`: an empty store is falsy
            store = self._opened(method, loaded)
        before = store.stats
        watch = FidelityWatch(loaded, samples, prompts, method, self.max_new_tokens) if self.fidelity else None
        begin = time.perf_counter()
        generations = self.answer(prompts, loaded, store, progress, method, watch)
        seconds = time.perf_counter() - begin - (watch.seconds if watch else 0)
        lookups = store.stats.since(before)
        stored = _blocks_reused(store, created)
        jobs = first_tokens(model, prompts[: self.timed], method, self.engine, store)
        cold = model.device.type != "cpu" or seconds <= WARM  # a CPU is warm from answering these prompts
        ttft = measure(jobs, model.device, WARM_UP if cold else 0)
        full = self._full_times(model, prompts, method, watch.full if watch else ())
        texts = [generation.text.strip() for generation in generations]
        compared = watch.rows if watch else []
        rows = [trial_measures.row(*each) for each in zip_longest(samples, texts, compared)]
        few = prompts[: min(self.timed, SPARSE_PROMPTS)]
        stage("measuring what is left out")
        sparsity = self._sparsity(model, few)
        in_full_note = trial_measures.in_full(method, prompts, generations)
        record = Record(
            **trial_measures.quality(rows, samples, self.seed),
            **costs(model, prompts, generations),
            trial=self.settings() | ({} if self.charged is None else {"ratio": getattr(method, "ratio", None)}),
            by_kind=trial_measures.by_kind(rows, samples, self.seed),
            answered=of_answered(rows, self.seed),
            ttft_s=ttft,
            ttft_full_s=full,
            prompt_tokens=mean([len(prompt) for prompt in prompts]),
            hit_rate=lookups.hit_rate,
            misses=dict(lookups.reasons) if lookups.hits + lookups.misses else None,
            seconds=seconds,
            device=device_name(model.device),
            versions=versions() | data.versions(self.data) | own.versions(),
            sparsity=sparsity,
            faithfulness=self._judged(samples, texts),
            note=" ".join(filter(None, (models.note_of(self.model), fewer, in_full_note, self._unused(sparsity, few)))),
            stored=stored,
            receipts=receipts(samples, generations) if self.receipt else None,
            engine=str(engine) if engine.name == "paged" or self.engine != "auto" else None,
        )
        return record, rows

    def _opened(self, method: Method, loaded: Loaded) -> MemoryStore:
        """Return an empty store in memory, backed by the folder or URL of cached blocks if one is given."""
        backing: Store | None = None
        if isinstance(method, Reuse) and (place := self.store or self.prepared):
            backing = opened(place, kind_of(loaded.model, method.prepare, loaded.tokenizer), new=bool(self.store))
            backing = CountingStore(KeepingStore(backing) if self.store else backing)
        return MemoryStore(int(self.store_gib * 2**30), behind=backing)

    def _sparsity(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> dict[str, Any] | None:
        """Return what the sparse method keeps and misses on `prompts`; None without a sparse method."""
        tiles = self.tiles()
        return None if tiles is None else measure_sparsity(model, prompts, tiles.for_model(model), self.chunk).record()

    def _full_times(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], method: Method, known: Sequence[float]
    ) -> Quantiles | None:
        """Return full attention's time to first token on some of the timed prompts; None without a comparison.

        `known`: its seconds per prompt, if the references were computed one by one.
        """
        if not self.fidelity or method == Full():
            return None
        if len(known) == len(prompts) and self.engine != "paged":
            return quantiles(known[: self.timed])
        few = prompts[: min(self.timed, FULL_TIMED)]
        times, key = cache_of(model).times, (content_of(few), self.engine)
        if key not in times:
            jobs = first_tokens(model, few, Full(), self.engine)
            cold = int(model.device.type != "cpu")  # the references were computed just now
            times[key] = measure(jobs, model.device, cold, FULL_SECONDS)
        return times[key]

    def _judged(self, samples: Sequence[Sample], texts: Sequence[str]) -> dict[str, Any] | None:
        """Return how well the passages support the answers; None without a judge."""
        if self.faithfulness is None:
            return None
        return asdict(
            measure_faithfulness(judge(self.faithfulness, self.device, self.dtype), samples, texts, self.seed)
        )

    def _unused(self, sparsity: dict[str, Any] | None, prompts: Sequence[Prompt]) -> str:
        """Return a hint if a sparse method dropped nothing, with options for prompts of this length; else ""."""
        if sparsity is None or sparsity["density"] < 1 or registry.parse(self.sparse)[0] == "dense":
            return ""
        length = max(map(len, prompts))
        fits = for_short_prompts(self.sparse, length)
        finding = f"{self.sparse} keeps every tile of prompts of {length:,} tokens, so attention is dense here"
        if registry.parse(self.sparse)[0] in CHUNKED and self.chunk is None:
            rows = max(128, getattr(self.tiles(), "size", 1))
            return f"{finding}: it selects among tokens of earlier chunks: add --chunk {rows}."
        more = f"; options for such prompts: --sparse {fits!r}." if fits != self.sparse else ": choose smaller tiles."
        return finding + more

    def corpus(self, layout: Layout, tokenizer: PreTrainedTokenizerBase) -> Corpus | None:
        """Return the passages that neighbours come from, if the preprocessing uses any."""
        policy, _ = registry.find_policy(preparations.__name__, self.prepare, ("corpus",))
        if not hasattr(policy, "neighbours"):
            return None
        return Corpus.of(data.corpus(self.data, self.samples, self.seed, self.passages), layout, tokenizer)

    def answer(
        self,
        prompts: Sequence[Prompt],
        loaded: Loaded,
        store: MemoryStore,
        progress: Progress | None = None,
        method: Method | None = None,
        watch: FidelityWatch | None = None,
    ) -> list[Generation]:
        """Generate greedy answers to prompts; cached blocks come from `store` and stay in it.

        Prompts run in batches or, over pages, `batch` at a time, where a finished request is replaced by the next.
        """
        model, tokenizer, layout = loaded
        method = method or self.method()
        options: dict[str, Any] = {"params": SamplingParams(self.max_new_tokens, stop=layout.stop)}
        options |= {"engine": self.engine, "keep": watch is not None, "most": self.batch}
        if watch is None and choose_engine(model, method, (), 1, self.engine).name == "paged":
            return generating.answer(model, tokenizer, prompts, method, store, progress=progress, **options).generations
        generations: list[Generation] = []

        def tell(ended: int = 0, _of: int = 0) -> None:
            if progress:
                progress(len(generations) + ended, len(prompts))

        tell()
        for batch in batches(
            [len(prompt) for prompt in prompts], self.batch, max(BATCH_TOKENS, default_pool_tokens(model) // 2)
        ):
            if watch:
                watch.expect(batch, tell)
            stage("answering")
            batch_prompts = [prompts[i] for i in batch]
            answered = generating.answer(model, tokenizer, batch_prompts, method, store, progress=tell, **options)
            generations += answered.generations
            if watch:
                watch(batch, answered)
            del answered  # frees its pages before the next batch
            tell()
        return generations


def _blocks_reused(store: MemoryStore, created: bool) -> dict[str, Any] | None:
    """Return how many blocks the store behind had and how many were encoded; None without one."""
    behind = store.behind
    if not isinstance(behind, CountingStore):
        return None
    return {"reused": len(behind.reused), "encoded": len(behind.missed), "created": created}


def _spec(name: str, policy: Any) -> str:
    """Register a policy object, and return its spec."""
    if is_dataclass(policy) and not isinstance(policy, type):
        if not type(policy).__module__.startswith(f"workbench.methods.{name}"):
            own.register(type(policy))
        return registry.spec_of(policy)
    if name == "select" and callable(policy) and not isinstance(policy, type):
        return registry.spec_of(own_function.selector(policy))
    what = "a policy" if name != "select" else "a function, or a policy"
    raise BadInput(
        f"{name} is {format_value(policy)}: a name, or {what} as those of workbench.methods.{name}, is needed"
    )


def batches(lengths: Sequence[int], most: int, tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Yield indices in order, grouped to at most `most` requests and `tokens` tokens (a longer prompt is alone)."""
    group: list[int] = []
    for i, length in enumerate(lengths):
        if group and (len(group) == most or sum(lengths[j] for j in group) + length > tokens):
            yield group
            group = []
        group.append(i)
    if group:
        yield group
