"""Result tables: what is written is read back, a kill loses nothing that was written, other folders are refused."""

import ast
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made_up import sweep
from tests.refusals import refused
from workbench import results
from workbench.app.notebooks import notebook
from workbench.core.errors import BadInput
from workbench.methods import sparse
from workbench.plots.marks import chart, method_names, theme
from workbench.plots.reports import block_tuning, trial_costs
from workbench.results import Missing, Results, read, schema
from workbench.results.writer import prepare

ORIGIN = {"model": "m", "data": "d", "method": "block", "ratio": 0.15, "seed": 3, "device": "cpu"}
COUNTS = [
    {"measure": "em", "kind": "all", "value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "setting": {"b": 1, "a": 2}}
]


def written(folder, part="trial", **more):
    with results.Writer(folder, part, **ORIGIN) as out:
        out.counts([{**COUNTS[0], **more}])
        out.answers([{"question": "1", "em": 1.0}, {"question": "2", "em": 0.0}])
        out.timings([{"workload": "32K", "candidate": "ours", "ms": 2.0, "least": 1.0, "most": 3.0, "runs": 5}])
    return folder


def test_rows_are_read_back_with_their_source(tmp_path):
    found = results.read([f"mine={written(tmp_path / 'a')}", f"other={written(tmp_path / 'b', value=0.25)}"])
    counts = found.counts("trial")
    assert list(counts.source) == ["mine", "other"] and list(counts.value) == [0.5, 0.25]
    assert json.loads(counts.setting[0]) == {"a": 2, "b": 1} and list(results.expand_settings(counts).a) == [2, 2]
    assert list(found.answers().question) == ["1", "2"] * 2 and list(found.timings().runs) == [5, 5]
    assert found.counts("deviation").empty and "deviation" in str(found.missing("deviation"))


def test_columns_with_texts_as_categories_are_those_of_the_whole_table(tmp_path):
    folder = written(written(tmp_path / "a"), part="trial@more", kind="", unit="s")
    without = pa.table({"experiment": ["trial"], "measure": ["em"], "kind": pa.array([None], pa.string())})
    pq.write_table(without, folder / "counts" / "trial@without.parquet")  # as another tool may leave a text out
    found = results.read(folder).with_rows("counts", COUNTS, experiment="trial")
    (folder / "counts" / "trial@open.jsonl").write_text(json.dumps({"experiment": "trial", "measure": "f1"}) + "\n")
    coded = found.coded("counts", "trial", ["source", "measure", "kind", "unit", "value"])
    assert set(coded) == {"source", "experiment", "measure", "kind", "unit", "value"}
    assert all(coded[name].dtype == ("float" if name == "value" else "category") for name in coded)
    whole = found.counts("trial")[list(coded)]
    pd.testing.assert_frame_equal(coded.astype(whole.dtypes), whole)
    assert len(whole) == 5 and found.coded("counts", "deviation", ["value"]).empty


def test_a_folder_of_several_runs_is_one_source(tmp_path):
    written(tmp_path / "a"), written(tmp_path / "deep" / "b")
    assert set(results.read(str(tmp_path)).counts().source) == {str(tmp_path)}
    assert len(results.read(str(tmp_path)).counts()) == 2


def test_a_killed_writer_keeps_whole_rows_and_is_resumed(tmp_path):
    out = results.Writer(tmp_path, "trial", **ORIGIN)
    out.answers([{"question": "1"}])
    with (tmp_path / "answers" / "trial.jsonl").open("a") as file:
        file.write('{"question": "2", "em"')
    assert list(results.read(tmp_path).answers().question) == ["1"]
    with results.Writer(tmp_path, "trial", resume=True, **ORIGIN) as again:
        assert [row["question"] for row in again.rows_written("answers")] == ["1"]
        again.answers([{"question": "2"}])
    with results.Writer(tmp_path, "trial", resume=True, **ORIGIN) as third:
        third.answers([{"question": "3"}])
    assert list(results.read(tmp_path).answers().question) == ["1", "2", "3"]
    assert not list(tmp_path.glob("*/*.jsonl"))


def test_a_part_that_is_written_again_replaces_its_rows(tmp_path):
    written(tmp_path), written(tmp_path, value=0.75)
    assert list(results.read(tmp_path).counts().value) == [0.75]


@pytest.mark.parametrize("table", schema.TABLES)
@pytest.mark.parametrize(
    "odd", [{"no_such_column": 1}, {"seed": "three"}, {"ratio": "much"}, {"experiment": 3}, {"seed": 1.5}]
)
def test_a_row_that_the_schema_does_not_know_is_refused_before_it_is_written(tmp_path, table, odd):
    needed = {"answers": {"question": "1"}, "timings": {"workload": "w", "candidate": "c", "ms": 1.0}}
    with pytest.raises(BadInput, match=next(iter(odd))), results.Writer(tmp_path, "trial") as out:
        out.add(table, [{**needed.get(table, {"measure": "em"}), **odd}])
    assert not list(tmp_path.glob("*/*"))


def spoil(folder, name, text):
    (written(folder) / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: [], "."),
        (lambda path: ["a=x", "a=y"], "."),
        (lambda path: path / "nowhere", "no results"),
        (lambda path: path, "no results.json"),
        (lambda path: spoil(path, "results.json", '{"version": 99}'), "version 99"),
        (lambda path: spoil(path, "results.json", '{"vers'), "not whole"),
        (lambda path: spoil(path, "results.json", "[1]"), "not whole"),
        (lambda path: spoil(path, "counts/trial.parquet", "PAR1 but not really"), "cannot be read"),
        (lambda path: spoil(path, "counts/trial@b.jsonl", "no json\n"), "line 1"),
        (lambda path: spoil(path, "counts/trial@b.jsonl", '{"measure": "em", "secret": 1}\n'), "secret"),
    ],
)
def test_a_folder_that_holds_no_readable_results_is_one_sentence(tmp_path, make, words):
    refused(words, lambda: results.read(make(tmp_path)).counts())


