"""`workbench compare`: runs of any kind side by side, paired by question where they can be."""

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.commands import refused_command, told
from tests.refusals import refused
from workbench import models
from workbench.app.reports import compared_page
from workbench.core.errors import BadInput
from workbench.experiments.trials import rows
from workbench.experiments.trials import runs as reading
from workbench.experiments.trials.run_differences import RunDifference, compared
from workbench.experiments.trials.runs import Run
from workbench.experiments.trials.trial import Trial
from workbench.metrics.latency import Quantiles
from workbench.models.checkpoints import DIFFERENCE, WEIGHTS
from workbench.models.model_card import describe
from workbench.models.weights import delta_weights, export_hf
from workbench.plots.reports.run_differences import RULE, differences, ends, most_telling, run_sentences, sentence


def made(name: str, em: list[int], **more) -> Run:
    answers = [{"id": str(i), "expected": f"e{i}", "em": float(x)} for i, x in enumerate(em)]
    scores = {"em": sum(em) / len(em), "ttft_p50": more.pop("ttft", 1.0), "rows_computed": more.pop("rows", 100.0)}
    mode = "full" if name.startswith("full") else "block"
    parameters = {"model": "m", "data": "lab", "samples": len(em), "seed": 0, "mode": mode, **more}
    return Run(name, f"{name}.json", parameters, scores, {"torch": "2"}, answers)


FULL = made("full", [1, 1, 1, 1, 1, 0])
REUSE = made("reuse", [1, 0, 0, 0, 0, 0], select="none", ttft=0.25, rows=10.0)


def words(found) -> str:
    return " ".join(run_sentences(found))


@pytest.fixture(scope="module")
def records(loaded, tmp_path_factory) -> Path:
    """Records of two trials on disk, as `workbench trial --out` writes them."""
    place = tmp_path_factory.mktemp("records")
    for name, mode in (("full", "full"), ("block", "block")):
        trial = Trial("tiny", samples=4, passages=3, timed=1, max_new_tokens=2, mode=mode)
        record, answers = trial.run_each(loaded=loaded)
        rows.write(place / name, name, record, answers)
    return place


def test_differences_are_paired_by_question_and_worded_by_their_sign():
    found = compared([FULL, REUSE])
    (em,) = (each for each in found.differences if each.score == "em")
    assert em.difference == pytest.approx(-4 / 6) and em.n == 6 and em.high is not None and em.high < 0
    assert em.p == pytest.approx(0.125), "McNemar of 4 and 0"
    assert next(
        d for d in compared([REUSE, FULL], base="1").differences if d.score == "em"
    ).difference == pytest.approx(4 / 6)
    as_many = compared([FULL, replace(REUSE, scores={**REUSE.scores, "rows_computed": 100.0})])
    assert "faster" not in words(as_many), "a clock that differs where as much is computed"
    few = [replace(run, scores={**run.scores, "ttft_n": 1.0}) for run in (FULL, REUSE)]
    assert "faster" not in words(compared(few)) and "fewer tokens" in words(compared(few)), "one timed request each"
    assert "m on lab" in words(found)
    same = compared([FULL, replace(FULL, name="again")])
    assert "the same on all 6 questions" in words(same)


def times(n: int, least: float, most: float) -> Quantiles:
    return Quantiles(least, (least + most) / 2, most, n, least, most)


@pytest.mark.parametrize(("n", "most", "claims"), [(5, 0.3, True), (4, 0.3, False), (5, 1.5, False)])
def test_a_speedup_is_claimed_from_enough_requests_whose_ends_leave_no_doubt(records, n, most, claims):
    kept = [reading.read_runs(records / name)[0] for name in ("full", "block")]
    ends = (times(n, 1.0, 1.2), times(n, 0.2, most))

    def timed_as(ends):
        return [
            replace(
                run, record=replace(run.record, ttft_s=end), scores={**run.scores, "ttft_n": n, "ttft_p50": end.p50}
            )
            for run, end in zip(kept, ends, strict=True)
        ]

    timed = timed_as(ends)
    assert ("faster" in words(compared(timed))) == claims
    (row,) = (row for row in compared(timed).costs() if row["run"] != timed[0].name)
    assert (row["ttft_low"], row["ttft_high"]) == (pytest.approx(1.0 / most), pytest.approx(1.2 / 0.2))
    back = words(compared(timed_as(ends[::-1])))
    assert ("slower" in back and "3.33 to 6.00 times" in back) == claims, (
        "the ends of a ratio are those of its direction"
    )


