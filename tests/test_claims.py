"""Claims of the papers are data; one judge compares them with any results."""

import ast
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.commands import refused_command
from tests.refusals import refused
from workbench import results
from workbench.app.cli import app
from workbench.app.notebooks import parameters
from workbench.experiments.judging import claim_file, claims
from workbench.experiments.judging.claims import CONFIRMED, CONTRADICTED, OPEN
from workbench.plots.reports import claims as figures
from workbench.results import Results

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
NUMBERED = {"block1": (4, 2), "block2": (5, 3), "fusionrag": (19, 2), "bfla": (1, 5), "compact": (5, 0)}
CLAIMED = {"cacheblend": 3, "epic": 3, "newer": 15, "ours": 4}  # single claims, of abstracts and of the README
SHIPPED = {  # what the shipped results say; every other item is open
    CONTRADICTED: """fusionrag-fig-3 fusionrag-fig-18 bfla-table-3 bfla-table-5
                     cacheblend-claim-1 epic-claim-1 ours-claim-2""",
    CONFIRMED: """block1-fig-1 block1-fig-2 block1-fig-3 block1-table-2 block2-fig-1 block2-fig-2 block2-fig-3
                  block2-table-3 fusionrag-fig-4 fusionrag-fig-5 fusionrag-fig-6 fusionrag-fig-7
                  fusionrag-fig-8 fusionrag-fig-10 fusionrag-fig-12 bfla-fig-1 bfla-table-1 bfla-table-2
                  compact-fig-3 compact-fig-4 cacheblend-claim-3 epic-claim-3 ours-claim-3""",
}
ANSWERS = {"table": "answers", "experiment": "trial", "measure": "em", "how": "difference"}
COUNTS = {"table": "counts", "experiment": "deviation", "measure": "left", "how": "value"}
TIMINGS = {"table": "timings", "experiment": "bench", "how": "ratio", "left": {"candidate": "ours"}}
TIMINGS |= {"right": {"candidate": "theirs*"}}
SIDES = {"left": {"select": "a"}, "right": {"select": "b"}}


@pytest.fixture(scope="module")
def shipped():
    return claims.judge(results.read())


def items_of(tmp_path, *rows, **item):
    whole = [{"id": f"c{i}", "what": "a against b", **row} for i, row in enumerate(rows)]
    content = {"papers": {"bfla": "BFLA"}, "methods": {"A": {"select": "a"}}}
    content["items"] = [{"item": "bfla-fig-1", "sentence": "A is better.", "claims": whole, **item}]
    path = tmp_path / "claims.json"
    path.write_text(json.dumps(content))
    claim_file.load.cache_clear()
    return claim_file.load(path)[1]


def answered(found=None, source="mine", model="m", seed=None, share=(90, 50), n=100, **more):
    rows = [
        {"select": name, "question": str(i), "em": float(i < right), "nll": 1 - right / n + i % 3 / 9}
        for name, right in zip("abf", share, strict=False)
        for i in range(n)
    ]
    about = {"experiment": "trial", "model": model, "data": "d", "mode": "block", "training_seed": seed, **more}
    return (found or Results({})).with_rows("answers", rows, source, **about)


def counted(**values):
    rows = [
        {"measure": "left", "select": name, "value": v, "low": v - 0.1, "high": v + 0.1} for name, v in values.items()
    ]
    return Results({}).with_rows("counts", rows, "mine", experiment="deviation", model="m", n=20)


def timed(runs=20, **ms):
    """Times of a candidate on a workload of so many tokens: ours8=1.0."""
    rows = []
    for name, t in ms.items():
        who = name.rstrip("0123456789")
        tokens = int(name.removeprefix(who))
        about = {"candidate": who, "workload": f"at {tokens}", "setting": {"tokens": tokens}, "runs": runs}
        rows.append(about | {"ms": t, "p5": t, "p95": t * 1.01, "least": t, "most": t})
    return Results({}).with_rows("timings", rows, "mine", experiment="bench", device="gpu")


def only(judged):
    (one,) = judged
    return one