def test_a_file_is_no_place_for_results(tmp_path):
    (tmp_path / "file").write_text("")
    refused("file", results.Writer, tmp_path / "file", "trial")


@settings(max_examples=12)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "measure": st.text(min_size=1, max_size=8),
                "value": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
                "n": st.one_of(st.none(), st.integers(0, 2**31 - 1)),
                "kind": st.text(max_size=5),
            }
        ),
        max_size=6,
    )
)
def test_every_row_survives_the_disk(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    with results.Writer(folder, "trial") as out:
        out.counts(rows)
    found = results.read(folder).counts()
    assert [(r.measure, r.kind) for r in found.itertuples()] == [(r["measure"], r["kind"]) for r in rows]
    for found_row, row in zip(found.itertuples(), rows, strict=True):
        for name in ("value", "n"):
            value = getattr(found_row, name)
            assert math.isnan(value) if row[name] is None else value == row[name]


def test_scores_are_a_row_a_trial_and_kind(tmp_path):
    with results.Writer(tmp_path, "trial", **ORIGIN) as out:
        out.counts([{"measure": m, "kind": k, "value": 0.5, "n": 4} for m in ("em", "f1") for k in ("all", "x")])
    wide = results.scores(results.read(tmp_path).counts())
    assert list(wide.kind) == ["all", "x"] and list(wide.em) == list(wide.f1) == [0.5, 0.5] and list(wide.n) == [4, 4]
    assert list(wide.ratio) == [0.15, 0.15] and results.scores(results.read(tmp_path).counts("ttft")).empty


def test_a_paired_difference_is_of_the_same_questions():
    rows = [{"method": m, "question": str(q), "em": float(e)} for m, e in (("a", 1), ("b", 0)) for q in range(5)]
    answers = pd.DataFrame(rows[:-1])
    gaps = results.paired_differences(answers, lambda rows: rows.method == "b", "em").set_index("method")
    assert gaps.value.a == 1.0 and gaps.n.a == 4 and gaps.value.b == 0.0
    refused(".", results.paired_differences, answers, lambda rows: rows.method == "c", "em")


@pytest.mark.parametrize(
    "draw",
    [
        lambda rows: chart.lines(rows, x="ratio", y="em", by="select", title="t"),
        lambda rows: chart.dot_plot(rows, y="select", x="em", by="select", title="t"),
        lambda rows: chart.bars(rows, y="select", x="em", title="t"),
        lambda rows: chart.table(rows, {"select": "selector", "em": "exact match"}, title="t"),
    ],
)
def test_a_figure_names_every_source_of_its_numbers_and_is_none_without_rows(draw):
    rows = pd.DataFrame(
        {"source": s, "select": m, "ratio": r, "em": r, "em_low": r - 0.1, "em_high": r + 0.1, "n": 9, "seed": 0}
        for s in ("shipped", "mine")
        for m in ("a", "b")
        for r in (0.1, 0.2)
    )
    figure = draw(rows)
    text = figure.to_json()
    assert figure.layout.meta["sources"] == ["shipped", "mine"] and "shipped" in text and "mine" in text
    assert "n = 9" in text
    assert draw(rows[:0]) is None


def test_records_for_trackers_hold_configuration_and_metrics_by_kind(tmp_path):
    with results.Writer(tmp_path, "trial", **ORIGIN) as out:
        out.counts([{"measure": "em", "kind": kind, "value": value, "n": 4} for kind, value in (("all", 1), ("x", 0))])
    ((name, config, metrics),) = results.records(results.read([f"mine={tmp_path}"]))
    assert name == "mine m d block" and config["ratio"] == 0.15 and "sparse" not in config
    assert metrics == {"em": 1.0, "n": 4.0, "x/em": 0.0, "x/n": 4.0}


def settings_of(*values):
    rows = [{"measure": "hits", "value": 0.5, "seed": seed, "setting": {"zipf": z}} for z in values for seed in (0, 1)]
    return results.expand_settings(Results({}).with_rows("counts", rows, experiment="x").counts())


def test_rows_say_how_their_setting_differs_from_the_usual_one():
    counts = settings_of(1.0, 1.0, 2.0)
    assert list(results.vary_one(counts, ["zipf"]).varied) == ["usual"] * 4 + ["zipf 2.0"] * 2
    assert results.vary_one(counts[:0], ["zipf"]).empty


def test_draws_are_averaged_with_their_interval():
    counts = settings_of(1.0).assign(value=[0.4, 0.6])
    (row,) = results.over_draws(counts, ["source", "measure"]).to_dict("records")
    assert row["value"] == pytest.approx(0.5) and row["low"] < 0.4 < 0.6 < row["high"] and row["n"] == 2


def test_a_panel_may_have_an_axis_of_its_own():
    counts = settings_of(1.0, 2.0).assign(share=[0.1, 0.1, 0.2, 0.2], panel=["a", "b"] * 2, by="m")
    own = {"a": "first", "b": {"title": "second", "x": "share", "y_log": True}}
    fig = chart.lines(counts, x="zipf", by="by", panel="panel", panels=own, title="t")
    assert [list(trace.x) for trace in fig.data] == [[1.0, 2.0], [0.1, 0.2]] and fig.layout.yaxis2.type == "log"


def swept(**more):
    """Return counts of a small sweep: full attention, plain reuse, and two selectors at two ratios."""
    methods = [("full", "none", None), ("block", "none", None)]
    methods += [("block", select, ratio) for select in ("query_guided", "random") for ratio in (0.1, 0.3)]
    origin = {"experiment": "trial", "model": "m", "data": "d", "seed": 0, "prepare": "after_system"}
    rows = [{"mode": m, "select": s, "ratio": r, "measure": "em", "value": 0.5, **more} for m, s, r in methods]
    return schema.frame("counts", schema.rows("counts", rows, **origin)).assign(source="mine", kind="all")


def test_a_curve_a_selector_begins_at_plain_reuse_and_ends_at_full_attention():
    curves = trial_costs.selector_curves(trial_costs.trials(swept()), "after_system")
    ratios = curves.sort_values("ratio").groupby("select").ratio.apply(list).to_dict()
    assert ratios == {"query_guided": [0.0, 0.1, 0.3, 1.0], "random": [0.0, 0.1, 0.3, 1.0]}
    assert trial_costs.selector_curves(trial_costs.trials(swept()), "independent").empty
    assert len(trial_costs.at_ratio(trial_costs.trials(swept()), 0.1)) == 4
    assert set(trial_costs.with_policy_names(trial_costs.trials(swept())).name) == {
        "full attention",
        "nothing recomputed",
        "question-guided (FusionRAG)",
        "random",
    }


def test_a_curve_is_of_one_set_of_questions():
    """That with the most; plain reuse and full attention are of the same."""
    sizes = ((0, 200, 0.9), (1, 2000, 0.5))
    sets = [swept(value=em, n=n, low=em, high=em).assign(seed=seed) for seed, n, em in sizes]
    curves = trial_costs.selector_curves(trial_costs.trials(pd.concat(sets)), "after_system")
    assert set(curves.seed) == {1} and set(curves.em) == {0.5} and len(curves) == 8


def test_block_mode_is_told_with_intervals_of_one_set_of_questions():
    trial = {"experiment": "trial", "data": "d", "seed": 0, "passages": 10, "low": 0.1, "high": 0.9, "n": 2000}
    methods = [
        ("full", "full attention", 0.8),
        ("block", block_tuning.UNTUNED, 0.4),
        ("block", "independent blocks", 0.3),
    ]
    rows = [{**trial, "model": "m", "mode": mode, "method": name, "value": em} for mode, name, em in methods]
    rows += [{**rows[0], "model": "t", "value": 0.7}, {**rows[2], "model": "t", "value": 0.6}]
    rows = [{**row, "kind": "all", "measure": "em", "prepare": "independent", "select": "none"} for row in rows]
    counts = schema.frame("counts", schema.rows("counts", rows)).assign(source="mine")
    table = block_tuning.trials(counts)
    assert table.em[(table.model == "m") & (table.method == block_tuning.UNTUNED)].to_list() == [0.4], "the first"
    said = block_tuning.finding(table, "m", "t")
    assert "Block mode scores 40.0% (10.0% to 90.0%) before" in said and "60.0%" in said and "n = 2,000" in said
    assert block_tuning.finding(table[table.model == "m"], "m", "t") == ""


@pytest.mark.parametrize("other", [{"sparse": "bfla"}, {"correct": "kvcomm"}, {"attend": "ape"}])
def test_what_changes_more_than_the_tokens_recomputed_is_not_drawn_as_plain_reuse(other):
    assert trial_costs.trials(swept(**other)).empty and trial_costs.plain_reuse(swept(**other)).empty


def test_the_shipped_counts_of_sparse_methods_are_those_of_their_answers():
    found = results.read()
    same = ["data", "sparse", "kind"]
    answers, counts = (
        table[(table.model == "lab-full") & (table.passages == 40) & table.data.isin(["lab", "needles"])]
        for table in (found.answers("trial"), found.counts("trial"))
    )
    counted = counts[(counts.measure == "em") & counts["sparse"].isin(answers["sparse"])].set_index(same)
    means = pd.concat([answers, answers.assign(kind="all")]).groupby(same).em.agg(["mean", "size"])
    assert set(means.index) == set(counted.index)
    both = counted.join(means)
    assert np.allclose(both.value, both["mean"]) and (both.n == both["size"]).all()
    assert ((both.low <= both.value) & (both.value <= both.high)).all()
    assert all(sparse.from_spec(spec) for spec in counts["sparse"].unique())


# --- Figures of results in notebooks: they draw what ships, several sources side by side, and say what is missing
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CELLS = ["14-05", "14-24", "14-28", "tiers-kept", "14-14", "14-15", "14-17", "14-18", "14-20"]  # of the store's page


def test_without_results_a_cell_names_the_command_that_measures_them(tmp_path):
    prepare(tmp_path)
    cells = {cell["id"]: cell for cell in json.loads((NOTEBOOKS / "14_store.ipynb").read_text())["cells"]}
    names = {"notebook": notebook, "results": [str(tmp_path)], "order": "relevance", "question": 50, "zipf": 1.0}
    for cell in CELLS:
        *before, last = ast.parse("".join(cells[cell]["source"])).body
        exec(compile(ast.Module(before, []), cell, "exec"), names)
        assert isinstance(last, ast.Expr), f"cell {cell} shows nothing"
        line = eval(compile(ast.Expression(last.value), cell, "eval"), names)
        assert isinstance(line, Missing) and "--out" in str(line)
    assert read(str(tmp_path)).sources == names["found"].sources


# --- Pages of measured results draw whatever result tables hold: what ships, a small sweep of other models, nothing
ENDS = {"12_real_model": "## Measured here", "10_sparse_quality": "## When does block selection pay off?"}


def drawn(name: str, results: list[str], **parameters) -> tuple[list, dict]:
    """What the cells of results of a notebook show, in their order, and its names; with an output, the whole of it."""
    shown, namespace = [], {}
    for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if source.startswith(ENDS[name]) and not parameters:
            break
        if cell["cell_type"] == "code":
            *rest, last = source.rstrip().split("\n\n")
            is_shown = last.startswith(("chart.", "heads."))
            exec("\n\n".join(rest) if is_shown else source, namespace)
            shown += [eval(last, namespace)] if is_shown else []
            if "parameters" in cell["metadata"].get("tags", []):
                namespace |= {"results": results, **parameters}
    return shown, namespace


def sources_of(shown: list) -> list[set[str]]:
    """The sources of every figure."""
    return [set(one.layout.meta["sources"]) for one in shown if isinstance(one, go.Figure)]


def test_a_page_draws_a_sweep_of_ones_own_alone(tmp_path):
    mine, _ = drawn("10_sparse_quality", [sweep(tmp_path)])
    assert len(sources_of(mine)) >= 5 and all(isinstance(one, go.Figure | Missing) for one in mine)
    assert set().union(*sources_of(mine)) <= {str(tmp_path), "published"}, "a reader's page shows no shipped numbers"


def test_without_its_model_results_are_shown_with_the_command_that_fetches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    mine, out = sweep(tmp_path / "mine"), tmp_path / "out"
    both, names = drawn("12_real_model", ["shipped", mine], output=str(out))
    assert {"shipped", mine} in sources_of(both) and sum(sources != {mine} for sources in sources_of(both)) >= 14
    assert "is not fetched yet: `workbench models get smollm2` fetches it once" in names["absent"]
    assert {path.name for path in out.iterdir()} == {
        "metrics.json",
        "measured.parquet",
        "deviation.parquet",
        "_SUCCESS",
    }
    metrics = json.loads((out / "metrics.json").read_text())
    kl = metrics["shipped"]["kl"]
    assert kl["Full Reuse"] > kl["Full Reuse + answer-guided at 15%"] > 0 and metrics["here"]["live"] is False


@pytest.mark.parametrize("name", ENDS)
def test_without_results_a_page_names_the_command(name, tmp_path):
    prepare(tmp_path)
    assert read([tmp_path]).counts().empty
    shown, _ = drawn(name, [str(tmp_path)])
    assert shown and all(isinstance(one, Missing) for one in shown)
    assert any("workbench sweep" in str(one) for one in shown)


def test_a_caption_counts_models_and_data_sets_where_they_are_many():
    rows = pd.DataFrame({"model": list("abcde"), "data": list("vwxyz"), "source": "shipped"})
    assert chart.describe_rows(rows) == "5 models on 5 data sets, source: shipped."


def test_a_caption_lists_few_seeds_and_devices_and_begins_with_a_capital():
    rows = pd.DataFrame({"seed": [31_000, None, 7, 7], "device": ["a", "", "b", "b"], "source": "here"})
    assert chart.describe_rows(rows) == "Seeds 7 and 31000, a and b, source: here."
    many = pd.DataFrame({"seed": range(5), "device": list("abcaa"), "source": "here"})
    runs = pd.DataFrame({"model": "m", "data": "d", "training_seed": [5, 1, None], "n": 9, "source": "here"})
    assert chart.describe_rows(runs) == "m on d, training runs 1 and 5, n = 9, source: here."
    assert chart.describe_rows(runs[["training_seed", "source"]][:1]) == "Training run 5, source: here."
    assert (
        chart.describe_rows(many) == "Several devices (3), source: here."
        and chart.describe_rows(rows[["source"]]) == "Source: here."
    )


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([16e9, 20e9], {"exponentformat": "SI"}),  # a power of ten alone, or none, says no scale
        ([5e7, 1.2e8], {"exponentformat": "SI"}),
        ([2e9, 1.1e11], {"dtick": 1, "exponentformat": "SI"}),
        ([7e11, 7e14], {"dtick": 1, "tickformat": "~s"}),  # 1P, not 10¹⁵ over 100T
        ([2e-7, 1], {"dtick": 1, "exponentformat": "power"}),
        ([9, 4000], {"tickvals": [1, 10, 100, 1000, 10_000], "ticktext": ["1", "10", "100", "1,000", "10,000"]}),
    ],
)
def test_a_logarithmic_axis_has_several_ticks(values, ticks):
    assert theme.log_ticks(values) == ticks


