"""Modules of earlier versions are found under their old names, with the names that they held."""

from importlib import import_module

import pytest

METRICS = {
    "causes": "Causes causes computed",
    "deviation": "Deviation deviation squared concentration",
    "drift": "POSITIONS drift",
    "repair": "Repair repair",
    "choices": "MEASURES agreement",
    "places": "chosen by_offset by_block summary",
    "antecedents": "antecedents",
    "turning": "Turning turning",
    "rounding": "SCHEMES shift_errors",
    "exactness": "TOLERANCE TINY tiny tiny_configs exactness differences",
    "counts": "Head Counts of_layer of_rows SEVERAL",
    "stages": "STAGES Stages Stopwatch stages",
    "mass": "Mass busiest peak overlap masked reused softmax",
    "misses": "Chosen chosen needed choice Union union Window window Causes causes",
    "states": "States of_prompt synthetic",
    "published": "TABLE_2 TABLE_3 QUESTION LLAMA_3_8B",
}


@pytest.mark.parametrize("module", METRICS)
def test_what_a_module_of_the_metrics_held_is_found_under_its_old_name(module):
    old = import_module(f"workbench.metrics.{module}")
    for name in METRICS[module].split():
        assert getattr(old, name) is not None


EXPERIMENTS = {
    "lengths": "prompt_of_length measured computed published",
    "experiments.lengths": "prompt_of_length measured computed computed_as_published published",
    "ttft": "WAYS WORK Part in_turns methods jobs_of filled stock_of by_length by_ratio computed ceilings",
    "timings": "reports split missing table cards ceilings against by_context by_density rivals spoken here",
    "sweep": "Outcome Failed sweep run difference",
    "bench.peers": "NAMES chosen torchs",
    "bench.run": "card driver entry result add before",
    "bench.check": "Outcome check",
    "bench.choices": "dialled variants WORKLOADS",
    "bench.whole_model": "Contestant Entry Scene measured",
    "bench.one_shot": "Counted at_density long",
}


@pytest.mark.parametrize("module", EXPERIMENTS)
def test_what_a_module_of_the_experiments_held_is_found_under_its_old_name(module):
    if module.startswith("bench."):
        pytest.importorskip("triton", reason="Triton is not available on this platform")
    old = import_module(f"workbench.{module}")
    for name in EXPERIMENTS[module].split():
        assert getattr(old, name) is not None


PLOTS = {
    "agreement": "agreement",
    "attention": "attention",
    "blockmass": "block_mass",
    "breakdown": "COLOURS breakdown listed spoken",
    "coloured": "Choice coloured",
    "contestants": "LOOKS OTHER_LAUNCH SYMBOLS name_of colour_of start_of maker colours",
    "exactness": "exactness",
    "fates": "FATES hovers",
    "forest": "forest",
    "history": "history",
    "length": "Series Panel against_length",
    "masks": "Panel masks names shown",
    "naive": "naive",
    "overview": "WAYS SCALE reduced overview zoomed",
    "peers": "TICKS peers",
    "planes": "Plane Look looks_of points planes",
    "profiles": "Panel profiles",
    "quality": "SCORES ORDER quality",
    "ratios": "Outcome ratios",
    "rescues": "CAUSES first_cause rescues",
    "reuse": "reuse",
    "rotation": "rotation",
    "rounding": "STYLES rounding",
    "savings": "savings",
    "selectors": "LOOKS name_of colour_of symbol_of",
    "sparse_methods": "LOOKS name_of colour_of symbol_of",
    "steps": "steps",
    "strip": "strip",
    "theme": "MODES MODE_NAMES MODE_SYMBOLS BLUE finish",
    "tiles": "LEVELS Cells Span cells of_head in_window span_of heatmap maps",
    "turning": "Turn Curve turning",
    "turnover": "TOKENS SECONDS turnover",
}


@pytest.mark.parametrize("module", PLOTS)
def test_what_a_module_of_the_plots_held_is_found_under_its_old_name(module):
    old = import_module(f"workbench.plots.{module}")
    for name in PLOTS[module].split():
        assert getattr(old, name) is not None


def test_figures_of_earlier_notebooks_are_drawn_by_their_old_names():
    contestants, length, planes, profiles = (
        import_module(f"workbench.plots.{name}") for name in ("contestants", "length", "planes", "profiles")
    )
    said = {"title": "T", "caption": "c", "notice": "n"}
    records = [{"name": "a", "at": 1, "mean": 0.5, "x": 0.1, "y": 0.2, "label": "a"}]
    profiles.profiles([profiles.Panel("one", records, "layer", percent=True)], colours={}, **said)
    planes.planes([planes.Plane("p", records, "density")], planes.looks_of(["bfla"]), **said)
    line = length.Series("full", [1024, 2048], [1.0, 2.0], dots=True)
    length.against_length([length.Panel("measured", [line], "time (ms)")], **said)
    assert contestants.name_of("flash, dense") == "SDPA flash, dense"


def test_a_module_in_one_word_holds_its_old_names():
    from workbench import keeping, select, way

    assert way.Way is import_module("workbench.methods.config").MethodConfig
    assert keeping.Rule.__name__ == "TileRule"
    assert select is import_module("workbench.methods.select")


SPLIT = {
    "bars": "count_pairs request_savings prompt_strip trial_reuse history",
    "chosen_tokens": "outcomes_of answers_by_ratio enough answer_records where_chosen common_tokens first_tenth",
    "deviation": "what_causes_it repair_records left_in_last_layer what_is_repaired positions_drift",
    "latency": "kernels_table ratios under_the_roof cached_share density recomputed_share stage_seconds stages_here",
    "real_findings": "Real",
    "sparse_masks": "long_overview frame_maps choosing_table",
    "sparse_quality": "settings_table last_rows_table threshold_table crossover_table own_table",
    "tile_recall": "dense_states synthetic_states Union union",
}


@pytest.mark.parametrize("module", SPLIT)
def test_what_was_split_off_a_module_is_found_where_earlier_notebooks_import_it_from(module):
    held = import_module(f"workbench.{'metrics' if module == 'tile_recall' else 'plots'}.{module}")
    for name in SPLIT[module].split():
        assert callable(getattr(held, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = held.nothing


def test_explorers_of_one_word_stay_functions_beside_modules_of_earlier_versions(monkeypatch):
    from workbench.app import explore
    from workbench.app.explore import live_masks, of_records

    for package in ("workbench.app.explore", "workbench.explore"):
        assert import_module(f"{package}.masks").masks_explorer is live_masks.masks_explorer
        assert hasattr(import_module(f"{package}.tradeoff"), "tradeoff_explorer")
    monkeypatch.setattr(of_records, "tradeoff", lambda records, **options: (records, options))
    assert explore.tradeoff("runs", a=1) == ("runs", {"a": 1}), "the module that was imported is called, too"
    for name in ("masks", "tradeoff"):
        vars(explore).pop(name, None)