def test_full_attention_of_two_models_is_not_compared_by_what_each_is_measured_beside():
    def run(model, kl, mode):
        own = {"kl": kl, "agree": 1.0 - kl}
        answers = [{**row, **own} for row in FULL.answers]
        about = {**FULL.parameters, "model": model, "mode": mode}
        return replace(FULL, name=f"{model} {mode}", parameters=about, scores={**FULL.scores, **own}, answers=answers)

    full, other, block = run("a", 0.0, "full"), run("b", 0.0, "full"), run("b", 0.1, "block")
    assert {each.score for each in compared([full, other], base="1").differences} == {"em"}
    told = {(each.run, each.score) for each in compared([full, other, block], base="1").differences}
    assert told == {("b full", "em"), *(("b block", score) for score in ("em", "kl", "agree"))}
    refused("'kl' is beside full attention", compared, [full, other], base="1", scores=["kl"])


def test_answers_that_differ_stand_side_by_side():
    full, reuse = (
        replace(run, answers=[{**row, "answer": word if row["id"] == "1" else "same"} for row in run.answers])
        for run, word in ((FULL, "red"), (REUSE, "silver"))
    )
    assert compared([full, reuse]).answers() == [("1", "e1", "red", "silver")]
    asked = "when " * 40
    worded = [replace(run, answers=[{**row, "asked": asked} for row in run.answers]) for run in (full, reuse)]
    Console(file=(out := StringIO()), width=80).print(compared_page.report(compared(worded)))
    line = next(line for line in out.getvalue().splitlines() if "when" in line)
    assert line.startswith("when when") and line.split()[-2:] == ["red", "silver"] and len(line) <= 80
    assert out.getvalue().count("when") == 40, "a question is read to its end"
    assert any(title == "Answers that differ" for title, _, _ in compared_page.tables(compared([full, reuse])))


def test_the_score_that_tells_most_comes_first_where_exact_match_is_vacuous():
    def run(name, f1):
        answers = [{"id": str(i), "expected": "e", "em": 0.0, "f1": x} for i, x in enumerate(f1)]
        return replace(FULL, name=name, answers=answers, scores={"em": 0.0, "f1": sum(f1) / len(f1)})

    found = compared([run("full", [0.2, 0.3, 0.2, 0.4]), run("reuse", [0.0, 0.1, 0.0, 0.1])], base="full")
    assert most_telling(found.differences).score == "f1"


@pytest.mark.parametrize(("n", "judged"), [(3, False), (5, False), (6, True)])
def test_a_difference_of_fewer_questions_than_any_exact_test_needs_is_not_judged(n, judged):
    def run(name, score):
        answers = [{"id": str(i), "expected": "e", "em": score, "f1": score} for i in range(n)]
        return replace(FULL, name=name, answers=answers, scores={"em": score, "f1": score})

    assert ("worse" in words(compared([run("full", 1.0), run("reuse", 0.0)], base="full"))) == judged


def test_each_run_is_compared_with_full_attention_of_its_own_model_seed_and_data():
    runs = [made(mode, [1, 0, 1], seed=seed, mode=mode) for seed in (0, 1) for mode in ("block", "full")]
    for order in (runs, runs[::-1]):
        found = compared(order)
        assert {run.name: found.base_of[run.name].name for run in found.others} == {
            f"block, seed {seed}": f"full, seed {seed}" for seed in (0, 1)
        }
        assert "full attention of the same seed" in words(found) and {each.n for each in found.differences} == {3}
    for key, other in (("model", "n"), ("data", "needles"), ("device", "cuda"), ("dtype", "bfloat16")):
        pair = [made(mode, [1, 0], mode=mode, **{key: each}) for each in ("m", other) for mode in ("full", "block")]
        bases = compared(pair).base_of.values()
        assert sorted({run.parameters[key] for run in bases}) == sorted(("m", other))


def test_without_full_attention_a_base_is_required_and_the_runs_are_listed_one_a_line():
    sets = ([made("a", [1, 0]), made("b, c", [0, 0])], [made("full", [1], model="a"), made("full", [1], model="b")])
    for runs, names in zip(sets, (["a", "b, c"], ["full, model a", "full, model b"]), strict=True):
        with pytest.raises(BadInput, match="--base is required") as problem:
            compared(runs)
        assert str(problem.value).splitlines()[1:] == [f"  {number}  {name}" for number, name in enumerate(names, 1)]
    with pytest.raises(BadInput, match=r"no run is named 'b': the runs, by number and name, are\n  1  a\n  2  b, c$"):
        compared(sets[0], base="b")