@pytest.mark.parametrize(
    ("claim", "share", "verdict"),
    [
        ({}, (90, 50), CONFIRMED),
        ({}, (50, 90), CONTRADICTED),
        ({"side": "below"}, (50, 90), CONFIRMED),
        ({}, (50, 48), OPEN),
        ({"bar": 0.2}, (90, 50), CONFIRMED),
        ({"bar": 0.6}, (90, 50), CONTRADICTED),
        ({}, (50, 50), OPEN),  # equal answers leave an interval of 3 in n
        ({"how": "explained", "full": {"select": "f"}, "bar": 0.5}, (80, 50, 90), CONFIRMED),
        ({"how": "explained", "full": {"select": "f"}, "bar": 0.5}, (50, 50, 90), CONTRADICTED),
        ({"how": "relative", "bar": 0.5}, (90, 50), CONFIRMED),
        ({"how": "normalised", "full": {"select": "f"}, "bar": 0.5}, (88, 50, 90), CONFIRMED),
        ({"how": "explained", "measure": "nll", "full": {"select": "f"}, "bar": 0.5}, (85, 50, 90), CONFIRMED),
    ],
)
def test_the_interval_decides_and_not_the_number(tmp_path, claim, share, verdict):
    of = items_of(tmp_path, ANSWERS | SIDES | claim)
    one = only(claims.judge(answered(share=share), of))
    assert one.verdict == verdict == claims.verdict([one]) and one.number.n == 100
    assert one.number.low - 1e-9 <= one.number.value <= one.number.high + 1e-9
    assert bool(one.needs) == (verdict == OPEN), "what is open says how many questions decide"


@pytest.mark.parametrize(
    ("data", "spoken_of"), [("nq", True), ("runs/nq-held.jsonl", True), ("runs/nq/trivia.jsonl", False)]
)
def test_a_file_of_questions_goes_by_its_name_wherever_it_lies(tmp_path, data, spoken_of):
    of = items_of(tmp_path, ANSWERS | SIDES | {"scope": {"data": "nq*"}})
    assert bool(only(claims.judge(answered(data=data), of)).number) == spoken_of


def test_nothing_won_back_where_nothing_is_lost_is_not_measured(tmp_path):
    of = items_of(tmp_path, ANSWERS | SIDES | {"how": "explained", "full": {"select": "f"}, "over": "training seeds"})
    one = only(claims.judge(answered(share=(60, 50, 50)), of))
    assert one.number is None and one.verdict == OPEN and not one.decides


@pytest.mark.parametrize(
    ("claim", "values", "verdict", "bar"),
    [
        ({"left": {"select": "a"}, "bar": 0.5}, {"a": 0.7}, CONFIRMED, 0.5),
        ({"left": {"select": "a"}, "than": {"select": "b"}}, {"a": 0.7, "b": 0.4}, CONFIRMED, 0.5),
        ({"left": {"select": "a"}, "than": {"select": "b"}, "side": "below"}, {"a": 0.5, "b": 0.5}, OPEN, 0.4),
        ({"left": {"select": "a"}, "right": {"select": "b"}, "how": "difference"}, {"a": 0.7, "b": 0.4}, CONFIRMED, 0),
    ],
)
def test_numbers_that_hold_their_interval_are_compared(tmp_path, claim, values, verdict, bar):
    one = only(claims.judge(counted(**values), items_of(tmp_path, COUNTS | claim)))
    assert (one.verdict, one.bar) == (verdict, pytest.approx(bar)) and one.number.n == 20


@pytest.mark.parametrize(
    ("claim", "ms", "verdict"),
    [
        ({"bar": 1.5}, {"ours8": 1.0, "theirs8": 2.0}, CONFIRMED),
        ({"bar": 2.5}, {"ours8": 1.0, "theirs8": 2.0}, CONTRADICTED),
        ({"bar": 1.5}, {"ours8": 1.0, "theirs4": 2.0}, OPEN),  # of another workload: not measured
        (
            {"left": {"candidate": "ours", "tokens": 8}, "than": {"tokens": 4}},
            {"ours8": 1, "theirs8": 4, "ours4": 1, "theirs4": 2},
            CONFIRMED,
        ),
        (
            {"left": {"candidate": "ours", "tokens": "largest"}, "reach": {"tokens": 16}},
            {"ours8": 1, "theirs8": 4},
            OPEN,
        ),
    ],
)
def test_times_are_compared_within_one_workload(tmp_path, claim, ms, verdict):
    assert claims.verdict(claims.judge(timed(**ms), items_of(tmp_path, TIMINGS | claim))) == verdict


