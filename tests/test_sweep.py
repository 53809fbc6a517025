"""Sweeps: checked before a run; every combination once, taken up where they stopped; a failure stays visible."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from tests import tiny
from tests.commands import refused_command, told
from tests.refusals import refused
from workbench import models, results
from workbench.app import cli
from workbench.core.utils import runner
from workbench.data.assets import ROOT
from workbench.experiments.sweeps import sweep as sweeps
from workbench.experiments.sweeps import sweep_grid
from workbench.experiments.sweeps.sweep import Failed, cases, sweep
from workbench.experiments.sweeps.sweep_grid import Case, read_plan
from workbench.experiments.trials.trial import Trial

PLANS = ROOT / "benchmarks" / "plans"
QUESTIONS = {"samples": 6, "passages": 3, "max_new_tokens": 3, "timed": 1}
LISTS = {"prepare": ["independent", "after_system"], "select": ["none", "first_k"], "ratio": [0.1, 0.5]}
MEASURED = ["seconds", "preprocess_ms", "ttft_p5", "ttft_p50", "ttft_p95", "ttft_least", "ttft_most"]


@pytest.fixture(scope="module")
def base(folder):
    return Trial(str(folder), **QUESTIONS)


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    """(folder, table) of an uninterrupted sweep."""
    out = tmp_path_factory.mktemp("sweeps") / "whole"
    return out, sweep(base, out, **LISTS)


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one.drop(columns=MEASURED), other.drop(columns=MEASURED))


def test_every_combination_is_a_trial_once(base):
    found = [case.trial for case in cases(asdict(base), LISTS)]
    assert len(found) == len(set(found)) == 2 * (1 + 2)  # a ratio says nothing where nothing is selected
    assert {trial.mode for trial in found} == {"block"}
    assert {(t.prepare, t.select, t.ratio) for t in found} == {
        (prepare, *rest)
        for prepare in LISTS["prepare"]
        for rest in (("none", None), ("first_k", 0.1), ("first_k", 0.5))
    }


def test_full_attention_stands_beside_what_only_reuse_has(base):
    found = cases(asdict(base), {"method": ["full", "full-reuse", "cacheblend"], "ratio": [0.1, 0.2]})
    assert [(case.method, case.trial.mode, case.trial.ratio) for case in found] == [
        ("full", "full", 0.15),
        ("full-reuse", "block", None),
        ("cacheblend", "block", 0.1),
        ("cacheblend", "block", 0.2),
    ]
    assert len(cases(asdict(base), {"seed": [0, 1, 1]})) == 2


def test_the_table_has_a_row_a_trial_and_kind_and_says_what_the_trials_say(whole, base):
    _, table = whole
    row = table[(table["select"] == "first_k") & (table.ratio == 0.5) & (table.prepare == "after_system")]
    record = Trial(
        **asdict(base) | {"mode": "block", "prepare": "after_system", "select": "first_k", "ratio": 0.5}
    ).run()
    assert row.kind.tolist() == ["all", *record.by_kind]
    assert row.n.tolist() == [6, *(score.n for score in record.by_kind.values())]
    assert row.em.tolist() == [record.em, *(score.em for score in record.by_kind.values())]
    assert set(row.way) == {record.label} and set(row.rows_computed) == {record.rows_computed}
    assert set(row["mode"]) == {"block"}


def test_answers_are_kept_question_by_question(whole):
    out, table = whole
    found = results.read(out)
    answers = found.answers("trial").merge(table[["trial", "way"]].drop_duplicates(), left_on="method", right_on="way")
    assert len(found.answers("trial")) == len(answers) == 6 * 6
    means = answers.groupby("trial")[["f1", "nll", "kl", "agree"]].mean()
    for _, row in table[table.kind == "all"].iterrows():
        for score in means:
            assert means[score][row.trial] == pytest.approx(row[score])
            assert row[f"{score}_low"] <= row[score] + 1e-9
    scores = results.scores(found.counts("trial")).query("kind == 'all'").set_index("method")
    by_method = table[table.kind == "all"].set_index("way")
    for score in ("em", "f1", "kl", "kl_low", "rows_computed"):
        pd.testing.assert_series_equal(
            scores[score].sort_index(), by_method[score].sort_index(), check_names=False, check_index_type=False
        )
    assert (out / "_SUCCESS").exists()


def test_what_is_finished_is_not_run_again(whole, base, monkeypatch):
    out, table = whole
    monkeypatch.setattr(Trial, "run_each", None)
    pd.testing.assert_frame_equal(sweep(base, out, **LISTS), table)
    part = sweep(base, out, select=["first_k"], ratio=[0.1], prepare=["independent"])
    assert set(part.trial) < set(table.trial)


def test_a_field_enters_a_key_only_where_it_is_set():
    plain, judged = (Case(Trial("a-model-in-memory", **fields)).key for fields in ({}, {"faithfulness": "lab"}))
    assert plain == Case(Trial("a-model-in-memory", faithfulness=None)).key != judged


@pytest.mark.parametrize("data", ["notes", "notes(by=sentences, size=1)"])
def test_a_key_follows_the_documents_of_a_folder_and_not_the_blocks_of_a_store(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    for folder in ("notes/more", "kept"):
        Path(folder).mkdir(parents=True)
    keys = []
    for file in ("notes/shelf.md", "kept/blocks", "notes/more/shelves.md"):
        Path(file).write_text("Shelf 1 holds the maps.")
        keys.append(Case(Trial("a-model-in-memory", data=data, mode="block", store="kept")).key)
    assert keys[0] == keys[1] != keys[2]


def test_faithfulness_stands_in_the_table_of_a_sweep_that_judges(base, tmp_path):
    table = sweep(base, tmp_path, samples=[2], faithfulness=[None, "lab"])
    judged = table[table["faithfulness"] == "lab"]
    assert (judged["faithfulness_n"] == 2).all() and judged["faithfulness_mean"].between(0, 1).all()
    assert table[table["faithfulness"].isna()]["faithfulness_mean"].isna().all() and len(judged) < len(table)


def test_an_interrupted_sweep_ends_as_if_nothing_had_been(whole, base, tmp_path, monkeypatch):
    run, calls = Trial.run_each, []

    def stop(trial, *given):
        calls.append(trial)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(trial, *given)

    monkeypatch.setattr(Trial, "run_each", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep(base, tmp_path, **LISTS)
    assert not (tmp_path / "_SUCCESS").exists() and len(list(tmp_path.glob("trials/*.json"))) == 3
    told = []
    table = sweep(base, tmp_path, progress=lambda *done: told.append(done), **LISTS)
    assert len(calls) == 4 + 3 and told[0][0] >= 18 and told[-1] == (36, 36)
    same(table, whole[1])


def test_a_model_is_loaded_once(base, tmp_path, monkeypatch):
    load, calls = models.load, []
    monkeypatch.setattr(models, "load", lambda *given: calls.append(given) or load(*given))
    sweeps.load.cache_clear()
    sweep(base, tmp_path, seed=[0, 1, 2])
    assert len(calls) == 1


def test_a_model_that_has_changed_is_tried_anew_and_a_copy_of_it_is_not(tmp_path):
    model = tiny.checkpoint(tmp_path / "model")
    trial = Trial(str(model), **QUESTIONS)
    first = cases(asdict(trial), {"seed": [0]})[0].key
    for file in model.iterdir():
        os.utime(file, (1, 1))
    assert cases(asdict(trial), {"seed": [0]})[0].key == first
    config = model / "config.json"
    config.write_text(config.read_text() + " ")
    assert cases(asdict(trial), {"seed": [0]})[0].key != first


def test_processes_find_what_one_process_finds(whole, base, tmp_path, monkeypatch):
    pool = runner.pool
    monkeypatch.setattr(runner, "pool", lambda jobs, shared: pool(1, shared))  # one starts faster
    _, table = whole
    found = sweep(base, tmp_path, jobs=2, **LISTS | {"prepare": ["independent"]})
    same(found, table[table.prepare == "independent"].reset_index(drop=True))


def test_a_failure_is_told_and_the_others_go_on(base, tmp_path, monkeypatch):
    run = Trial.run_each

    def fail(trial, *given):
        if trial.seed == 1:
            raise MemoryError("no room")
        return run(trial, *given)

    monkeypatch.setattr(Trial, "run_each", fail)
    with pytest.raises(Failed, match=r"1 trials failed; the first was .*seed=1.*: MemoryError: no room") as problem:
        sweep(base, tmp_path, seed=[0, 1, 2])
    found = problem.value.outcome
    assert set(found.table.seed) == {0, 2} and len(found.failures) == 1
    (told,) = tmp_path.glob("trials/*.failed.json")
    assert "no room" in json.loads(told.read_text())["traceback"] and not (tmp_path / "_SUCCESS").exists()
    monkeypatch.undo()
    assert set(sweep(base, tmp_path, seed=[0, 1, 2]).seed) == {0, 1, 2}
    assert not list(tmp_path.glob("trials/*.failed.json")) and (tmp_path / "_SUCCESS").exists()


def test_a_process_keeps_blocks_in_half_of_a_gpu_that_processes_share(base, monkeypatch):
    assert sweeps.cache_gib(base, 4) == base.store_gib
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 128 * 2**30))
    assert [sweeps.cache_gib(replace(base, device="cuda"), jobs) for jobs in (1, 2, 3, 400)] == [
        64,
        64,
        32,
        base.store_gib,
    ]


def test_blocks_that_are_kept_are_not_encoded_again_and_change_no_answer(base, tmp_path):
    found = cases(asdict(base), {"mode": ["block"], "select": ["none", "random"], "ratio": [0.3]})
    cold, warm = (sweeps.run(found, tmp_path / str(gib), keep_gib=gib) for gib in (0, 1))
    assert warm.answers.drop(columns="trial").equals(cold.answers.drop(columns="trial"))
    rates = [table[table.kind == "all"].set_index("select").hit_rate for table in (cold.table, warm.table)]
    assert rates[1]["none"] == rates[0]["none"] < 1 and rates[1]["random"] == 1


def test_the_command_takes_lists_of_anything(folder, tmp_path):
    command = ["sweep", "--model", folder, *"--samples 4 --passages 3 --timed 1 --max-new-tokens 2".split()]
    command += ["--fidelity", "false", "--select", "none,first_k(system=1)", "--ratio", "0.1,0.3"]
    command += ["--prepare", "after_system,with_neighbours(n=1, search=exact)"]
    said = told(*command, "--keep-gib", "1", "--out", tmp_path, "--json")
    rows = [json.loads(line) for line in said.splitlines()]
    assert {row["hit_rate"] for row in rows if row["ratio"] == 0.3} == {1.0}  # behind the same preparation
    assert len({row["trial"] for row in rows}) == 6 and {row["ratio"] for row in rows} == {None, 0.1, 0.3}
    assert told(*command, "--out", tmp_path).count("with_neighbours(n=1, search=exact)") == 3


def test_the_command_ends_with_one_where_a_trial_failed_and_with_two_where_it_was_asked_wrongly(
    folder, tmp_path, monkeypatch
):
    command = ["sweep", "--model", str(folder), "--samples", "2", "--seed", "0,1", "--out", str(tmp_path / "out")]

    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(Trial, "run_each", fail)
    ended = CliRunner().invoke(cli.app, command)
    assert ended.exit_code == 1 and "2 trials failed" in ended.stderr and "RuntimeError: broken" in ended.stderr
    assert "samples is 'many': a number is needed" in refused_command(*command, "--samples", "many")
    assert "batch is 0" in refused_command(*command, "--batch", "0")


PLAN = """
[common]
model = "{folder}"
samples = 2
passages = 3
max_new_tokens = 2
timed = 1
fidelity = false