def test_models_are_compared_with_the_first_named(folder, monkeypatch, loaded):
    shutil.copytree(folder, other := folder.parent / "other", dirs_exist_ok=True)
    record, answers = Trial("tiny", samples=1, passages=2, timed=1, max_new_tokens=2).run_each(loaded=loaded)
    monkeypatch.setattr(Trial, "run_each", lambda self, *_: (replace(record, trial=self.settings()), answers))
    found = json.loads(told("compare", other, folder, "--samples", "1", "--json"))
    assert found["base"] == "other, full"


def test_runs_are_named_by_their_method_and_by_what_differs_among_runs_of_it():
    given = {"charged": None, "timed": 20, "prepare": "independent"}
    runs = [made("full", [1], **given), made("block", [1], **given), made("block", [1], **given, ratio=0.3)]
    runs.append(made("block", [1], **(given | {"charged": 0.15, "timed": 5, "ratio": 0.12})))
    assert [run.name for run in reading.distinct(runs)] == ["full", "block", "block, ratio 0.3", "block, charged 0.15"]


def test_a_headline_names_the_largest_significant_loss_and_nothing_that_rounds_to_0():
    def run(name, em, nll):
        answers = [{"id": str(i), "expected": "e", "em": em, "nll": nll + i / 1e6} for i in range(9)]
        made_run = made(name, [1] * 9)
        return replace(made_run, answers=answers, scores={**made_run.scores, "em": em, "nll": nll})

    tiny_loss = words(compared([run("full", 1.0, 0.0), run("block", 1.0, 0.0003)]))
    assert "worse" not in tiny_loss and "exact match the same on all 9 questions" in tiny_loss
    assert "likelihood of the gold answer 0.300 higher" in words(compared([run("full", 1, 0), run("block", 1, 0.3)]))
    assert "exact match 100.0 points lower" in words(compared([run("full", 1, 0), run("block", 0, 9.0)]))
    found = [
        RunDifference("block", "full", score, 1.0, 1.0 - loss, -loss, 9, -2 * loss, -loss / 2, moved=9)
        for score, loss in (("em", 0.1), ("f1", 0.4))
    ]
    assert most_telling(found).score == "f1", "the larger of two that are shares"
    Console(file=(out := StringIO()), width=160).print(compared_page.overview(compared([FULL, REUSE])))
    assert RULE in " ".join(out.getvalue().split())


@pytest.mark.parametrize("em", [[1, 0, 0, 1], [0, 0, 0, 0], [0]])
def test_no_interval_is_printed_of_fewer_than_six_differing_questions(em):
    Console(file=(out := StringIO()), width=80).print(
        compared_page.report(compared([made("full", [1] * len(em)), made("block", em)]))
    )
    assert f"{em.count(0)} of {len(em)} differ" in out.getvalue() and "points (" not in out.getvalue()
    same = compared([made("full", em), made("block", em)]).differences
    assert ends(same[0]) == f"none of {len(em)} differ{'s' * (len(em) == 1)}"


def test_what_changed_is_told_and_the_base_is_chosen():
    other = replace(REUSE, versions={"torch": "3"})
    found = compared([FULL, other], base="2")
    assert found.base_name == "reuse" and found.parameters == {"mode": ["full", "block"], "select": [None, "none"]}
    assert found.versions == {"torch": ["2", "3"]}
    assert [row["ttft_p50_ratio"] for row in found.costs()] == [4, 1]
    assert compared([REUSE, FULL]).base_name == "full"
    again = compared([FULL, REUSE, FULL])
    assert again.base_name == "full" and [run.name for run in again.others] == ["reuse", "full (2)"]


def test_a_report_in_a_terminal_of_80_columns_breaks_no_heading_and_no_number():
    full, reuse = made("full", [1] * 15 + [0] * 3), made("reuse", [1] * 3 + [0] * 15, ttft=0.25, rows=10.0)
    reports = [replace(reuse, name=f"block, with_neighbours(n=2), answer_guided at {share}%") for share in (5, 15)]
    console = Console(width=80, record=True, file=StringIO())
    console.print(compared_page.report(compared([full, *reports])))
    lines = console.export_text().splitlines()
    costs = lines[lines.index("Costs of a request") + 2]
    assert costs.split() == ["cost", "value", "of", "the", "base", "range", "requests"]
    assert sum("to -" in line and line.startswith("exact match") for line in lines) == 2