def test_several_sources_and_models_are_judged_apart(tmp_path):
    of = items_of(tmp_path, ANSWERS | SIDES)
    found = answered(answered(answered(), "theirs", share=(50, 90)), model="other", share=(50, 90))
    judged = claims.judge(found, of)
    assert sorted((one.source, one.number.where["model"], one.verdict) for one in judged) == [
        ("mine", "m", CONFIRMED),
        ("mine", "other", CONTRADICTED),
        ("theirs", "m", CONTRADICTED),
    ]
    assert claims.verdicts(judged, "mine")["bfla-fig-1"] == CONTRADICTED, "one contradiction contradicts"


@pytest.mark.parametrize(
    ("shares", "decides", "verdict"),
    [
        ([(90, 50)], False, OPEN),  # one run of several that there may be is shown
        ([(90, 50), (70, 50)], False, OPEN),  # two runs are shown
        ([(90, 50), (80, 50), (85, 50)], True, CONFIRMED),
        ([(90, 50), (52, 50), (20, 50)], True, OPEN),  # runs that disagree
        ([(80, 50)] * 3, True, CONFIRMED),  # no narrower than the questions of a run
    ],
)
def test_training_runs_decide_from_three_on_with_student_s_interval(tmp_path, shares, decides, verdict):
    found = None
    for seed, share in enumerate(shares):
        found = answered(found, seed=seed, share=share)
    one = only(claims.judge(found, items_of(tmp_path, ANSWERS | SIDES)))
    gaps = [(a - b) / 100 for a, b in shares]
    assert one.number.seeds == len(shares) and one.number.value == pytest.approx(sum(gaps) / len(gaps))
    assert one.decides == decides and claims.verdict([one]) == verdict and (decides or "3 training runs" in one.needs)
    assert one.number.high - one.number.low > 0.1


def test_one_training_run_that_tells_nothing_keeps_its_item_open(tmp_path):
    found = None
    for seed, share in enumerate([(90, 50), (80, 50), (85, 50)]):
        found = answered(found, seed=seed, share=share)
    beside = answered(found, seed=0, share=(50, 48), model="other")
    of = items_of(tmp_path, ANSWERS | SIDES)
    assert [claims.verdict(claims.judge(each, of)) for each in (found, beside)] == [CONFIRMED, OPEN]
    assert "one training run" in claims.judge(beside, of)[1].text


@pytest.mark.parametrize("runs", [19, 20])
def test_times_decide_from_twenty_runs_on(tmp_path, runs):
    of = items_of(tmp_path, TIMINGS | {"bar": 1.5})
    assert only(claims.judge(timed(runs, ours8=1.0, theirs8=2.0), of)).decides == (runs == 20)


def test_a_model_of_a_synthetic_corpus_decides_nothing(tmp_path):
    one = only(claims.judge(answered(model="lab-full"), items_of(tmp_path, ANSWERS | SIDES)))
    assert one.verdict == CONFIRMED and not one.decides and one.needs


def test_a_number_without_an_interval_decides_equality_alone(tmp_path):
    rows = [{"measure": "left", "value": 2.0, "low": None, "high": None}]
    found = Results({}).with_rows("counts", rows, "mine", experiment="deviation", model="m", n=20)
    for side, verdict in (("above", OPEN), ("equals", CONFIRMED)):
        of = items_of(tmp_path, COUNTS | {"left": {}, "side": side, "bar": 2.0 if side == "equals" else 1.0})
        assert claims.verdict(claims.judge(found, of)) == verdict