@pytest.mark.parametrize(
    ("values", "wide", "labels"),  # of every ten in a panel of so many px
    [([1, 10], 200, 3), ([1, 10], 60, 2), ([1, 10], 30, 1), ([1e-4, 1e-3], 150, 2), ([1e-4, 1e-3], 200, 3)],
)
def test_labels_of_a_logarithmic_axis_do_not_touch(values, wide, labels):
    assert len(theme.log_ticks(values, wide)["tickvals"]) == 2 * labels


def test_powers_of_ten_in_a_narrow_panel_are_thinned_out():
    assert theme.log_ticks([1e-9, 1], 150) == {"dtick": 3, "exponentformat": "power"}


def test_ticks_of_a_logarithmic_panel_have_room_between_the_ends_of_its_intervals():
    rows = pd.DataFrame({"name": ["a", "b"], "value": [2e-3, 6e-3], "low": [2e-4, 1e-3], "high": [2e-1, 1e-1]})
    panels = {name: {"title": name, "axis": "nats", "log": True} for name in ("kl", "other")}
    both = pd.concat([rows.assign(measure=name, source="here") for name in panels])
    fig = chart.dot_plot(both, y="name", panel="measure", panels=panels, title="t")
    assert fig.layout.xaxis.dtick == 1 and not fig.layout.xaxis.tickvals, "0.0001 and 0.0002 would touch"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"correct": "agent_kv_shift"}, "AgentKVShift at 20%"),
        ({"correct": "kvcomm"}, "KVCOMM"),
        ({"select": "sam_kv", "correct": "fuse", "attend": "chosen"}, "SAM-KV at 20%"),
        ({"prepare": "link0", "correct": "kvcomm"}, "Link0 + KVCOMM"),
        ({"correct": "agent_kv_shift(anchors=2)"}, "independent blocks + AgentKVShift(anchors=2)"),
        ({"correct": "of_another_version"}, "independent blocks + of_another_version"),
        ({}, "independent blocks"),
    ],
)
def test_a_correction_is_named_as_published_with_its_ratio_where_it_chooses_tokens(fields, name):
    plain = {"mode": "block", "select": "none", "prepare": "independent", "correct": "none", "ratio": 0.2}
    rows = swept(**plain | fields)
    assert set(method_names.with_method_names(rows).name) == {name}


