import gc
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, get_args, get_origin

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests import tiny
from tests.commands import refused_command, told
from workbench import models, results
from workbench.app import cli
from workbench.app.commands.sweep import sweep
from workbench.app.commands.trial import trial
from workbench.app.console import text
from workbench.app.console.options import of_fields, with_options
from workbench.app.console.trial_report import beside_full, report
from workbench.core.utils import stages
from workbench.data import assets
from workbench.experiments.sweeps import sweep as of_sweeps
from workbench.experiments.trials import runs
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.metrics.latency import Quantiles
from workbench.models import loading

ROOT = Path(__file__).resolve().parents[1]
QUICK = ["--samples", "3", "--passages", "2", "--max-new-tokens", "3", "--timed", "1"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(cli.app, [str(word) for word in words])


def test_json_is_the_only_thing_on_stdout(folder, tmp_path, monkeypatch, capfd):
    """What a process prints as it starts: tests/test_bench.py."""
    monkeypatch.setattr(
        sys, "argv", ["workbench", "trial", "--model", str(folder), "--mode", "block", *QUICK, "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.app()
    told = capfd.readouterr().out
    assert not ended.value.code and told.count("\n") == 1
    assert Record.from_json(json.loads(told)).trial["mode"] == "block"


def test_a_trial_prints_one_table_beside_full_attention(run):
    block = run("trial", "--mode", "block", *QUICK).stdout.splitlines()
    full = run("trial", "--mode", "full", *QUICK).stdout.splitlines()
    for lines in (block, full):
        assert len(lines) <= 12 and max(map(len, lines)) <= 80 and not any("nan" in line for line in lines)
    for words in ("exact match", "F1", "contains", "first token", "tokens computed"):
        (one,) = (line for line in block if line.startswith(words))
        assert len(one.split()) > len(words.split()) + 2, "the method, full attention and their difference"
    asked = "--samples 3 --passages 2"  # the same questions
    assert all(f"trial --model lab-full {asked} --method " in " ".join(lines) for lines in (block, full))
    assert any(line.startswith("KL") for line in block) and not any(line.startswith("KL") for line in full)


@pytest.mark.parametrize(("timed", "computed", "claims"), [(3, 10, False), (5, 10, True), (5, 40, False)])
def test_a_trial_claims_a_speedup_from_enough_requests_and_of_fewer_tokens(run, timed, computed, claims):
    record = Record.from_json(json.loads(run("trial", "--mode", "block", *QUICK, "--json").stdout))
    ours, full = (Quantiles(p50 / 2, p50, p50 * 2, timed, p50 / 2, p50 * 2) for p50 in (0.01, 0.1))
    times = {"ttft_s": ours, "ttft_full_s": full, "rows_computed": computed, "prompt_tokens": 40}
    console = Console(width=80, record=True, file=StringIO())
    console.print(beside_full(replace(record, **times), []))
    (line,) = (line for line in console.export_text().splitlines() if line.startswith("first token"))
    assert ("speedup 10× (2.5 to 40)" in line) == claims and ("no speedup" in line) != claims


@pytest.mark.parametrize("sparsity", [{}, {"tiles": 0.29, "mass": 0.68, "error": 0.1, "seconds": 0.0}])
def test_a_sparse_trial_says_how_many_tiles_it_keeps_and_what_they_hold(run, sparsity):
    record = Record.from_json(json.loads(run("trial", "--mode", "block", *QUICK, "--json").stdout))
    console = Console(width=80, record=True, file=StringIO())
    console.print(beside_full(replace(record, sparsity=sparsity or None), []))
    told = [line for line in console.export_text().splitlines() if "29%" in line and "68%" in line]
    assert len(told) == bool(sparsity)


def test_a_trial_without_an_exact_answer_says_what_to_read_instead(run):
    record = Record.from_json(json.loads(run("trial", "--mode", "block", *QUICK, "--json").stdout))

    def said(*scores: tuple[float, float]) -> str:
        rows = [{"em": own, "f1": own, "contains": own, "full_em": full, "full_f1": full} for own, full in scores * 3]
        rows = [row | {"kl": 0.1} for row in rows]
        console = Console(width=200, record=True, file=StringIO())
        console.print(beside_full(record, rows))
        (line,) = (line for line in console.export_text().splitlines() if line.startswith("If an interval"))
        return line

    assert said((0, 0), (0, 0)) != said((0, 1), (0, 0)) == said((1, 1), (1, 0))


def test_only_a_trial_of_full_attention_is_said_to_compute_every_token(run):
    record = Record.from_json(json.loads(run("trial", "--mode", "block", "--no-fidelity", *QUICK, "--json").stdout))
    for mode in ("block", "full"):
        console = Console(width=200, record=True, file=StringIO())
        console.print(beside_full(replace(record, trial={**record.trial, "mode": mode}), []))
        assert ("Every token is computed" in console.export_text()) == (mode == "full")


def test_both_reports_of_a_trial_say_once_that_a_lab_model_knows_its_corpus_alone(run):
    record = Record.from_json(json.loads(run("trial", "--mode", "block", *QUICK, "--json").stdout))
    record = replace(record, trial={**record.trial, "model": "lab-full", "data": "mine.jsonl"})
    for made in (report(record, []), beside_full(record, [])):
        console = Console(width=200, record=True, file=StringIO())
        console.print(made)
        assert console.export_text().count("was trained only on") == 1


def test_details_of_a_trial_are_printed_where_asked(folder, run):
    done = run("trial", "--model", folder, "--mode", "block", "--positions", "naive", "--details", *QUICK)
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())  # lines break where a long path leaves no room
    promised = "block, naive positions|exact match|time to first token|store hit rate|95% intervals|KL|rows charged"
    for words in promised.split("|"):
        assert words in text


def test_details_are_added_below_the_short_table_and_before_the_next_command(folder, run, tmp_path):
    asked = ("trial", "--model", folder, "--mode", "block", *QUICK)
    (short, next_line), details = run(*asked).stdout.split("Next:"), run(*asked, "--details").stdout
    labels = [line.split("  ")[0] for line in short.splitlines() if "  " in line]
    assert all(label in details for label in labels) and details.split("Next:")[1] == next_line
    (tmp_path / "q.csv").write_text("question,passages\nWho?,A text\n")
    without = run("trial", "--model", folder, "--mode", "block", "--data", "q.csv", "--timed", "1", "--details").stdout
    assert "exact match" not in without and "–" not in without and "one at a time" not in without


def test_the_record_has_every_number_the_command_promises_and_out_holds_it_with_its_questions(folder, run, tmp_path):
    found = json.loads(run("trial", "--model", folder, *QUICK, "--json", "--out", "mine").stdout)
    promised = "em em_low em_high f1 f1_low f1_high n ttft_s rows_computed rows_reused flops bytes hit_rate"
    promised += " by_kind versions device answered rows_charged compared"
    near = ("nll", "nll_extra", "kl", "kl_first", "agree", "agree_first")
    assert {*promised.split(), *(f"{name}{end}" for name in near for end in ("", "_low", "_high"))} <= set(found)
    assert found["n"] == 3 and set(found["ttft_s"]) == {"p5", "p50", "p95", "least", "most", "n"}
    (record,) = (tmp_path / "mine" / "trials").glob("*.json")
    assert json.loads(record.read_text())["record"] == found
    kept = results.read(tmp_path / "mine")
    assert set(kept.counts("trial").measure) >= {"em", "contains", "f1", "kl", "rows_computed", "hit_rate"}
    assert len(kept.answers("trial")) == 3 and len(kept.timings("trial")) == 1
    (compared,) = runs.read_runs(tmp_path / "mine")
    assert len(compared.answers) == 3 == compared.scores["n"]


GROUPS = ("store", "sparse", "lab")  # their commands have examples
BAD = {
    "an unknown model": (["--model", "no-such-model"], "unknown model 'no-such-model': allowed are"),
    "an unknown data set": (["--data", "no-such-data"], "unknown data 'no-such-data': allowed are lab"),
    "a missing file": (["--data", "gone.jsonl"], "no such file"),
    "an empty answer": (["--data", "no-answers.jsonl"], "no-answers.jsonl, line 1: field 'answers' holds ' '"),
    "an unknown mode": (["--mode", "blok"], "unknown mode 'blok': allowed are full, block"),
    "unknown positions": (
        ["--mode", "block", "--positions", "x"],
        "unknown positions 'x': allowed are re-encoded, naive",
    ),
    "an unknown device": (["--device", "tpu"], "unknown device 'tpu'"),
    "a missing device": (["--device", "cuda:99"], "'cuda:99' is not there"),
    "an unknown dtype": (["--dtype", "int3"], "unknown dtype 'int3'"),
    "no samples": (["--samples", "0"], "samples is 0"),
    "too many passages": (["--passages", "41"], "passages is 41"),
    "a prompt over the context": (["--passages", "40"], "tokens, the model's context is 2048"),
    "an output folder that is a file": (["--out", "no-answers.jsonl"], "--out 'no-answers.jsonl' is a file"),
    "a half-written checkpoint": (["--model", "half"], "model.safetensors is corrupt or half-written"),
    "a number that is none": (["--samples", "many"], "Invalid value for '--samples'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error_with_exit_code_2_and_nothing_written(folder, run, tmp_path, name):
    words, message = BAD[name]
    (tmp_path / "no-answers.jsonl").write_text('{"question": "Who?", "answers": [" "], "ctxs": ["Ana."]}')
    half = tiny.checkpoint(tmp_path / "half") / "model.safetensors"
    half.write_bytes(half.read_bytes()[:5000])
    before = sorted(tmp_path.rglob("*"))
    done = run("trial", "--model", folder, "--out", "mine", *QUICK, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert done.stderr.startswith("error: ") or "Usage" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unexpected_exception_keeps_exit_code_1(folder, run, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr("workbench.experiments.trials.trial.Trial.run_each", fail)
    done = run("trial", "--model", folder)
    assert done.exit_code == 1 and isinstance(done.exception, RuntimeError)


def test_help_says_of_every_command_what_the_command_says_and_waits_for_no_model_library(run):
    listed = " ".join(run("--help").stdout.replace("│", " ").split())
    for name, (_, said) in cli.COMMANDS.items():
        assert f"{name} {said}" in listed
        helped = " ".join(run(name, "--help").stdout.split())
        assert said in helped and (name in GROUPS or "Example: workbench" in helped)
    script = "import sys, workbench.app.cli; assert not {'torch', 'transformers', 'papermill'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_a_command_ends_with_its_code_and_whole_output_and_what_was_registered_for_the_end_is_called():
    script = """import atexit, sys
from workbench.app import cli
def run():
    atexit.register(print, "called")
    print("x" * 100_000)
    sys.exit(int(sys.argv[1]))
cli.run = run
cli.main()"""
    for code in (0, 2):
        done = subprocess.run([sys.executable, "-c", script, str(code)], capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (code, "") and done.stdout.split() == ["x" * 100_000, "called"]


def test_threads_that_wait_soon_sleep_unless_told_otherwise():
    asked = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    told = f"print([os.environ.get(name) for name in {asked}])"
    script = f"import os; from workbench.app import cli; cli.run = lambda: {told}; cli.main()"
    free = {name: value for name, value in os.environ.items() if name not in asked}
    for given, wanted in (
        ({}, [None, cli.SPINS]),
        ({"OMP_WAIT_POLICY": "active"}, ["active", None]),
        ({"GOMP_SPINCOUNT": "7"}, [None, "7"]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=free | given
        )
        assert done.stdout.strip() == str(wanted)


HEAVY = "torch transformers accelerate pandas scipy sklearn distributed plotly papermill nbformat IPython".split()
WATCHED = """import os, sys
from typer.testing import CliRunner
from workbench.app import cli
for line in sys.stdin.read().splitlines():
    said = CliRunner().invoke(cli.app, line.split())
    heavy = sorted(set(sys.argv[1:]) & set(sys.modules))
    print(said.exit_code, ",".join(heavy) or "nothing", " ".join(said.output.split())[:160], sep="|")
"""


def watched(lines: list[str]) -> list[list[str]]:
    """Run command lines one after the other in one process; of each [exit code, heavy imports so far, what it says]."""
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED, *HEAVY], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    return [line.split("|", 2) for line in ran.stdout.splitlines()]


UNKNOWN = {  # command lines: what is said of them
    "trial --model x|sweep --model lab-full,x|verify --model x|tune --model x": "unknown model 'x'",
    "trial --data x.jsonl|sweep --data lab,x.jsonl|store encode x.md --to y|data x.csv": "no such file",
    "trial --method x|sweep --method full,x|leaderboard --method x --out y": "unknown method",
    "trial --method by_head|sweep --method full,by_head|leaderboard --method by_head --out y": "--sparse by_head",
    "trial --select x|sweep --select none,x": "unknown select 'x'",
    "trial --sparse x|sweep --sparse none,x": "unknown sparse 'x'",
    "store stats x|store verify x|store gc x --budget 1MB|store explain x --model lab-full": "no folder of cached",
    "claims --results x|leaderboard --results x|report --results x": "no results at 'x'",
    "encode x": "did you mean 'store encode'",
    "convert x": "did you mean 'models convert'",
    "report x.ipynb": "no notebook file",
    "report 01_masks": "did you mean 'notebooks",
    "report -p x=1|report -p samplse=1": "unknown parameter",
    "trace x": "x is not there",
    "trial --select first_k(k=-1)|sweep --select none,first_k(k=-1)": "k is -1",
    "trial --sparse bfla(block=100)|sweep --sparse none,bfla(block=100)": "no multiple of tile 64",
    "trial --model lab-full --passages 50": "passages is 50",
    "trial --model lab-full --max-new-tokens 5000": "max_new_tokens is 5000",
    "trial --select query_guided(layer=all)": "select 'query_guided' has no option 'layer'",
    "trial --select query_guided(layers=al)": "layers is 'al'",
    "trial --prepare with_neighbours(n=x)|prepare --out y --prepare with_neighbours(n=x)": "n is 'x'",
    "prepare --out y --n -1": "n is -1",
    "trial --prepare with_neighbours(search=x)": "search is 'x'",
    "trial --prepare with_neighbours(embedder=x.npz)": "embedder 'x.npz'",
    "trial --sparse bfla(mass=2)|trial --sparse by_head(over=bfla(mass=2))": "mass is 2",
    "trial --sparse bfla --sparse-args mass=2": "mass is 2",
    "leaderboard --out y --by x|leaderboard --results shipped --by x": "unknown by 'x'",
    "trial --sparse xattention(threshold=2)": "threshold is 2",
    "trial --correct fuse(theta=-1)": "theta is -1",
    "trial --attend ape(scale=0)": "scale is 0",
    "trial --mode superposition(paths=0)": "paths is 0",
    "trial --mode blok|sweep --mode full,blok": "unknown mode 'blok'",
    "models ordinary x y|models difference x y --base lab-full": "unknown model 'x'",
    "models convert x y": "there is no file x",
    "sweep --plan x": "plan 'x' is not there",
    "store import x y": "x: no such file",
    "trial --positions x|sweep --positions naive,x": "unknown positions 'x'",
    "trial --engine x|sweep --engine auto,x|serve-bench --engine x": "unknown engine 'x'",
    "trial --dtype x|sweep --dtype none,x|verify --dtype x|prepare --out y --dtype x": "unknown dtype 'x'",
    "trial --device tpu|sweep --device cpu,tpu|store encode lab --to y --device tpu": "unknown device 'tpu'",
    "trial --layout x|sweep --layout none,x|data lab --model lab-full --layout x": "unknown layout 'x'",
    "trial --prepared x|sweep --prepared none,x": "'x' is no folder of cached blocks",
    "trial --faithfulness x|sweep --faithfulness none,x": "unknown judge 'x'",
    "sweep --ratio .1,2 --select first_k": "ratio 2.0: it is a share",
    "sweep --samples 10,0": "samples is 0",
    "sweep --samples x": "samples is 'x'",
    "trial --data pyproject.toml|sweep --data lab,pyproject.toml": "pyproject.toml: a data file ends in",
    "trial --data docs|leaderboard --data docs --out y": "no questions about docs: write them to docs/questions.jsonl",
    "trial --data data/claims.json": "data/claims.json",
    "leaderboard --out y --budgets 2": "budget 2: a share above 0",
    "models ordinary lab-full docs": "docs is there already",
    "trial --ratio 2|trial --method cacheblend --ratio 2": "ratio 2.0: it is a share",
    "trial --method full --mode block|trial --method epic --mode full": "contradict each other",
    "trial --mode block --ratio .15|trial --method block --ratio .3|trial --ratio .3": "as --select query_guided",
    "trial --mode full --select first_k": "select 'first_k' is for mode block",
    "trial --mode full --store y": "store 'y' is for mode block",
    "trial --charged 2": "charged is 2.0",
    "trial --chunk 0": "--chunk is 0",
    "serve-bench --mode x|serve-bench --mode sync,x": "unknown mode 'x'",
    "serve-bench --baselines x|serve-bench --baselines full,x": "unknown baseline 'x': allowed are full, prefix",
    "trial --model data|verify --model data": "data/config.json is missing",
    "verify --model y/x|trial --model ./x": "unknown model",
    "compare x y": "'x' is neither",
    "compare data notebooks": "data holds no results",
    "store stats data|store verify data|store gc data --budget 1MB": "data is no folder of cached blocks",
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[common", "error: plan "),
        ("[[trials]]\nmodus = 'full'", "unknown field of a plan 'modus'"),
        ("[[trials]]\nmode = 'half'", "unknown mode 'half'"),
        ("[[trials]]\nmode = 3", "mode is 3"),
        ("[[trials]]\nsamples = 'x'", "samples is 'x'"),
        ("[common]\nmodel = 'x'\n[[trials]]\nmode = 'full'", "unknown model 'x'"),
        ("[[trials]]\nselect = ['none', 'first_k(k=-1)']", "k is -1"),
        ("[[trials]]\nmethod = 'x'", "unknown method 'x'"),
    ],
)
def test_a_broken_plan_is_refused_before_anything_heavy_is_imported(text, message, tmp_path):
    (tmp_path / "plan.toml").write_text(text)
    ((code, heavy, said),) = watched([f"sweep --out {tmp_path}/out --plan {tmp_path}/plan.toml"])
    assert (code, heavy) == ("2", "nothing") and message in said


def test_runs_are_compared_without_a_model_library(tmp_path):
    for mode in ("full", "block"):
        told("trial", *QUICK, "--mode", mode, "--out", tmp_path / mode)
    compare = f"compare {tmp_path}/full {tmp_path}/block"
    for options, code, message in (
        (" --base x", "2", "no run is named 'x'"),
        (" --score x", "2", "a score 'x'"),
        (f" {tmp_path}/./full", "2", "is named twice"),
        ("", "0", ""),
    ):
        ((ended, heavy, said),) = watched([compare + options])
        assert ended == code and message in said and not {"torch", "transformers"} & set(heavy.split(",")), said


def test_a_parameter_of_a_notebook_is_refused_before_a_model_library_is_imported():
    ((code, heavy, said),) = watched(["report notebooks/08_recompute_tradeoff.ipynb -p prepare=with_neighbours(n=-1)"])
    assert (code, heavy) == ("2", "IPython") and said.startswith("error: parameter prepare")


def test_a_trial_imports_no_library_of_tables_or_figures():
    ((code, heavy, _),) = watched([" ".join(["trial", *QUICK])])
    assert code == "0" and "torch" in heavy and not {"pandas", "plotly", "IPython"} & set(heavy.split(","))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_no_option_is_cut_in_a_help_of_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert re.findall(r"\S*\w…", told(name, "--help")) == []


def test_help_versions_and_lists_of_what_is_there_import_nothing_heavy():
    parts = {"store": "encode verify repair stats gc export import explain", "sparse": "names distill profile"}
    parts |= {"lab": "train ship", "models": "get convert ordinary difference"}
    lines = ["--help", *(f"{name} --help" for name in cli.COMMANDS)]
    lines += [f"{name} {part} --help" for name, text in parts.items() for part in text.split()]
    wanted = dict.fromkeys(lines, "Usage:") | {
        "--version": "cached-block-workbench ",
        "models": "model ",
        "data": "lab ",
    }
    for (line, first), (code, heavy, said) in zip(wanted.items(), watched(list(wanted)), strict=True):
        assert (line, code, heavy) == (line, "0", "nothing") and said.startswith(first)


LIGHT_FAULTS = [f"{name} --no-such-option" for name in cli.COMMANDS]
LIGHT_FAULTS += ["trial --samples x", "trial --samples 0", "trial --store-gib 0", "trial --html", "sweep --jobs x"]
LIGHT_FAULTS += ["compare a b --samples x", "compare data data --samples 0", "compare", "tune --model m --out o --lr x"]
LIGHT_FAULTS += ["tune --model m --out o --lr 5", "tune --model m --out o --passages x", "store gc f --budget x"]
LIGHT_FAULTS += [
    "tune --model m --out o --kinds x",
    "sparse distill --out o --lr 0",
    "sparse profile --out o --block x",
]
LIGHT_FAULTS += ["lab train --out o --set corpus=x", "lab train --out o --minutes -1", "data lab --out o --samples 0"]
LIGHT_FAULTS += ["bench x", "bench all --check --only a", "report --jobs x", "report -p x", "prepare --workers x"]
LIGHT_FAULTS += ["serve-bench --samples 0", "serve-bench --rate 0", "serve-bench --batch 0", "serve-bench --start x"]
LIGHT_FAULTS += [
    "sparse profile --out no/where",
    "sparse distill --out no/where",
    "nothing",
    "store gc s3://x --budget 1",
    "data lab --samples 0",
    "models get x",
]


def test_faults_in_options_and_names_that_are_not_known_are_told_before_anything_heavy_is_imported():
    lines = {line: message for text, message in UNKNOWN.items() for line in text.split("|")}
    lines |= dict.fromkeys(LIGHT_FAULTS, "")
    for line, (code, heavy, said) in zip(lines, watched(list(lines)), strict=True):
        assert (line, code, heavy) == (line, "2", "nothing") and lines[line] in said, said


def test_models_are_listed(folder, run, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(assets, "models", lambda: ["lab-tiny"])
    monkeypatch.setattr(assets, "model_path", lambda name: folder)
    assert "lab-tiny" in run("models").stdout
    (row,) = json.loads(run("models", "--json").stdout)
    assert row["layers"] == 2 and row["layout"] == "lab" and row["parameters"] > 10000


def test_a_data_set_is_shown(run, folder):
    assert run("data", "lab", "--samples", "2").stdout.count("\nA ") == 2
    lines = run("data", "lab", "--samples", "2", "--json").stdout.splitlines()
    assert {"id", "question", "answers", "ctxs"} <= set(json.loads(lines[1]))
    refused_command("data", "nothing")
    assert "2 questions, 10 passages each" in run("data", "lab", "--samples", "2").stdout
    shown = run("data", "lab", "--samples", "1", "--passages", "2", "--model", folder).stdout
    assert "block 3" in shown and "tokens a prompt, n = 1" in " ".join(shown.split())
    tokens = run("data", "lab", "--samples", "1", "--model", folder, "--tokens").stdout
    assert "' " in tokens and "' \n" not in tokens, "no line breaks within a token"
    refused_command("data", "lab", "--tokens")
    assert run("data", "needles-tracking", "--samples", "2", "--passages", "4").stdout.count("\nA ") == 2
    assert {"lab", "needles", "needles-multi-key"} <= set(run("data").stdout.split())


def test_fields_of_a_trial_are_options_of_trial_and_sweep_with_one_help_text():
    texts = {field.name: get_args(field.type)[1] for field in fields(Trial) if get_origin(field.type) is Annotated}
    assert {"mode", "ratio", "model", "seed", "timed"} <= set(texts) and "store_gib" not in texts
    for command in (trial, sweep):
        options = inspect.signature(command).parameters
        assert texts == {name: options[name].annotation.__metadata__[0].help for name in texts}
    defaults = {name: option.default for name, option in inspect.signature(trial).parameters.items()}
    assert (defaults["model"], defaults["mode"], defaults["samples"]) == ("lab-full", None, Trial.samples)


def test_a_command_takes_options_between_its_first_and_its_named_arguments():
    @dataclass
    class Settings:
        name: Annotated[str, "A name"]
        count: Annotated[int, "How many"] = 2
        hidden: int = 3

    @with_options(of_fields(Settings, {"name": "a"}, text=["count"]))
    def command(first, *, last=1, **given):
        return first, last, given

    assert list(inspect.signature(command).parameters) == ["first", "name", "count", "last"]
    assert inspect.signature(command).parameters["count"].annotation.__origin__ is str


def test_where_no_person_watches_a_line_a_minute_says_how_long_the_rest_takes():
    now, lines = [0.0], []
    told = text.ProgressLines("sweeping", lines.append, lambda: now[0])
    for at, done in ((0, 40), (30, 50), (91, 60), (100, 61), (3721, 140)):
        now[0] = float(at)
        told(done, 200)
    assert lines == [
        "sweeping: 50 of 200 after 30 s, 8 min left",
        "sweeping: 60 of 200 after 2 min, 11 min left",
        "sweeping: 140 of 200 after 1 h 2 min, 37 min left",
    ]
    assert [text.duration(seconds) for seconds in (45, 720, 12_000)] == ["45 s", "12 min", "3 h 20 min"]


def test_a_log_is_not_silent_for_more_than_ten_seconds_of_the_first_minute():
    now, said = [0.0], [0.0]
    told = text.ProgressLines("a trial", lambda line: said.append(now[0]), lambda: now[0])
    for second in range(61):
        now[0] = float(second)
        told.tick()
    assert max(after - before for before, after in pairwise([*said, 60.0])) <= 10


def test_time_left_is_not_underestimated_where_the_part_at_work_is_slow():
    now = [0.0]
    pace = text.Pace("notebooks", lambda: now[0])
    for at, done in ((0, 0), (8, 1)):
        now[0] = float(at)
        pace(done, 4)
    soon = pace.time_left()
    now[0] = 68.0
    assert (soon, pace.time_left()) == (", 24 s left", ", 42 s left")


def test_a_line_says_what_long_work_is_at_before_anything_is_counted():
    now, lines = [0.0], []
    told = text.ProgressLines("a trial", lines.append, lambda: now[0])
    with stages.stages_reported_to(told.start_stage):
        now[0] = 1.5
        told.tick()
        stages.stage("loading lab-full")
        now[0] = 9.0
        told.tick()
        stages.stage("answering")
        told(0, 20)
        now[0] = 69.0
        told(10, 20)
    stages.stage("unheard")
    assert lines == [
        "a trial: loading, after 2 s",
        "a trial: loading lab-full, after 9 s",
        "a trial: answering, 10 of 20 after 69 s, 60 s left",
    ]


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(-0.507, -0.0001, "-50.7% to 0.0%"), (0.25, 0.5, "25.0% to 50.0%"), (-1, 1, "to 100.0%")]
)
def test_an_interval_has_words_between_its_ends_and_no_negative_nothing(low, high, shown):
    assert shown in text.with_interval({"em": -0.2, "em_low": low, "em_high": high}, "em")


STOPPED = {  # commands that load a model, with the folder or file that they would write
    "trial": ("trial", "--mode", "block", *QUICK, "--out", "out"),
    "sweep": ("sweep", "--mode", "block", "--samples", "3", "--out", "out"),
    "leaderboard": ("leaderboard", "--samples", "3", "--method", "block,link0", "--out", "out"),
    "compare": ("compare", "lab-full", "lab-block", "--samples", "3", "--html", "out"),
    "prepare": ("prepare", "--data", "lab", "--samples", "2", "--out", "out"),
    "encode": ("store", "encode", "lab", "--samples", "2", "--to", "out"),
    "serve-bench": ("serve-bench", "--samples", "2", "--out", "out"),
    "verify": ("verify", "--html", "out"),
    "tune": ("tune", "--model", "lab-full", "--out", "out", "--steps", "50"),
    "sparse distill": ("sparse", "distill", "--out", "out", "--samples", "1"),
    "sparse profile": ("sparse", "profile", "--out", "out", "--samples", "1"),
}


@pytest.mark.parametrize("words", STOPPED.values(), ids=STOPPED)
def test_who_stops_a_command_is_told_what_is_kept_without_a_traceback(words, run, tmp_path, monkeypatch):
    def stop(*_given, **_more):
        raise KeyboardInterrupt

    of_sweeps.load.cache_clear()  # an earlier sweep of this process may have loaded the model
    for module in (models, loading):
        monkeypatch.setattr(module, "load", stop)
    ended = run(*words)
    *_, line = ended.stderr.splitlines()
    assert ended.exit_code == 130 and line == f"stopped: {stages.NOTHING}", ended.output
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_that_is_stopped_says_in_one_line_what_is_kept_and_goes_on(folder, tmp_path, jobs):
    words = ["sweep", "--model", folder, "--samples", "2,3,200", "--passages", "2", "--timed", "1", "--mode", "block"]
    command = [sys.executable, "-m", "workbench", *map(str, words), "--jobs", str(jobs), "--out", "out"]
    given = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "start_new_session": True}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **given) as process:
        while not (there := len(list((tmp_path / "out" / "trials").glob("*.json")))):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130 and "Traceback" not in said, said
    assert said.splitlines()[-1].startswith(f"stopped: {there} of 3 trials are saved in out"), said
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


STOPS_ITSELF = """import os, runpy, signal, sys
named, *sys.argv[1:] = sys.argv[1:]
class Stops:
    def find_spec(self, name, path=None, target=None):
        if name == named:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as a module that is imported may
                pass
sys.meta_path.insert(0, Stops())
runpy.run_module("workbench", run_name="__main__", alter_sys=True)"""


@pytest.mark.parametrize("name", ["workbench.app.cli", "rich.console", "workbench.app.commands.trial", "torch"])
def test_a_command_that_is_stopped_while_something_is_imported_ends_in_one_line(name, tmp_path):
    command = [sys.executable, "-c", STOPS_ITSELF, name, "trial", "--samples", "1", "--out", "out"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    *before, line = done.stderr.splitlines()
    assert (done.returncode, done.stdout, line) == (130, "", f"stopped: {stages.NOTHING}"), done.stderr
    assert all(", after " in each for each in before) and not list(tmp_path.iterdir())


def test_a_command_that_is_stopped_at_its_end_keeps_its_output_and_ends_without_a_word():
    script = """import atexit, os, signal
from workbench import __main__ as command
from workbench.app import cli
def run():
    print("x" * 100_000)
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
cli.run = run
command.main()"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "x" * 100_000 + "\n", "")


def test_a_command_that_ignores_ctrl_c_goes_on(tmp_path):
    command = [
        "sh",
        "-c",
        'trap "" INT; exec "$0" "$@"',
        sys.executable,
        "-c",
        STOPS_ITSELF,
        "rich.console",
        "--version",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and "torch" in done.stdout


@pytest.mark.parametrize(
    ("said", "told"), [((lambda: "a", lambda: "b"), "b"), ((lambda: stages.so_far(0, 3, "runs", "x"),), stages.NOTHING)]
)
def test_what_is_kept_is_told_by_the_innermost_that_knows(said, told):
    with pytest.raises(KeyboardInterrupt, match=told), ExitStack() as stack:
        for kept in said:
            stack.enter_context(stages.keeps(kept))
        raise KeyboardInterrupt


@pytest.mark.parametrize("terminal", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"COLUMNS": "0"}])
def test_a_terminal_without_unicode_or_width_is_told_all_it_can_show(terminal):
    command = [sys.executable, "-m", "workbench", "data", "lab", "--samples", "1"]
    done = subprocess.run(command, capture_output=True, env=os.environ | terminal, cwd=ROOT)
    assert done.returncode == 0 and done.stderr == b"" and b"lab-0-0" in done.stdout
    assert b"Q " in done.stdout


@pytest.mark.parametrize("times", [1, 9])
def test_a_command_on_several_lines_is_copied_into_a_shell_as_one(times):
    said = text.copied("echo" + " --some-option some-value" * times)
    assert max(map(len, said.splitlines())) <= 80
    assert (
        subprocess.run(said, shell=True, capture_output=True, text=True).stdout.split()
        == said.replace("\\", "").split()[1:]
    )


@pytest.mark.parametrize("searched", [True, False])
def test_imports_leave_the_search_for_garbage_as_it_was(searched):
    before = gc.isenabled()
    try:
        (gc.enable if searched else gc.disable)()
        with pytest.raises(ImportError), text.importing():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == searched
    finally:
        (gc.enable if before else gc.disable)()


def test_a_note_is_printed_once(monkeypatch):
    monkeypatch.setattr(text, "_noted", {})
    assert [text.note("4 passages"), text.note("4 passages"), text.note("a")] == ["note: 4 passages\n", "", "note: a\n"]
    assert text.not_noted("4 passages. More.") == "4 passages. More.", "the report is read without the notes"
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert text.not_noted("4 passages More.") == "More."


@pytest.mark.parametrize("command", ["trial", "sweep"])
def test_an_option_of_prepare_is_answered_with_the_choice_that_says_the_same(command):
    assert 'with_neighbours(n=3)"' in refused_command(command, "--n", "3")