def test_findings_of_an_item_are_held_to_one_level_together(tmp_path):
    """57 against 44 of 100 answers alone, one finding holds; beside nine more of its kind it does not."""
    alone = items_of(tmp_path, ANSWERS | SIDES)
    found = answered(share=(57, 44))
    assert claims.verdict(claims.judge(found, alone)) == CONFIRMED
    many = [ANSWERS | SIDES | {"bar": 0.05}] * 10
    assert claims.verdict(claims.judge(found, items_of(tmp_path, *many))) == OPEN


def test_findings_that_stay_open_count_among_those_of_their_item(tmp_path):
    """Of 67 against 50 of 100 answers one finding alone holds; beside nine that hold nothing it does not."""
    found, one = answered(share=(67, 50)), ANSWERS | SIDES | {"bar": 0.08}
    assert claims.verdict(claims.judge(found, items_of(tmp_path, one))) == CONFIRMED
    many = claims.judge(found, items_of(tmp_path, one, *[ANSWERS | SIDES | {"bar": 0.17}] * 9))
    assert many[0].verdict == OPEN and "10 findings" in many[0].needs
    assert "Holm" not in many[1].needs, "what was open stays open for its own reason"


def test_every_finding_of_an_item_has_to_be_measured(tmp_path):
    of = items_of(tmp_path, ANSWERS | SIDES, COUNTS | {"left": {}, "bar": 0.5})
    assert claims.verdict(claims.judge(answered(), of)) == OPEN


def test_a_claim_that_was_changed_is_dated_anew(tmp_path):
    row = ANSWERS | SIDES
    stated = row | {"stated": f"2026-11-24 {claim_file.digest(row)}"}
    assert items_of(tmp_path, stated)[0].claims[0].stated.startswith("2026-11-24")
    refused("was changed since it was stated", items_of, tmp_path, stated | {"bar": 0.5})


def test_a_claim_changes_with_the_method_that_it_names(tmp_path):
    row = ANSWERS | SIDES | {"left": "A"}
    stated = row | {"stated": f"2026-11-24 {claim_file.digest(row, {'A': {'select': 'b'}})}"}
    refused("was changed since it was stated", items_of, tmp_path, stated)  # A selects a there


@pytest.mark.parametrize(
    ("stated", "time", "after"),
    [
        ("2026-11-24", "2026-11-23T10:00:00", True),
        ("2026-11-24", "2026-11-24T00:00:00", True),  # on the same day: nobody can tell
        ("2026-11-24", "2026-11-25T00:00:00", False),
        ("2026-11-24T12:30:00", "2026-11-24T12:29:59+00:00", True),
        ("2026-11-24T12:30:00", "2026-11-24T12:30:01+00:00", False),
        ("2026-11-24T12:30:00", "", False),
    ],
)
def test_a_claim_that_was_stated_after_its_data_says_so(tmp_path, stated, time, after):
    row = ANSWERS | SIDES
    of = items_of(tmp_path, row | {"stated": f"{stated} {claim_file.digest(row)}"})
    one = only(claims.judge(answered(time=time), of))
    assert one.stated_after == after == claims.rows([one])[0]["stated_after_its_data"]


def test_models_are_compared_across_where_a_claim_says_so(tmp_path):
    sides = {"left": {"select": "a", "model": "large"}, "right": {"select": "a", "model": "small"}}
    found = answered(answered(model="large"), model="small", share=(50,))
    assert only(claims.judge(found, items_of(tmp_path, ANSWERS | sides | {"across": ["model"]}))).verdict == CONFIRMED
    assert only(claims.judge(found, items_of(tmp_path, ANSWERS | sides))).number is None