[[trials]]
mode = "full"

[[trials]]
label = "chosen"
training_of = "tiny"
mode = "block"
select = ["first_k", "random"]
ratio = [0.1, 0.5]
"""


def test_a_plan_lists_grids_of_trials_and_names_their_rows(folder, tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN.format(folder=folder))
    out = tmp_path / "out"
    told("sweep", "--plan", file, "--samples", "1", "--out", out)
    rows = results.read([str(out)]).answers("trial")
    assert len(rows) == 5 and list(rows.method).count("chosen") == 4
    assert set(rows[rows.method == "chosen"].model) == {"tiny"} and set(rows[rows.method != "chosen"].model) != {"tiny"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "lists no"),
        ("[common", "cannot be read"),
        ("[[trial]]\nmode = 'full'", "'trial'"),
        ("[[trials]]\nmodus = 'full'", "'modus'"),
        ("[[trials]]\nmode = 'half'", "half"),
        ("[[trials]]\nlabel = 3", "label 3"),
        ("trials = [1]", "lists no"),
        (None, "not there"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text, sentence, tmp_path):
    file = tmp_path / "plan.toml"
    if text is not None:
        file.write_text(text)
    refused(sentence, read_plan, file, {})


@pytest.mark.parametrize("name", sorted(path.name for path in PLANS.glob("*.toml")))
def test_every_plan_that_ships_lists_trials_that_can_be(name, folder, monkeypatch):
    monkeypatch.setattr(models, "training_seed", lambda model: 1)  # of trainings that do not ship
    assert len(read_plan(PLANS / name, {})) > 1


# --- What is wrong in a list of trials is said before the first of them runs, without a model's weights
def trials(base, **lists):
    return [case.trial for case in cases(asdict(base), lists)]


@pytest.mark.parametrize(
    "lists, words",
    [
        ({"speed": [1]}, "a trial has no field 'speed': allowed are method, mode, positions, prepare"),
        ({"seed": []}, r"seed is \[\]: a list of at least one value"),
        ({"select": "none"}, "select is 'none': a list"),
        ({"select": ["none", "nothing"]}, "unknown select 'nothing'"),
        ({"method": ["full", "fastest"]}, "unknown method 'fastest'"),
        ({"ratio": [0.1, 1.5], "select": ["first_k"]}, "ratio 1.5"),
        ({"model": ["no-such-model"]}, "unknown model 'no-such-model'"),
        ({"data": ["lab", "missing.json"]}, "missing.json"),
        ({"device": ["tpu"]}, "unknown device 'tpu'"),
        ({"device": ["cuda:77"]}, "cuda:77"),
        ({"dtype": [None, "float64"]}, r"unknown dtype 'float64': allowed are float32, .* \(1 trial\)"),
        ({"passages": [3, 40]}, r"has \d+ tokens, the model's context is \d+, answer included: ask for fewer"),
        ({"sparse": ["none", "seer_attention"], "seed": [0, 1]}, r"there is no gate .*distill.*\(2 of 4 trials\)"),
        ({"sparse": ["compact(over=seer_attention)"]}, "there is no gate"),
        ({"sparse": ["xattention(threshold=no.json)"]}, "there are no thresholds 'no.json'"),
        ({"layout": [None, "missing.json"]}, "missing.json"),
        ({"faithfulness": ["lab"], "data": ["needles"], "samples": [4]}, "question"),
        ({"mode": ["block"], "prepared": ["nowhere"]}, "nowhere"),
        ({"mode": ["block"], "select": ["kv_deviation(layer=99)"]}, "layer 99 .*: the model has"),
        ({"mode": ["block"], "select": ["query_guided(layers=(99,))"]}, r"layers \(99,\): the model has layers 0 to"),
    ],
)
def test_each_problem_is_named_before_a_run(base, lists, words, monkeypatch, tmp_path):
    monkeypatch.setattr(Trial, "run_each", None)
    monkeypatch.setattr(models, "load", None)
    refused(words, sweep, base, tmp_path / "out", **lists)
    assert not (tmp_path / "out").exists()


def test_several_problems_are_told_together_with_their_trials(base):
    listed = trials(base, dtype=[None, "int3"], passages=[3, 400], seed=[0, 1])
    words = refused("^6 of 8 trials cannot run: .*;", sweep_grid.check, listed)
    assert "unknown dtype 'int3'" in words and "(4 of 8 trials)" in words


def test_what_can_run_passes_and_devices_of_other_machines_are_only_read(base):
    sweep_grid.check(trials(base, mode=["full", "block"], sparse=["none", "bfla"], layout=[None, "lab"]))
    sweep_grid.check(trials(base, mode=["block"], prepare=["with_neighbours(n=2)", "behind_document"]))
    sweep_grid.check(trials(base, mode=["full"], prepare=["with_neighbours(n=40)"]))
    sweep_grid.check(trials(base, device=["cuda:7"]), here=False)
    refused("unknown device 'tpu'", lambda: sweep_grid.check(trials(base, device=["tpu"]), here=False))


def test_what_is_finished_is_not_checked_again(base, tmp_path, monkeypatch):
    table = sweep(base, tmp_path, seed=[0])
    monkeypatch.setattr(sweep_grid, "check", lambda trials, *_, **__: seen.extend(trials))
    seen = []
    assert sweep(base, tmp_path, seed=[0, 1]).trial.nunique() == 2 and len(table)
    assert [trial.seed for trial in seen] == [1]