def test_four_runs_fit_one_screen_without_details():
    runs = [made("full", [1] * 15 + [0] * 3), *(made(f"reuse {n}", [1] * n + [0] * (18 - n)) for n in (3, 9, 12))]
    Console(file=(out := StringIO()), width=80).print(compared_page.overview(compared(runs)))
    lines = out.getvalue().splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 80 and any("16.7%" in line for line in lines)


def test_runs_of_other_questions_are_not_paired():
    other = replace(REUSE, answers=[{**row, "expected": "else"} for row in REUSE.answers])
    unpaired = compared([FULL, other]).differences[0]
    assert unpaired.low is None and "no question" in unpaired.why and "not paired" in sentence(unpaired)
    sums = compared([FULL, replace(REUSE, answers=())]).differences[0]
    assert "only sums" in sums.why and sums.difference == pytest.approx(-4 / 6)
    digits = [
        replace(run, answers=[{"id": row["id"], "em": row["em"]} for row in run.answers]) for run in (FULL, REUSE)
    ]
    assert compared(digits).differences[0].n == 6
    digits[1] = replace(digits[1], parameters={**digits[1].parameters, "seed": 1})
    assert "other questions" in compared(digits, base="1").differences[0].why


def test_runs_of_one_name_are_told_apart_by_what_differs():
    runs = [replace(FULL, name="full", parameters={**FULL.parameters, "seed": seed}) for seed in (0, 1, 1)]
    assert [run.name for run in reading.distinct(runs)] == ["full, seed 0", "full, seed 1", "full, seed 1 (2)"]


@pytest.mark.parametrize(
    "call, problem",
    [
        (lambda: compared([FULL]), "1 run: at least two"),
        (lambda: compared([FULL, REUSE], scores=["kl"]), "not every run has a score 'kl': they share em"),
        (lambda: reading.read_runs("nowhere.json"), "no run 'nowhere.json'"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, problem):
    refused(problem, call)


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "{}", "[1]", '{"trial": 1}', "[" * 5000, "\x00"])
def test_files_without_records_are_refused(tmp_path, text):
    (path := tmp_path / "r.json").write_text(text)
    refused(".", reading.read_runs, path)


def test_a_page_figure_and_markdown_keep_markup_of_users_as_text():
    evil = "<img src=x onerror=alert(1)>|<b>"
    found = compared([replace(FULL, name=evil, source=evil), replace(REUSE, name=f"x{evil}")])
    page, text = compared_page.page(found), compared_page.markdown(found)
    body = page[page.index("<body>") :]
    assert "<img" not in body.replace("\\u003c", "").split("<script>")[0] and "&lt;img" in body
    figure = json.loads(differences(found).to_json())
    shown = [note["text"] for note in figure["layout"]["annotations"]] + figure["layout"]["yaxis"]["ticktext"]
    assert not any("<img" in each for each in shown)
    assert "<img" not in text.replace("\\<img", "") and "\\|" in text


def test_records_are_compared_on_the_command_line(records, tmp_path):
    paths = [str(records / "full"), str(records / "block")]
    out = {kind: tmp_path / f"compared.{kind}" for kind in ("html", "md")}
    words = ["compare", *paths, "--html", str(out["html"]), "--markdown", str(out["md"]), "--json"]
    found = json.loads(told(*words))
    assert found["base"] == "full" and [run["run"] for run in found["runs"]] == ["full", "block"]
    assert {each["n"] for each in found["differences"]} == {4} and found["parameters"]["mode"] == ["full", "block"]
    assert "Plotly.newPlot" in out["html"].read_text() and "| run | score |" in out["md"].read_text()
    assert "http" not in out["html"].read_text().split("<body>")[1].split("<script>")[0]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "1 run: at least two"),
        (["{record}", "--score", "x"], "not every run has a score 'x'"),
    ],
)
def test_models_answer_nothing_where_the_comparison_is_refused(words, problem, folder, records, monkeypatch):
    monkeypatch.setattr(Trial, "run_each", None)
    words = [word.format(record=records / "block") for word in words]
    assert problem in refused_command("compare", folder, *words, "--samples", "1")


def test_bad_words_end_in_one_sentence(records, tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "digits.json").write_text("[" + "9" * 5000 + "]")
    for words, problem in (
        (["nowhere", "x"], "neither a record, a folder of results nor a model"),
        ([str(records / "full")], "at least two"),
        (
            [str(records / "full")] * 2 + ["--html", str(tmp_path / "no" / "x.html")],
            "a file in a folder that exists",
        ),
        ([str(tmp_path)] * 2, "holds no results"),
        ([str(tmp_path / "deep.json")] * 2, "holds no records"),
        ([str(tmp_path / "digits.json")] * 2, "holds no records"),
    ):
        assert problem in refused_command("compare", *words)