@pytest.mark.parametrize(
    ("claim", "decides"),
    [
        ({}, True),
        ({"kind": "shown"}, False),
        ({"least": 101}, False),
        ({"telling": {"least": 0.6}}, False),
        ({"telling": {"most": 0.6}}, True),
        ({"scope": {"model": "!m*"}}, False),
        ({"scope": {"model": ["m", "x"]}}, True),
        ({"left": "A"}, True),
        ({"left": {"like": "A", "em": "largest"}}, True),
        ({"left": {"like": "A", "ratio": None}}, True),
        ({"left": {"like": "A", "ratio": 0.15}}, False),
        ({"left": {"like": "A", "correct": ["none", ""]}}, True),
        ({"left": {"like": "A", "correct": ["none"]}}, False),
        ({"unless": ["c1"]}, False),
    ],
)
def test_what_decides_an_item(tmp_path, claim, decides):
    of = items_of(tmp_path, ANSWERS | SIDES | claim, ANSWERS | SIDES)
    assert claims.judge(answered(), of)[0].decides == decides


def test_what_was_not_measured_names_the_command(tmp_path):
    judged = claims.judge(counted(a=1.0), items_of(tmp_path, ANSWERS | SIDES, COUNTS | {"measure": "right"}))
    assert [(one.verdict, one.decides, one.number) for one in judged] == [(OPEN, False, None)] * 2
    assert "workbench sweep --model MODEL" in judged[0].needs


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"sides": 1}, "'sides' is no field of a claim"),
        ({"side": "left"}, "side is 'left'"),
        ({"how": "share"}, "how is 'share'"),
        ({"right": None}, "only 'value' has no right side"),
        ({"how": "ratio"}, "of table 'answers': allowed are difference"),
        ({"measure": "accuracy"}, "'accuracy', which is no score of answers"),
        ({"left": "B"}, "method 'B' is not among A"),
        ({"kind": "mechanism"}, "the test that holds it is needed"),
        ({"unless": ["c9"]}, "unless names 'c9'"),
        ({"bar": "high"}, "bar is 'high'"),
        ({"item": "bfla"}, "PAPER-fig-N"),
        ({"item": "bfla-page-1"}, "PAPER-claim-N"),
        ({"item": "quest-fig-1"}, "of no paper there"),
        ({"claims": []}, "what is missing"),
        ({"sentence": 3}, "sentence is 3"),
    ],
)
def test_a_bad_row_or_item_is_one_sentence(tmp_path, row, words):
    item = {name: row[name] for name in ("item", "claims", "sentence") if name in row}
    refused(re.escape(words), items_of, tmp_path, ANSWERS | SIDES | ({} if item else row), **item)


def test_every_numbered_table_and_figure_is_listed_once_and_mechanisms_name_their_tests():
    wanted = [
        f"{paper}-{kind}-{number}"
        for paper, counts in NUMBERED.items()
        for kind, count in zip(("fig", "table"), counts, strict=True)
        for number in range(1, count + 1)
    ]
    wanted += [f"{paper}-claim-{number}" for paper, count in CLAIMED.items() for number in range(1, count + 1)]
    assert sorted(item.item for item in claims.items()) == sorted(wanted) and len(wanted) == 71
    for test in {claim.test for item in claims.items() for claim in item.claims if claim.kind == "mechanism"}:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_results_of_which_no_claim_speaks_confirm_mechanisms_alone():
    held = claims.verdicts(claims.judge(counted(a=1.0)), "mine")
    assert [item.item for item in claims.items() if held[item.item] != OPEN and not item.is_mechanism] == []


def test_shipped_results_give_the_verdicts_that_documents_state(shipped):
    wanted = {item: verdict for verdict, names in SHIPPED.items() for item in names.split()}
    found = claims.verdicts(shipped, results.SHIPPED)
    assert found == {item.item: wanted.get(item.item, OPEN) for item in claims.items()}
    for one in shipped:
        if one.number:
            assert one.number.low <= one.number.value <= one.number.high and one.number.n > 0, one.claim.id


def test_items_are_counted_as_the_table_lists_them(shipped):
    of, rows = claims.items(), figures.claim_rows(shipped)
    said = claims.count_verdicts(claims.verdicts(shipped, results.SHIPPED))
    confirmed, shown, *others = [int(number) for number in re.findall(r"\d+", said)]
    assert [confirmed, *others] == [sum(row["verdict"] == name for row in rows) for name in claims.VERDICTS]
    assert shown == sum(item.is_mechanism for item in of) == sum(row["number"] == "held by tests" for row in rows)
    assert confirmed + sum(others) == sum(not item.only_names for item in of), "a list of symbols is not open"


