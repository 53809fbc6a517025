"""Build the trials of a sweep, every combination of lists of fields once, and check them before the first one runs.

Checks cover models, dtypes, devices, data, layouts, judges, fitted sparse methods, folders of cached blocks, the length
of every prompt, what methods need of a model, and charged budgets. Passages with fewer neighbours than requested are
reported.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from workbench import data, models
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput, first_line
from workbench.core.utils.files import digest
from workbench.data import chat_template
from workbench.data.layouts import Layout
from workbench.data.sample import Sample
from workbench.data.sources import folders
from workbench.experiments.sweeps import sweep_plan
from workbench.experiments.sweeps.sweep_plan import FIELDS
from workbench.experiments.trials import budget
from workbench.experiments.trials.trial import Trial
from workbench.experiments.trials.trial_measures import check_context
from workbench.methods import own, prepare, presets, seer_gate
from workbench.methods.method_fields import REUSE
from workbench.methods.modes.reuse import Reuse
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.seer_attention import SeerAttention
from workbench.methods.sparse.xattention import Xattention
from workbench.metrics import cost
from workbench.metrics.faithfulness import check_judge
from workbench.models.checkpoints import base_folder
from workbench.models.families import decoder_config
from workbench.models.loading import Loaded
from workbench.models.model_card import UNREADABLE, layout_of, tokenizer_of
from workbench.models.model_names import check_device, check_dtype, check_length
from workbench.models.weights import soft_tokens
from workbench.store.urls import opened

SHOWN = 3  # maximum number of problems in a message


class _Model:
    """Facts about a model that need no weights, each read once."""

    def __init__(self, name: str, loaded: Loaded | None):
        self.name, self.loaded = name, loaded

    @cached_property
    def folder(self) -> Path:
        path = models.folder(self.name)
        models.check(path)
        return path

    @cached_property
    def config(self) -> PreTrainedConfig:
        if self.loaded:
            return decoder_config(self.loaded.model.config)
        base = base_folder(self.folder)
        try:
            return decoder_config(AutoConfig.from_pretrained(base, local_files_only=True))
        except UNREADABLE as problem:
            raise BadInput(f"{base} has a config.json that cannot be read: {first_line(problem)}") from None

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.loaded.tokenizer if self.loaded else tokenizer_of(base_folder(self.folder))

    def layout(self, name: str | None) -> Layout:
        """Return the layout with this name; the model's own for None."""
        if name is not None:
            return chat_template.layout_named(name, self.tokenizer)
        return self.loaded.layout if self.loaded else layout_of(self.folder, self.tokenizer)

    @cached_property
    def shell(self) -> PreTrainedModel:
        """The model without weights, or the model itself if it is in memory."""
        if self.loaded:
            return self.loaded.model
        shell = cost.shell(self.config)
        soft_tokens.load(shell, self.folder)
        return shell

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a prompt with its answer."""
        return getattr(self.config, "max_position_embeddings", None)

    @cached_property
    def fitted_to(self) -> Path:
        """Folder of the weights that a gate belongs to."""
        return models.folder(str(self.loaded.model.config.name_or_path)) if self.loaded else self.folder


def check(trials: Sequence[Trial], loaded: Loaded | None = None, here: bool = True) -> None:
    """Raise BadInput, naming the problems and how many trials have them, before any trial runs."""
    if wrong := problems(trials, loaded, here):
        raise BadInput(describe_problems(wrong, len(trials)))


def problems(trials: Sequence[Trial], loaded: Loaded | None = None, here: bool = True) -> dict[str, list[Trial]]:
    """Return {problem: the trials that cannot run because of it}.

    loaded  the model of all trials, if it is in memory
    here    False: they run on other machines, which may have other devices
    """
    known: dict[str, _Model] = {}
    by_problem: dict[str, list[Trial]] = {}
    samples_of, prompts_of = lru_cache(maxsize=4)(_samples), lru_cache(maxsize=4)(_prompts)
    for trial in trials:
        model = known.setdefault(trial.model, _Model(trial.model, loaded))
        try:
            _check_place(trial, model, here)
            _check_method(trial, model)
            samples = samples_of(trial.data, trial.samples, trial.seed, trial.passages)
            if trial.faithfulness is not None:
                check_judge(trial.faithfulness, samples)
            prompts = prompts_of(model, trial.layout, trial.data, trial.samples, trial.seed, trial.passages)
            check_context(model.context, samples, prompts)
            _check_choices(trial, model, prompts)
        except BadInput as problem:
            by_problem.setdefault(str(problem), []).append(trial)
    return by_problem


def describe_problems(problems: dict[str, list[Trial]], count: int) -> str:
    """Return a message on the problems, with the number of trials of each; further problems are only counted."""
    if count == 1:
        return next(iter(problems))
    wrong = sum(map(len, problems.values()))
    parts = [f"{problem} ({_which(of, count)})" for problem, of in list(problems.items())[:SHOWN]]
    more = f"; and {len(problems) - SHOWN} more problems" if len(problems) > SHOWN else ""
    head = f"{wrong} of {count} trials cannot run: " if len(problems) > 1 else ""
    return f"{head}{'; '.join(parts)}{more}"


def _which(trials: Sequence[Trial], count: int) -> str:
    return f"{len(trials)} of {count} trials" if len(trials) > 1 else "1 trial"


def _check_place(trial: Trial, model: _Model, here: bool) -> None:
    if model.loaded is None:
        _ = model.folder
        if trial.dtype is not None:
            check_dtype(trial.dtype)
        if here:
            models.device_of(trial.device)
        else:
            check_device(trial.device)
    check_length(trial.max_new_tokens, model.context)
    if trial.prepared is not None:
        opened(trial.prepared)


def _check_method(trial: Trial, model: _Model) -> None:
    """Reject a sparse method without its gate or thresholds, or with groups that do not fit the model's heads."""
    for tiles in _nested(trial.tiles()):
        if isinstance(tiles, SeerAttention):
            seer_gate.training(Path(tiles.gate) if tiles.gate else model.fitted_to / seer_gate.FILE)
        if isinstance(tiles, Xattention) and isinstance(name := tiles.threshold, str) and not Path(name).is_file():
            raise BadInput(f"there are no thresholds {name!r}: `workbench sparse profile` writes them")
        if isinstance(tiles, Compact):
            tiles.group(model.config.num_attention_heads, model.config.num_key_value_heads)