@pytest.mark.parametrize(
    ("rows", "by", "named"),
    [
        ([("a", "shipped", "x"), ("b", "shipped", "x")], "", False),
        ([("a", "shipped", "x"), ("b", "here", "x")], "", True),
        ([("a", "shipped", "x"), ("b", "shipped", "x")], "model", True),
    ],
    ids=["one source", "two sources", "one model"],
)
def test_a_dot_plot_has_a_legend_where_it_tells_something(rows, by, named):
    table = pd.DataFrame([{"y": y, "source": source, "model": model, "value": 1.0} for y, source, model in rows])
    figure = chart.dot_plot(table, y="y", by=by, title="t")
    assert any(trace.showlegend for trace in figure.data) == named


@pytest.mark.parametrize(("panels", "domains"), [(3, 3), (4, 2), (5, 2)])
def test_of_more_than_three_panels_of_lines_two_stand_side_by_side(panels, domains):
    rows = [{"panel": f"p{i}", "source": "here", "n": n, "value": n} for i in range(panels) for n in (1, 2)]
    figure = chart.lines(pd.DataFrame(rows), x="n", by="source", panel="panel", title="t")
    assert len({axis.domain for axis in figure.select_xaxes()}) == domains
    assert len([note for note in figure.layout.annotations if note.text.startswith("p")]) == panels


@pytest.mark.parametrize(("most", "end"), [(0.4, 1), (1.2, 1.2)])
def test_the_axis_of_a_share_ends_at_100_percent_and_hides_no_mark_beyond(most, end):
    table = pd.DataFrame([{"y": "a", "source": "shipped", "value": value} for value in (0.2, most)])
    low, high = chart.dot_plot(table, y="y", title="t", whole=True).layout.xaxis.range
    assert low < 0 and end < high < end + 0.1
