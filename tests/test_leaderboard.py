"""One budget and the leaderboard: what a request is charged, ratios solved for it, and rankings."""

import io
import json
import re
from dataclasses import replace
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

import workbench
from tests.own_method import RULES
from tests.random_models import prompt_of
from tests.refusals import refused
from workbench import data, results
from workbench.app import cli
from workbench.app.console.text import in_full, labels
from workbench.app.leaderboard import page
from workbench.core.plan import Pass
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.experiments.leaderboard import measuring
from workbench.experiments.leaderboard.ranking import boards
from workbench.experiments.trials import budget
from workbench.experiments.trials.trial import Trial
from workbench.methods import attend, correct, finish, own, select
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.presets import METHODS, name_of
from workbench.metrics.cost import charged_share, rows_charged
from workbench.metrics.paired import holm, ranks
from workbench.plots.marks.method_names import with_method_names
from workbench.plots.reports import leaderboard as drawn
from workbench.store import MemoryStore

SIZES = (4, 9, 7, 12, 5)  # system, three passages, question
CONTEXT, QUESTION, LENGTH, LAYERS = 32, 5, 37, 3
CHOSEN = 7  # a quarter of 28 document tokens
SCORED = {  # tokens times layers that a selector computes before any token is recomputed
    "random": 0,
    "first_k": 0,
    "kv_deviation": CONTEXT * 2,  # layers 0 and 1 in full, over the whole context
    "kv_deviation(layer=0)": CONTEXT,
    "kv_deviation(layer=0, stages=(0.5,))": CONTEXT + 14 * 2,  # half of the documents from layer 0 on, to layer 1
    "oracle": CONTEXT * LAYERS,
    "inter_attention": CONTEXT * LAYERS,
    "query_guided": QUESTION * LAYERS,
    "query_guided(layers=(0,))": QUESTION,
    "answer_guided": QUESTION * LAYERS,
}


def computed(model, method, prompt, monkeypatch) -> tuple[int, tuple[Pass, ...]]:
    """Return the tokens times layers that run for one request whose blocks are cached, and what it says of them."""
    store, rows = MemoryStore(), []
    method.begin(model, [prompt], store)
    attend = PlannedRequest.attend
    monkeypatch.setattr(PlannedRequest, "attend", lambda one, x: rows.append(len(one.rows)) or attend(one, x))
    ready = method.begin(model, [prompt], store)
    finish(model, ready)
    return sum(rows), ready[0].passes


@pytest.mark.parametrize("spec", SCORED)
def test_a_request_is_charged_what_runs_for_it(model, spec, monkeypatch):
    method = Reuse(select=select.from_spec(spec), ratio=0.25)
    rows, passes = computed(model, method, prompt_of(*SIZES), monkeypatch)
    assert rows == SCORED[spec] + (CHOSEN + QUESTION) * LAYERS
    assert rows_charged(passes, LAYERS) == pytest.approx(rows / LAYERS)
    assert charged_share(passes, LAYERS, LENGTH) == pytest.approx(rows / LAYERS / LENGTH)


CHARGED = [Full(), Superposition(), Superposition(prior=False), Reuse(), Reuse(positions="shared")]
CHARGED += [Reuse(correct=correct.from_spec(name), ratio=0.25) for name in correct.names()]
OWN_RATIO = {"all": None, "cache_craft": None}  # by selector
CHARGED += [Reuse(select=select.from_spec(name), ratio=OWN_RATIO.get(name, 0.25)) for name in select.names()]
SAM_KV = Reuse(
    select=select.from_spec("sam_kv(first=1, last=2, block=2)"),
    correct=correct.from_spec("fuse"),
    attend=attend.from_spec("chosen"),
)
CHARGED += [replace(SAM_KV, ratio=ratio) for ratio in (None, 0.25)]


@pytest.mark.parametrize("method", CHARGED, ids=str)
def test_every_method_says_what_it_computes(model, method, monkeypatch):
    rows, passes = computed(model, method, prompt_of(*SIZES), monkeypatch)
    assert rows_charged(passes, LAYERS) == pytest.approx(rows / LAYERS)
    assert charged_share(passes, LAYERS, LENGTH) == 1 or type(method) is not Full