def _nested(tiles: Sparse | None) -> Iterator[Sparse]:
    while tiles is not None:
        yield tiles
        tiles = tiles.inner if isinstance(tiles, Compact) else None


def _samples(name: str, samples: int, seed: int, passages: int | None) -> list[Sample]:
    return data.load(name, samples, seed, passages, answered=False)


def _prompts(
    model: _Model, layout: str | None, name: str, samples: int, seed: int, passages: int | None
) -> list[Prompt]:
    return model.layout(layout).prompts(_samples(name, samples, seed, passages), model.tokenizer)


def _check_choices(trial: Trial, model: _Model, prompts: Sequence[Prompt]) -> None:
    """Reject a method that the model cannot run, or a budget that it cannot meet; warn of too few neighbours."""
    layout = model.layout(trial.layout)
    method = trial.method(trial.corpus(layout, model.tokenizer), system=bool(layout.system))
    method.check(model.shell, prompts)
    if trial.charged is not None:
        budget.fit_to_budget(model.shell, method, prompts, trial.charged)
    if isinstance(method, Reuse):
        prepare.few_neighbours_note(method.prepare, model.context, prompts)


READ = 1 << 26


@dataclass(frozen=True)
class Case:
    """A trial of a sweep, and the published method it was requested by, if any.

    origin   columns of its rows that replace the trial's own, as (name, value)
    """

    trial: Trial
    method: str = ""
    origin: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def key(self) -> str:
        """Hash of the trial and of the state of its files and own code, so that stale results are not reused."""
        state: list[Any] = [self.trial.settings(), files_of(self.trial)]
        code = [own.state(kind, str(getattr(self.trial, kind))) for kind in own.KINDS]
        state += [code] if any(code) else []
        return sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The model and all fields that are not at their defaults, as text."""
        default = asdict(Trial(self.trial.model))
        settings = [f"{name}={value}" for name, value in asdict(self.trial).items() if value != default[name]]
        return ", ".join([self.trial.model, *settings])


def cases(base: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Return the trials of a sweep, without duplicates.

    A listed field that does not apply (a ratio without a selector, a selector under full attention) is set to its
    default, so that combinations that are the same trial run once.
    """
    sweep_plan.check_lists(lists)
    trials: dict[Trial, Case] = {}
    for values in product(*lists.values()):
        combination = dict(zip(lists, values, strict=True))
        method = combination.pop("method", None)
        options = {**base, **presets.options(method, combination)}
        if options["mode"] != "block":
            options |= {name: getattr(Trial, name) for name in REUSE if name in combination}
        elif options["select"] == options.get("correct", "none") == "none":
            options |= {name: None for name in ("ratio", "charged") if name in combination}
        trial = Trial(**options)
        trials.setdefault(trial, Case(trial, method or ""))
    return list(trials.values())


def files_of(trial: Trial) -> list[list[Any]]:
    """List name and state of the files that a trial reads: contents, or size and time of files over READ bytes.

    A folder of results can therefore be continued with copies of the same files, on another machine too. Cached blocks
    are left out: they are identified by their contents, and a trial adds to its store.
    """
    try:
        paths = sorted(path for path in models.folder(trial.model).iterdir() if path.is_file())
    except BadInput:
        paths = []  # a model that is in memory only
    documents = folders.folder_source(trial.data)
    paths += sorted(documents[0].rglob("*")) if documents else []
    paths += map(Path, filter(None, (trial.data, trial.layout)))
    paths = [path for path in paths if path.is_file()] + own.files()
    return [_state(path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


@lru_cache(maxsize=4096)
def _state(path: Path, size: int, changed: int) -> list[Any]:
    return [path.name, digest(path)] if size <= READ else [path.name, size, changed]


def read_plan(path: Path, overrides: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Return the trials of a plan, without duplicates; `overrides` replace the plan's values of the same fields.

    Raises BadInput for a file that is not a plan.
    """
    found = [case for part in sweep_plan.parts(path, overrides) for case in _cases(part)]
    return list({(case.trial, case.method): case for case in found}.values())


def _cases(part: sweep_plan.Part) -> Iterator[Case]:
    base = {name: getattr(Trial, name, None) for name in FIELDS}
    for case in cases(base, part.lists):
        name, model = part.training_of, case.trial.model
        origin = {"model": name, "training_seed": models.training_seed(model)} if name else {}
        yield replace(case, method=part.label or case.method, origin=tuple(origin.items()))
