"""Where modules of earlier versions are now, so that notebooks written for them still run.

`workbench/__init__.py` puts `Finder` behind Python's own finders, which come first.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import ModuleType
from typing import Any

# folder today: modules that lay at the top of the package, as `name` or as `old_name=name`
_ROOMS = {
    "core": "blocks errors kv masks plan rope tiles rules=mask_rules grid=tile_grid keeping=tile_selection "
    "scores=block_scores whole=files",
    "data": "assets corpus=retrieval_corpus embedders layouts segment reading=prompt_view",
    "models": "families untrained=random_init freed=allocator",
    "engine": "attention executors=backends chunked decoding weights=attention_maps "
    "tilewise=block_sparse fused=compile graphs=cuda_graphs pool=paged_pool steps=static_batch",
    "methods": "prepare select sparse generation way=config editing=incremental prepared=precompute "
    "published=presets menu=registry gates=seer_gate",
    "experiments": "trial record sweep cases=sweep_grid sessions turnover=session_replay ttft lengths=ttft "
    "timings=bench_reports bench",
    "training": "lab tuning distill",
    "plots": "comparison=sweep_curves",
    "app": "cli commands explore notebook batch=notebook_run report pages=html thumbnail",
}
# the same for modules that lay in a folder already
_MERGED = {
    "metrics": "causes=kv_deviation drift=position_drift repair=kv_deviation deviation=kv_deviation choices=selection "
    "places=selection antecedents=selection turning=position_encoding rounding=position_encoding "
    "exactness=position_encoding counts=sparsity_counts stages=latency published=published_numbers "
    "misses=tile_recall states=tile_states mass=attention_mass",
    "experiments": "lengths=ttft answered_at_ratio=faithful_results",
    "plots": "selectors=looks sparse_methods=looks contestants=looks fates=looks length=cost profiles=lines "
    "planes=lines steps=block_finetuning turnover=block_history rounding=lines savings=mask_savings strip=prompt_strip "
    "reuse=token_sources breakdown=bars "
    "history=block_history forest=intervals quality=intervals peers=intervals attention=attention_mass "
    "blockmass=attention_mass naive=position_drift rotation=position_encoding exactness=position_encoding "
    "coloured=chosen_tokens ratios=ratio_outcomes agreement=chosen_places tiles=tile_recall turning=tile_recall "
    "overview=tile_overview rescues=bfla_rules answered_at_ratio=faithful_answers",
}
FUNCTIONS = ("latency", "masks", "store", "tradeoff")  # explorers today, and modules of earlier versions
MODULES = (
    {
        f"workbench.{old}": f"workbench.{room}.{name or old}"
        for room, names in _ROOMS.items()
        for old, _, name in (entry.partition("=") for entry in names.split())
    }
    | {
        f"workbench.{folder}.{old}": f"workbench.{folder}.{name}"
        for folder, names in _MERGED.items()
        for old, _, name in (entry.partition("=") for entry in names.split())
    }
    | {
        "workbench.kernels.page_attention": "workbench.kernels.page_list_attention",
        "workbench.methods.full": "workbench.methods.modes.full",
        "workbench.methods.reuse": "workbench.methods.modes.reuse",
        "workbench.methods.superposition": "workbench.methods.modes.superposition",
        "workbench.probing": "workbench.models.spec",
        "workbench.packed": "workbench.engine.encoding",
        "workbench.store.identity": "workbench.store.keys",
        "workbench.bench.peers": "workbench.experiments.bench.baselines",
        "workbench.bench.one_shot": "workbench.experiments.bench.operations",
        "workbench.experiments.bench.peers": "workbench.experiments.bench.baselines",
        "workbench.lab.recipe": "workbench.training.lab.config",
        "workbench.tuning.recipe": "workbench.training.tuning.config",
        "workbench.training.lab.recipe": "workbench.training.lab.config",
        "workbench.training.tuning.recipe": "workbench.training.tuning.config",
        "workbench.prepare.alone": "workbench.methods.prepare.independent",
        "workbench.prepare.isolated": "workbench.methods.prepare.after_system",
        "workbench.prepare.similar": "workbench.methods.prepare.with_neighbours",
    }
    | {f"workbench.app.explore.{old}": f"workbench.app.explore.live_{old}" for old in FUNCTIONS}
)


def now(name: str) -> str | None:
    """Return the name today of module `name` of an earlier version; None where there was none of that name."""
    parent, child = name, ""
    while parent and parent not in MODULES:
        parent, _, last = parent.rpartition(".")
        child = f".{last}{child}"
    return MODULES[parent] + child if parent else None


# what a module of an earlier version held: its name today, where that differs; "module:name" where it went elsewhere
NAMES = {
    "workbench.Step": "PrefillOutput",
    "workbench.Work": "PrefillRequest",
    "workbench.notebook.Rule": "Check",
    "workbench.way.Way": "MethodConfig",
    "workbench.whole.whole": "write_atomically",
    "workbench.distill.Recipe": "GateConfig",
    "workbench.lab.recipe.Recipe": "PretrainConfig",
    "workbench.lab.train.Progress": "PretrainProgress",
    "workbench.tuning.recipe.Recipe": "TuneConfig",
    "workbench.tuning.train.Progress": "TuneProgress",
    "workbench.tuning.train.Run": "TuneRun",
    "workbench.tuning.examples.Turn": "QuestionAnswer",
    "workbench.tuning.packing.Packed": "PackedExamples",
    "workbench.tuning.attention.Part": "MaskBlock",
    "workbench.probing.Facts": "ModelSpec",
    "workbench.probing.facts_of": "attach",
    "workbench.sparse.oracle.Oracle": "OracleTiles",
    "workbench.sparse.random.Random": "RandomTiles",
    "workbench.select.oracle.Oracle": "OracleTokens",
    "workbench.select.random.Random": "RandomTokens",
    "workbench.prepare.alone.Alone": "Independent",
    "workbench.prepare.isolated.Isolated": "AfterSystem",
    "workbench.prepare.similar.Similar": "WithNeighbours",
    "workbench.attention.Enough": "StopForward",
    "workbench.keeping.Rule": "TileRule",
    "workbench.lengths.computed": "computed_by_mode",
    "workbench.experiments.lengths.computed": "computed_by_mode",
    "workbench.ttft.WAYS": "METHODS",
    "workbench.ttft.computed": "computed_totals",
    "workbench.ttft.Part": "partial_store",
    "workbench.ttft.in_turns": "interleaved",
    "workbench.ttft.methods": "engine_methods",
    "workbench.timings.cards": "gpus",
    "workbench.timings.rivals": "baselines",
    "workbench.timings.spoken": "workload_name",
    "workbench.bench.whole_model.Contestant": "Candidate",
    "workbench.bench.whole_model.Entry": "Comparison",
    "workbench.bench.run.card": "gpu_facts",
    "workbench.bench.choices.dialled": "with_density",
    "workbench.bench.choices.variants": "workbench.experiments.bench.variants:variants",
    "workbench.bench.check.Outcome": "Verdict",
    "workbench.sweep.Outcome": "SweepResult",
    "workbench.masks.Rule": "MaskRule",
    "workbench.metrics.causes.computed": "full_attention_kv",
    "workbench.metrics.mass.Mass": "AttentionMass",
    "workbench.metrics.misses.Causes": "BflaRules",
    "workbench.metrics.misses.causes": "bfla_rules",
    "workbench.metrics.misses.Window": "TileWindow",
    "workbench.metrics.states.of_prompt": "dense_states",
    "workbench.metrics.states.synthetic": "synthetic_states",
    "workbench.metrics.turning.Turning": "KeyRotation",
    "workbench.metrics.turning.turning": "key_rotation",
    "workbench.plots.breakdown.COLOURS": "workbench.plots.styles:STAGE_COLOURS",
    "workbench.plots.turning.Turn": "ThresholdStep",
    "workbench.plots.turning.Curve": "DensityCurve",
    "workbench.plots.turning.turning": "by_threshold",
    "workbench.plots.overview.WAYS": "REDUCTIONS",
    "workbench.plots.rescues.rescues": "bfla_rules",
    "workbench.plots.rescues.first_cause": "first_rule",
    "workbench.plots.naive.naive": "drift",
    "workbench.plots.ratios.Outcome": "RatioOutcome",
    "workbench.plots.peers.peers": "baseline_ratios",
    "workbench.plots.selectors.LOOKS": "SELECTORS",
    "workbench.plots.sparse_methods.LOOKS": "SPARSE_METHODS",
    "workbench.plots.contestants.LOOKS": "BASELINES",
    "workbench.plots.fates.FATES": "REUSE_STATUSES",
    "workbench.plots.fates.hovers": "block_hovers",
    "workbench.plots.rescues.CAUSES": "RULES",
    "workbench.plots.rounding.STYLES": "SCHEMES",
    "workbench.plots.quality.ORDER": "KINDS",
    "workbench.plots.length.Panel": "cost_panel",
    "workbench.plots.length.Series": "cost_series",
    "workbench.plots.profiles.Panel": "profile",
    "workbench.plots.planes.Plane": "plane",
    "workbench.plots.planes.looks_of": "workbench.plots.styles:looks_of",
} | {
    f"workbench.plots.{module}.{name}": f"{table}.{name}"
    for module, table in {
        "selectors": "SELECTORS",
        "sparse_methods": "SPARSE_METHODS",
        "contestants": "BASELINES",
    }.items()
    for name in ("name_of", "colour_of", "symbol_of", "start_of", "maker", "colours")
}


def renames(module: str) -> bool:
    """Whether something in module `module` of an earlier version has another name today."""
    return any(name.rpartition(".")[0] == module for name in NAMES)


class Moved(ModuleType):
    """A module under its earlier name: every attribute is read from where it is today."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__doc__"):
            raise AttributeError(name)
        module, _, today = NAMES.get(f"{self.__name__}.{name}", name).rpartition(":")
        return attrgetter(today)(import_module(module or now(self.__name__) or ""))

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Call the function that has this name today: Python puts an imported module in its place."""
        package, _, name = self.__name__.rpartition(".")
        return vars(import_module(now(package) or package))["__getattr__"](name)(*given, **options)


class Finder(MetaPathFinder, Loader):
    """Finds modules of earlier versions."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        today = now(fullname)
        return ModuleSpec(fullname, self, is_package=True) if today and today != fullname else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        import_module(now(spec.name) or "")  # a missing module is reported under the name that it has today
        return Moved(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: attributes are read when they are asked for."""


def install() -> None:
    """Make modules of earlier versions importable; a second call does nothing."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