def test_a_row_of_an_open_item_has_no_number_that_decides_nothing(shipped):
    for row in figures.claim_rows(shipped):
        decided = any(one.decides and one.number and one.verdict == row["verdict"] for one in row["judged"])
        assert decided == ("claimed" in row["number"]), row["key"]


def test_an_item_has_a_cell_or_says_what_is_out_of_reach(shipped):
    cells = figures.shown_in(NOTEBOOKS)
    for item in claims.items():
        assert item.missing or item.item in cells, f"{item.item}: no cell's metadata.workbench.answers names it"


def test_the_table_has_a_row_an_item_and_begins_with_the_chosen_filter(shipped):
    html = figures.listing(shipped, NOTEBOOKS, paper="bfla", verdict="contradicted").data
    claiming = [item for item in claims.items() if not item.only_names]
    assert html.count("<details class=") == len(claiming) < len(claims.items()) and "<script" not in html
    assert not re.search(r'<li class="why">[^<]*</li><li>', html), "what decides stands first"
    assert html.count(" checked>") == 2 and 'class="pick-paper-bfla" checked' in html
    assert "../10_sparse_quality/10_sparse_quality.html#cell-id=" in html
    assert figures.address(("08_x", "08-04"), live=True) == "08_x.ipynb#cell-id=08-04"


def test_a_cell_that_answers_nothing_known_is_refused(tmp_path):
    cell = {"id": "1", "metadata": {"workbench": {"answers": ["fusionrag-fig-99"]}}}
    (tmp_path / "01_x.ipynb").write_text(json.dumps({"cells": [cell]}))
    refused("'fusionrag-fig-99'", figures.shown_in, tmp_path)
    cell["metadata"]["workbench"]["answers"] = "bfla-fig-1"
    (tmp_path / "01_x.ipynb").write_text(json.dumps({"cells": [cell]}))
    refused(r"01_x.ipynb, cell 1: answers is 'bfla-fig-1'", figures.shown_in, tmp_path)
    refused("contains no notebooks", figures.shown_in, tmp_path / "nowhere")


def test_the_command_judges_results_of_ones_own(tmp_path):
    with results.Writer(tmp_path / "mine", "deviation@x", model="mine", data="d") as out:
        about = {"measure": "left_outside_15_percent", "value": 0.7, "low": 0.6, "high": 0.8, "n": 200}
        out.counts([about])
    words = ["claims", "--results", str(tmp_path / "mine"), "--paper", "fusionrag"]
    done = CliRunner().invoke(app, [*words, "--json"])
    found = json.loads(done.stdout)
    assert {"id", "paper", "item", "sentence", "verdict", "value", "low", "high", "n", "needs"} <= set(found[0])
    (one,) = (row for row in found if row["item"] == "fusionrag-fig-3" and row["value"] is not None)
    assert (one["verdict"], one["value"], one["n"]) == (CONFIRMED, 0.7, 200)
    assert {row["paper"] for row in found} == {"fusionrag"}
    said = CliRunner().invoke(app, words).stdout
    assert "FusionRAG, Figure 3" in said and max(map(len, said.splitlines())) <= 80
    assert results.EXPERIMENTS["trial"].split(" --")[0] in CliRunner().invoke(app, [*words, "--details"]).stdout


@pytest.mark.parametrize(("words", "said"), [(["--paper", "v1"], "'v1'"), (["--results", "nowhere"], "nowhere")])
def test_the_command_refuses_what_is_not_there(words, said):
    assert said in refused_command("claims", *words)


@pytest.mark.parametrize(("given", "allowed"), [({"paper": "v1"}, "paper is 'v1'"), ({"verdict": "yes"}, "'yes'")])
def test_the_notebook_refuses_what_is_no_filter(given, allowed):
    refused(allowed, parameters.check, NOTEBOOKS / "13_papers.ipynb", given)