def test_a_helper_model_is_charged_by_its_weight():
    assert charged_share([Pass(range(40), 40, weight=0.1), Pass([39], 40, forward=1)], LAYERS, 40) == pytest.approx(
        (4 + 1) / 40
    )


@pytest.mark.parametrize("charged", [0.2, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("spec", ["first_k", "query_guided(layers=(0,))"])
def test_a_ratio_is_the_largest_that_keeps_the_budget(model, spec, charged):
    prompts = [prompt_of(*SIZES), prompt_of(4, 30, 21, 6, seed=1)]
    solved = budget.fit_to_budget(model, Reuse(select=select.from_spec(spec)), prompts, charged)

    def share(ratio):
        ready = Reuse(select=solved.select, ratio=ratio).begin(model, prompts)
        return sum(charged_share(one.passes, LAYERS, len(p)) for one, p in zip(ready, prompts, strict=True)) / 2

    assert share(solved.ratio) <= charged
    assert solved.ratio == 1 or share(min(1, solved.ratio + 2 / budget.STEPS)) > charged


@pytest.mark.parametrize("charged", [0.3, 0.4, 0.5])
def test_what_sam_kv_drops_is_not_charged_and_what_it_chooses_is(model, charged, monkeypatch):
    prompts = [prompt_of(4, 9 + seed, 7, 12, 5, seed=seed) for seed in range(budget.TRIED + 4)]
    solved = budget.fit_to_budget(model, SAM_KV, prompts, charged)
    shares = []
    for prompt in prompts:
        rows, _ = computed(model, solved, prompt, monkeypatch)
        shares.append(rows / LAYERS / len(prompt))
        monkeypatch.undo()
    assert charged - 0.5 / LENGTH < np.mean(shares) <= charged


def test_a_correction_is_tried_for_its_ratio(model):
    """AgentKVShift recomputes probes of keys and of values: up to twice its ratio."""
    prompts = [prompt_of(*SIZES, seed=seed) for seed in range(3)]
    solved = budget.fit_to_budget(model, Reuse(correct=correct.from_spec("agent_kv_shift(layer=0)")), prompts, 0.7)
    ready = solved.begin(model, prompts)
    shares = [charged_share(one.passes, LAYERS, LENGTH) for one in ready]
    assert 0.55 < sum(shares) / 3 <= 0.7 and 0 < solved.ratio < 0.4


@pytest.mark.parametrize(
    ("method", "charged", "message"),
    [
        (
            Reuse(select=select.from_spec("kv_deviation")),
            0.3,
            r"computes 71\..% of a prompt before .*selection 57\..%",
        ),
        (Reuse(select=select.from_spec("first_k")), 0.1, "question 13.5%"),
        (Reuse(), 0.5, "charged is 0.5: a method with a selector"),
        (Full(), 0.5, "charged is 0.5: a method with a selector"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(model, method, charged, message):
    refused(message, lambda: budget.fit_to_budget(model, method, [prompt_of(*SIZES)], charged))


# --- ranks


@pytest.mark.parametrize("questions", [40, 120])
def test_average_ranks_and_tests_are_scipys(questions):
    scores = np.random.default_rng(0).random((questions, 4)) + np.array([0, 0, 0.4, 1.5])
    scores[: questions // 10, 1] = scores[: questions // 10, 0]
    found = ranks(scores, higher=False)
    assert found.average == tuple(stats.rankdata(scores, axis=1).mean(0)) == ranks(-scores, higher=True).average
    assert found.friedman == stats.friedmanchisquare(*scores.T).pvalue
    gaps = {(i, j): scores[:, i] - scores[:, j] for i, j in found.p}
    alone = holm([stats.wilcoxon(gap[gap != 0]).pvalue for gap in gaps.values()])
    assert found.p == pytest.approx(dict(zip(gaps, alone, strict=True)), rel=1e-12)
    assert sorted(found.together[0]) == [0, 1] and {2, 3}.isdisjoint(*found.together)


def test_nemenyis_difference_is_the_published_one():
    """Demšar (2006), section 3.2.4: four classifiers on 14 data sets, q = 2.569, CD = 1.25."""
    assert ranks(np.random.default_rng(0).random((14, 4)), higher=True).critical == pytest.approx(1.25, abs=0.005)


@pytest.mark.parametrize(
    ("scores", "together", "p"),
    [
        ([[1, 1, 1]] * 5, ((0, 1, 2),), 1.0),
        ([[1, 0]] * 10, (), 2 / 2**10),  # right and wrong: the sign test, which is McNemar's
        ([[1, 0]] * 3 + [[0, 1]], ((0, 1),), 10 / 16),
    ],
)
def test_methods_that_are_equal_or_differ_in_steps_are_tested(scores, together, p):
    found = ranks(np.array(scores, float), higher=True)
    assert found.together == together and found.p[0, 1] == pytest.approx(p)


def test_p_values_are_corrected_for_their_number():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # Holm (1979): 3p, then 2p, never falling
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


# --- boards

SHARES = {"none": 0.03, "first_k": 0.12, "query_guided": 0.19, "kv_deviation": 0.4}
LOSS = {"none": 0.9, "first_k": 0.5, "query_guided": 0.4, "kv_deviation": 0.45}


def written(folder, seed: int = 0) -> results.Results:
    """Write what trials of five methods leave, and read it."""
    draw = np.random.default_rng(seed)
    for number, name in enumerate(["full", *SHARES]):
        full = name == "full"
        about = {"model": "m", "data": "d", "seed": 0, "device": "a CPU", "method": name.replace("_", "-")}
        about |= {"mode": "full"} if full else {"mode": "block", "prepare": "after_system", "select": name}
        about |= {"setting": {"charged": 0.15}} if name == "first_k" else {}
        with results.Writer(folder, f"trial@{number}", **about) as out:
            loss = [0.0] * 30 if full else (LOSS[name] + draw.normal(0, 0.02, 30)).tolist()
            out.answers(
                {"question": f"q{i}", "kind": ["one", "two"][i % 2], "kl": kl, "em": float(kl < 0.5)}
                for i, kl in enumerate(loss)
            )
            out.counts(
                {"measure": measure, "kind": "all", "value": value}
                for measure, value in {
                    "charged_share": 1.0 if full else SHARES[name],
                    "rows_reused": 0.0 if full else 400.0,
                    "bytes_loaded": 0.0 if full else 4e6,
                    **({"preprocess_ms": 0.5} if name == "none" else {}),
                }.items()
            )
            out.timings([{"workload": "first token", "candidate": name, "ms": 10.0 * (number + 1)}])
    return results.read(folder)


def test_a_board_ranks_what_a_budget_holds_beside_full_attention(tmp_path):
    found = written(tmp_path)
    (board,) = boards(found, (0.2,))
    assert [(one.method, one.rank) for one in board.entries] == [("query-guided", 1), ("first-k", 2), ("full-reuse", 3)]
    assert [one.method for one in board.over] == ["kv-deviation"] and board.over[0].rank is None
    assert board.full.charged == 1 and board.full.scores["kl"][0] == 0 and board.together == ()
    best = board.entries[0]
    assert best.scores["kl"][1] < best.scores["kl"][0] == best.gaps["kl"][0] < best.gaps["kl"][2]
    assert best.kinds.keys() == {"one", "two"} and best.ttft_ms == 40 and best.storage_mb == 10
    assert best.preprocess_ms == 0.5, "methods of one preprocessing share its cost"
    assert [one.front for one in board.entries] == [True, True, True]
    assert json.loads(json.dumps(board.to_json()))["entries"][0]["method"] == "query-guided"


def test_a_board_shows_what_is_known_and_says_what_was_not_measured(tmp_path):
    found = written(tmp_path)
    rows = found.counts()
    tables = {"answers": [found.answers()], "counts": [rows[rows.measure != "preprocess_ms"]], "timings": []}
    (board,) = boards(results.Results({}, tables), (0.2,), by="em")
    shown = shown_in_terminal(board)
    assert "not measured: TTFT, ms; preprocess, ms/token" in shown and "EM - full, 95%" in shown and "F1" not in shown
    (known,) = boards(found, (0.2,))
    assert "not measured" not in shown_in_terminal(known) and "speedup" not in shown_in_terminal(known)
    heads = page.page([board]), page.page([known])
    assert [text.count('<button type="button">TTFT, ms</button>') for text in heads] == [0, 1]
    assert "Not measured: TTFT, ms; preprocess, ms/token." in heads[0]


def test_superposition_says_nothing_of_what_encoding_passages_by_themselves_costs(tmp_path):
    found = written(tmp_path)
    about = {"model": "m", "data": "d", "seed": 0, "method": "superposition", "mode": "superposition"}
    with results.Writer(tmp_path, "trial@9", **about, prepare="after_system") as out:
        out.answers({"question": f"q{i}", "kl": 1.0} for i in range(30))
        counted = {"charged_share": 0.1, "preprocess_ms": 3.0}
        out.counts({"measure": name, "kind": "all", "value": value} for name, value in counted.items())
    (board,) = boards(results.read(tmp_path), (0.2,))
    costs = {entry.method: entry.preprocess_ms for entry in board.entries}
    assert costs == {"query-guided": 0.5, "first-k": 0.5, "full-reuse": 0.5, "superposition": 3.0}
    rows = found.counts()
    few = rows[(rows.measure != "preprocess_ms")]
    tables = {"answers": [found.answers()], "counts": [few], "timings": [found.timings().head(3)]}
    (board,) = boards(results.Results({}, tables), (0.2,))
    said = "TTFT, ms; storage, MB/1,000 tokens: – where a method's was not measured"
    assert said in shown_in_terminal(board)


def shown_in_terminal(board):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(page.report(board))
    return " ".join(console.export_text().split())


def test_a_method_that_was_timed_apart_has_its_speedup_where_it_charges_as_much(tmp_path):
    charged = {"full": 1.0, "query-guided": 0.18, "first-k": 0.15, "full-reuse": 0.03}
    with results.Writer(tmp_path, "methods@gpu", model="M", device="a GPU", setting={"length": 5000}) as out:
        for number, (name, share) in enumerate(charged.items(), 1):
            out.timings([{"method": name, "workload": "length 5000", "candidate": name, "ms": 600.0 / number}])
            out.counts([{"method": name, "measure": "charged_share", "value": share}])
    (board,) = boards(written(tmp_path), (0.2,))
    speedups = {entry.method: entry.speedup for entry in (board.full, *board.entries)}
    assert speedups == {"full": 1, "query-guided": 2, "first-k": None, "full-reuse": 4}
    assert "speedup, timed apart" in (text := shown_in_terminal(board)) and "M over 5,000 tokens, a GPU" in text


def test_figures_name_methods_as_they_are_published_or_in_the_words_of_other_figures():
    found = results.read(["shipped"])
    (board, *_) = boards(found, (0.2,), model="smollm2-reader", data="nq-held")
    shown = {text.split(". ", 1)[1] for text in drawn.critical(board).layout.yaxis.ticktext}
    words, titles = set(with_method_names(found.counts("trial")).name), {method.title for method in METHODS.values()}
    assert len(shown) == 24 and shown <= words | titles and shown & words and shown & titles


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_known_by_its_fields_at_any_ratio_and_whatever_it_was_called(name):
    if name in ("tuned-recompute", "turborag"):  # their models', not a choice
        return
    fields = {"positions": "re-encoded", "prepare": "independent", "sparse": "none"} | dict(METHODS[name].fields)
    assert name_of(fields) == name and name_of({**fields, "sparse": "bfla"}) is None
    if fields.get("ratio"):
        assert name_of({**fields, "ratio": 0.07, "charged": 0.1}) == name


def test_fusionrag_has_its_name_on_boards_of_shipped_results_at_every_budget():
    found = boards(results.read(["shipped"]), model="smollm2-reader", data="manuals-test", whole=0)
    (line,) = (line for line in drawn.curves(found).data if line.name == "FusionRAG")
    assert [round(share, 2) for share in line.x] == [0.05, 0.1, 0.15, 0.2, 0.3]


def test_without_a_budget_that_of_the_results_is_taken_and_a_measure_can_be_named(tmp_path):
    found = written(tmp_path)
    (board,) = boards(found)
    assert board.budget == 0.15 and {one.method for one in board.entries} == {"full-reuse", "first-k"}
    (board,) = boards(found, (0.5,), by="em")
    assert board.entries[-1].method == "full-reuse" and ("query-guided", "kv-deviation") in board.together
    refused("unknown by 'speed'", boards, found, by="speed")
    refused("no 9 methods of one model", boards, found, least=9)
    refused("unknown model 'another': allowed are", boards, found, model="another")
    refused("unknown data 'another': allowed are", boards, found, data="another")


def test_a_budget_that_no_two_methods_keep_gives_a_board_of_all_at_what_they_charge(tmp_path):
    (board,) = boards(written(tmp_path), (0.001, 0.05))
    assert (board.budget, board.unmet, board.over) == (None, 0.05, ())
    assert [one.method for one in board.entries] == ["query-guided", "kv-deviation", "first-k", "full-reuse"]
    shown = " ".join(invoke("--results", tmp_path, "--budgets", "0.05").stdout.split())
    assert "(the cheapest computes 3%)" in shown and "the cheapest computes 3%" in page.page([board])
    assert boards(written(tmp_path), (0.2,))[0].budget_note == ""
    tables = {"answers": [written(tmp_path).answers()], "counts": [], "timings": []}
    assert "charge is not known, so no budget of 5%" in boards(results.Results({}, tables), (0.05,))[0].budget_note


def test_a_trial_of_an_earlier_version_is_the_same_trial(tmp_path):
    """What is "none" today is an empty column there."""
    found = written(tmp_path)
    rows = found.answers("trial").assign(attend="none", correct="none")
    again = results.Results(found.folders, {"answers": [rows]})
    assert [one.method for one in boards(again, (0.2,))[0].entries] == [
        one.method for one in boards(found, (0.2,))[0].entries
    ]


def test_what_was_measured_of_a_question_stays_beside_a_later_trial_that_measured_less(tmp_path):
    found, full = written(tmp_path), {"model": "m", "data": "d", "seed": 0, "method": "full", "mode": "full"}
    with results.Writer(tmp_path, "trial@short", **full) as out:
        out.answers({"question": f"q{i}", "em": 1.0} for i in range(60))
    assert boards(results.read(tmp_path), (0.2,))[0].full.scores["kl"] == boards(found, (0.2,))[0].full.scores["kl"]


def test_boards_stand_beside_full_attention_of_which_their_measure_is_not_known(tmp_path):
    found = written(tmp_path)
    rows = found.answers("trial")
    rows["kl"] = rows.kl.mask(rows["mode"] == "full")
    tables = {"answers": [rows], "counts": [found.counts()], "timings": [found.timings()]}
    known = boards(results.Results({}, tables), (0.15, 0.2))
    assert {board.by for board in known} == {"kl"} and all("kl" not in board.full.scores for board in known)
    assert page.index(known)
    means = boards(results.Results({}, tables), (0.15, 0.2), whole=0)
    ends, short = (
        np.array([one.scores[board.by] for board in listed for one in board.entries]) for listed in (known, means)
    )
    assert (ends[:, 0] == short[:, 0]).all() and np.isnan(short[:, 1:]).all() and not np.isnan(ends).any()


def test_a_page_holds_what_is_published_of_a_method_beside_its_score_here(tmp_path):
    (board,) = boards(written(tmp_path), (0.2,))
    names = dict(zip(("query-guided", "first-k"), ("prophetkv", "link0"), strict=True))
    known = replace(board, entries=tuple(replace(e, method=names.get(e.method, "mine")) for e in board.entries))
    (row,) = page._board(0, known)["reported"]
    assert row[:2] == ("ProphetKV", "arXiv:2602.02579") and row[2] == METHODS["prophetkv"].reported
    assert row[3].startswith("EM 100.0%, ") and "Published results and these" in page.page([known])


def test_curves_join_the_budgets_of_a_method_and_a_page_may_show_one_budget_alone(tmp_path):
    found = boards(written(tmp_path), (0.05, 0.15, 0.2, 0.5))
    lines = {line.name.split(" + ")[-1]: list(line.x) for line in drawn.curves(found).data}
    assert sorted(lines.values()) == sorted([share] for share in SHARES.values()) and lines["Full Reuse"] == [0.03]
    assert drawn.curves(found[:1]) is None
    shown = page.page(found, budget=0.2)
    assert shown.count('class="sorts"') == 1 and shown.count("By charged share") == 1


def test_a_page_loads_nothing_and_keeps_texts_of_users_as_text(tmp_path):
    shown = page.page(boards(written(tmp_path), (0.2,)), ["<b>left</b>: out"])
    assert "&lt;b&gt;left&lt;/b&gt;" in shown and "<b>left" not in shown
    assert 'src="http' not in shown and shown.count('class="sorts"') == 1
    assert shown.index("query-guided") < shown.index("first-k")


# --- the command


def test_many_boards_are_a_line_each(tmp_path):
    written(tmp_path)
    asked = ["--results", tmp_path, "--budgets"]
    few, many = invoke(*asked, "0.2").stdout, invoke(*asked, ",".join(f"0.{n}" for n in range(20, 28))).stdout
    assert few.count("first-k") > 1 and "first-k" not in many, "the best alone"
    assert "n 30" in many and max(map(len, many.splitlines())) <= 80
    assert [line.split()[0] for line in many.splitlines() if "of 3" in line] == [f"{n}%" for n in range(20, 28)]


QUICK = ["--samples", "4", "--passages", "3", "--max-new-tokens", "2", "--timed", "1"]


def invoke(*words):
    return CliRunner().invoke(cli.app, ["leaderboard", *map(str, words)])


def test_the_command_measures_ranks_and_goes_on(folder, tmp_path, monkeypatch):
    asked = ["--model", folder, *QUICK, "--methods", "kvlink,epic,full-reuse,cacheblend", "--budgets", "0.3,0.5,0,2"]
    ended = invoke(*asked, "--out", tmp_path / "out", "--html", tmp_path / "page.html")
    assert ended.exit_code == 0, ended.output
    left_out = ("budget 0: a share above 0", "budget 2: a share above 0", "cacheblend: charged 0.3", "kvlink: ")
    for line in left_out:
        assert f"left out: {line}" in " ".join(ended.stderr.split())
    assert max(map(len, ended.stderr.splitlines())) <= 80 and str(folder) not in ended.stderr
    assert max(map(len, ended.stdout.splitlines())) <= 80 and "at most 50% charged" in " ".join(ended.stdout.split())
    assert "<table" in (tmp_path / "page.html").read_text()
    monkeypatch.setattr(Trial, "run_each", None)  # nothing is measured again
    again = invoke(*asked, "--out", tmp_path / "out", "--json")
    found = json.loads(again.stdout)
    assert [board["budget"] for board in found["boards"]] == [0.3, 0.5] and len(found["left_out"]) == 4
    epic = next(one for one in found["boards"][0]["entries"] if one["method"] == "epic")
    assert 0.25 < epic["charged"] <= 0.3 and epic["fields"]["charged"] == 0.3
    ranked = invoke("--results", tmp_path / "out", "--budgets", "0.5", "--json")
    assert json.loads(ranked.stdout)["boards"][0]["entries"] == found["boards"][1]["entries"]


def test_methods_of_one_computation_are_listed_once(folder):
    plan = measuring.plan_trials(Trial(str(folder), samples=2, passages=3), ["block", "turborag", "full-reuse"], [0.5])
    assert [case.method for case in plan.cases] == ["full", "block", "full-reuse"]
    assert plan.left_out == ("turborag: it computes what block does, which is listed",)


def test_methods_that_choose_their_number_are_asked_at_it_and_within_budgets(folder):
    asked = ["sam-kv", "cache-craft", "mepic", "epic"]
    plan = measuring.plan_trials(Trial(str(folder), samples=2, passages=3), asked, [0.5, 0.9])
    trials = [(case.method, case.trial.ratio, case.trial.charged) for case in plan.cases if case.method != "epic"][1:]
    sam = [("sam-kv", None, charged) for charged in (0.5, 0.9, None)]
    assert trials == [*sam, ("cache-craft", None, None), ("mepic", None, None)]
    (why,) = plan.left_out
    assert why.startswith("cache-craft: charged 0.5, charged 0.9: cache_craft computes") and "at any budget" in why


def test_a_method_at_its_own_number_is_listed_over_the_budget_beside_its_trial_within(tmp_path):
    fields = dict(METHODS["sam-kv"].fields)
    for number, (name, ratio, share) in enumerate(
        [("full", None, 1.0), ("full-reuse", 0.15, 0.02), ("sam-kv", 0.1, 0.15), ("sam-kv", None, 0.9)]
    ):
        about = {"model": "m", "data": "d", "seed": 0, "method": name, "ratio": ratio}
        about |= (fields if name == "sam-kv" else METHODS[name].fields) | {"ratio": ratio}
        with results.Writer(tmp_path, f"trial@{number}", **about) as out:
            out.answers({"question": f"q{i}", "kl": number / 4 + i / 100} for i in range(8))
            out.counts([{"measure": "charged_share", "kind": "all", "value": share}])
    found = {board.budget: board for board in boards(results.read(tmp_path), (0.05, 0.15, 0.95), least=1)}
    assert found.keys() == {0.15, 0.95}
    assert [one.method for one in found[0.15].entries] == ["full-reuse", "sam-kv"]
    assert [one.method for one in found[0.15].over] == ["sam-kv, own number"]
    assert drawn.method_label(found[0.15].over[0]) == "SAM-KV, own number"
    assert [(one.method, one.charged) for one in found[0.95].entries] == [("full-reuse", 0.02), ("sam-kv", 0.9)]


def test_short_prompts_are_asked_at_each_methods_own_ratio(folder, tmp_path):
    asked = ["--model", folder, *QUICK, "--methods", "epic,full-reuse", "--budgets", "0.01", "--out", tmp_path / "out"]
    (board,) = json.loads(invoke(*asked, "--json").stdout)["boards"]
    assert board["unmet"] == 0.01 and {one["method"] for one in board["entries"]} == {"epic", "full-reuse"}


@pytest.mark.parametrize("named", ["full-reuse", "full-reuse,last_ones"])
def test_methods_of_a_file_are_ranked_with_the_others(named, folder, tmp_path, method_file):
    asked = ["--model", folder, *QUICK, "--method", named, "--method-file", method_file]
    ended = invoke(*asked, "--budgets", "0.4", "--out", tmp_path / "out", "--json")
    assert ended.exit_code == 0, ended.output
    entries = json.loads(ended.stdout)["boards"][0]["entries"]
    found = {one["method"]: one["fields"].get("select") for one in entries}
    assert found == {"full-reuse": None, "last_ones": "last_ones"}


@pytest.mark.parametrize(
    ("named", "ranked"), [("block,link0", "block link0"), ("block,installed", "block installed"), ("", "installed")]
)
def test_methods_of_installed_packages_are_ranked_by_name_and_among_all(named, ranked, unknown_again, monkeypatch):
    entry = EntryPoint("installed", "workbench.methods.select.first_k:FirstK", "workbench.select")
    monkeypatch.setattr(own, "_entries", lambda kind: {"installed": entry} if kind == "select" else {})
    methods = named.split(",") if named else []
    wanted = measuring.planned_methods(methods, own.installed())
    assert set(ranked.split()) <= {name for name, _ in wanted} and (not named or len(wanted) == 3)


def test_a_correction_and_an_attention_rule_of_a_file_are_ranked_too(folder, tmp_path, method_file):
    method_file.write_text(RULES)
    asked = ["--model", folder, *QUICK, "--method", "full-reuse", "--method-file", method_file]
    (board,) = json.loads(invoke(*asked, "--budgets", "0.5", "--out", tmp_path / "out", "--json").stdout)["boards"]
    assert {one["method"] for one in board["entries"]} == {"full-reuse", "as_they_are", "all_before"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --out FOLDER"),
        (("--out", "x", "--results", "shipped"), "give --out FOLDER"),
        (("--out", "x", "--methods", "fastest"), "unknown method 'fastest'"),
        (("--out", "x", "--budgets", "0,1.5"), "budget 0: a share above 0"),
        (("--out", "x", "--budgets", "half"), "--budgets 'half'"),
        (("--out", "x", "--method", "epic"), "two methods beside full attention are needed to rank, there is epic"),
        (("--out", "x", "--method", "full"), "there is none"),
        (("--out", "x", "--method", "kvlink,epic"), "there is epic; kvlink: .* has no soft tokens"),
        (
            ("--out", "x", "--method", "epic,cacheblend", "--budgets", "0.3,2"),
            "there is epic; cacheblend: charged 0.3: kv_",
        ),
        (
            ("--out", "x", "--method", "epic,cacheblend", "--budgets", "0.29,0.3"),
            "there is epic; cacheblend: charged 0.29, charged 0.3: kv_",
        ),
        (("--out", "x", "--html", "no/where.html"), "--html"),
        (("--results", "nowhere"), "no results at 'nowhere'"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(words, message, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = invoke("--model", folder, *QUICK, *words)
    assert ended.exit_code == 2 and re.search(message, " ".join(ended.stderr.split())) and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("documents", "length", "message"),
    [
        (5, 1, "the corpus has 5 passages: each is prepared behind 4 others, not 10"),
        (12, 6, r"12 of 12 passages are prepared behind \d( to \d)? of 10 neighbours: the model's context of 2048"),
    ],
)
def test_passages_get_the_neighbours_that_there_are_and_fit(documents, length, message, folder, tmp_path):
    """Said once, before any work, and kept in the record; five own documents, and passages as long as CacheBlend's."""
    whole = [one.to_json() for one in data.load("lab", samples=documents // 2, passages=10)]
    texts = [passage for one in whole for passage in one["ctxs"]][:documents]
    texts = [one | {"text": " ".join([one["text"]] * length)} for one in texts]
    lines = [one | {"ctxs": texts[2 * i : 2 * i + 2] or texts[:2]} for i, one in enumerate(whole)]
    lines[-1]["ctxs"] = texts[-2:] if documents % 2 == 0 else texts[-3:]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    asked = Trial(str(folder), data=str(tmp_path / "mine.jsonl"), samples=20, timed=1, max_new_tokens=2)
    with pytest.warns(UserWarning, match=message) as told:
        plan = measuring.plan_trials(asked, ["fusionrag", "epic"], [0.5])
    assert len(told) == 1 and [case.method for case in plan.cases] == ["full", "fusionrag", "epic"]
    with pytest.warns(UserWarning, match=message):
        assert re.search(message, plan.cases[1].trial.run().note)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["full", "FusionRAG"], ["full", "FusionRAG"]),
        (["block, with_neighbours(n=10, search=exact), answer_guided at 15%"], ["10 near, answer 15%"]),
        (["block, after_system, query_guided(layers=all) at 15%"], ["system, query…l) 15%"]),
        ([f"{'a' * 20}{middle}{'b' * 20}" for middle in "xyz"], ["a…b", "a…b (2)", "a…b (3)"]),
    ],
)
def test_labels_are_short_and_each_is_another(names, expected):
    found = list(labels(names).values())
    assert len(set(found)) == len(names) and max(map(len, found)) <= 20
    assert [re.sub("(a|b)+", r"\1", label) if "x" in names[0][20:] else label for label in found] == expected
    assert len(in_full(labels(names))) == (2 + len(names) if found != names else 0)


def test_one_call_measures_and_ranks_and_goes_on(loaded, tmp_path, monkeypatch):
    base = Trial("tiny", samples=4, passages=3, timed=1, max_new_tokens=2)
    (board,) = workbench.leaderboard(base, tmp_path, ["full-reuse", "epic"], [0.9], by="em", loaded=loaded)
    assert board.table.method.tolist()[0] == "full" and sorted(board.table.method[1:]) == ["epic", "full-reuse"]
    assert sorted(board.table["rank"].dropna()) == [1, 2] and (board.table.n == 4).all()
    monkeypatch.setattr(Trial, "run_each", None)  # what is there is not measured again
    assert workbench.leaderboard(base, tmp_path, ["full-reuse", "epic"], [0.9], by="em", loaded=loaded)[0] == board
    with pytest.warns(UserWarning, match="left out: budget 2"):
        workbench.leaderboard(base, tmp_path, ["full-reuse", "epic"], [0.9, 2], loaded=loaded)