# --- Weights kept as a difference: every bit comes back, and what cannot be restored is refused by name
BITS = arrays.arrays(np.int16, 40, elements=st.integers(-(2**15), 2**15 - 1))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A tiny model in bf16, one that differs from it a little, and the second as a difference from the first."""
    folder = tmp_path_factory.mktemp("difference")
    base = tiny.checkpoint(folder / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model.save_pretrained(base)
    with torch.no_grad():
        for i, weight in enumerate(model.parameters()):
            weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
    shutil.copytree(base, folder / "tuned")
    model.save_pretrained(folder / "tuned")
    delta_weights.save(folder / "tuned", folder / "kept", str(base))
    return folder


@given(BITS, BITS)
def test_every_bit_comes_back_from_any_two_numbers(weights, base):
    low, high = delta_weights.encode(weights, base)
    assert np.array_equal(delta_weights.decode(low, high, base), weights)


def test_whole_numbers_stand_in_the_order_of_the_values():
    values = torch.tensor([-torch.inf, -3.0, -1e-30, -0.0, 0.0, 1e-30, 0.5, 3.0, torch.inf]).bfloat16()
    order = delta_weights.sortable_bits(values.view(torch.int16).numpy())
    assert (np.diff(order.astype(int)) > 0).all()


def test_a_difference_loads_as_the_model_it_was_and_is_smaller(tuned):
    whole, kept = models.load(tuned / "tuned"), models.load(tuned / "kept")
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), kept.model.parameters(), strict=True))
    assert whole.model.dtype == kept.model.dtype and models.load(tuned / "kept", dtype="bfloat16").model.dtype
    assert (tuned / "kept" / DIFFERENCE).stat().st_size < (tuned / "tuned" / WEIGHTS).stat().st_size
    assert {**describe(tuned / "kept"), "path": ""} == {**describe(tuned / "tuned"), "path": ""}


def test_other_programs_find_no_weights_and_an_ordinary_copy_has_the_same(tuned, tmp_path):
    with pytest.raises(OSError, match="safetensors"):
        AutoModelForCausalLM.from_pretrained(tuned / "kept")
    told("models", "ordinary", tuned / "kept", tmp_path / "plain")
    plain, source = (load_file(folder / WEIGHTS) for folder in (tmp_path / "plain", tuned / "tuned"))
    assert plain.keys() == source.keys() and all(torch.equal(plain[name], source[name]) for name in plain)
    assert {file.name for file in (tuned / "tuned").iterdir()} == {file.name for file in (tmp_path / "plain").iterdir()}
    refused("is there already", export_hf.write, tuned / "kept", tmp_path / "plain")


def test_another_base_a_damaged_file_and_other_shapes_are_refused(tuned, tmp_path):
    kept = shutil.copytree(tuned / "kept", tmp_path / "kept")
    planes, about = load_file(kept / DIFFERENCE), {"base": str(tuned / "tuned"), "base_weights": "a", "weights": "b"}
    save_file(planes, kept / DIFFERENCE, about)
    refused("was made of other weights of", models.load, kept)
    save_file(planes, kept / DIFFERENCE)
    refused("does not say its base", models.load, kept)
    kept = shutil.copytree(tuned / "kept", tmp_path / "again")
    good = delta_weights._about(kept)
    swapped = {"low": planes["high"].clone(), "high": planes["high"]}
    for damaged, words in ((planes | {"low": planes["low"][:-9]}, "is damaged"), (swapped, "restores other weights")):
        save_file(damaged, kept / DIFFERENCE, good)
        refused(words, models.load, kept)
    save_file(planes, kept / DIFFERENCE, good | {"base": "nowhere"})
    refused("unknown model 'nowhere'", models.load, kept)
    other = tiny.checkpoint(tmp_path / "other", vocab_size=410)
    with pytest.raises(BadInput, match="differ in names, shapes or number formats"):
        delta_weights.save(tuned / "tuned", tmp_path / "out", str(other))
    refused("all weights in bfloat16", delta_weights.save, other, tmp_path / "out", str(other))
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_difference_and_says_its_size(tuned, tmp_path):
    said = told("models", "difference", tuned / "tuned", tmp_path / "kept", "--base", tuned / "base")
    assert f"MB in {tmp_path / 'kept'}" in said.replace("\n", "")
    again, kept = (load_file(folder / "kept" / DIFFERENCE) for folder in (tmp_path, tuned))
    assert all(torch.equal(again[name], kept[name]) for name in ("low", "high"))
