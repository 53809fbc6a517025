"""Sentences and figures of a real model's results, on made-up losses and with their signs reversed."""

from dataclasses import replace

import merge_shards
import pandas as pd
import pytest
from merge_shards import Group

from workbench.core.errors import BadInput
from workbench.methods.config import MethodConfig
from workbench.models import fetched
from workbench.plots import real_beside_lab as beside
from workbench.plots import real_choices as choices
from workbench.plots import real_findings as findings
from workbench.plots import real_live as here
from workbench.plots import real_model as figures
from workbench.plots.real_results import Real

BLOCK = MethodConfig(mode="block")
HEAD = {"n": 8, "seed": 5, "passages": 10, "max_new_tokens": 32, "corpus": 99}
HEAD |= {"device": "some GPU", "versions": {}, "note": "4-bit."}
SYSTEM, TEN = "after_system", "with_neighbours(n=10, search=exact)"
LOSSES = {  # preparation, selector → loss
    ("independent", "none"): 0.5,
    (SYSTEM, "none"): 0.4,
    (TEN, "none"): 0.2,
    (SYSTEM, "random"): 0.35,
    (SYSTEM, "kv_deviation"): 0.1,
    (SYSTEM, "query_guided"): 0.12,
    (SYSTEM, "answer_guided"): 0.05,
    (TEN, "kv_deviation"): 0.11,
    (TEN, "query_guided"): 0.06,
    (TEN, "answer_guided"): 0.04,
}


def config(prepare, select, ratio=0.15):
    return replace(BLOCK, prepare=prepare, select=select, ratio=ratio)


def rows(loss, kinds=("",), full_em=0.0, computed=20.0):
    """Rows of eight questions around a loss; a kind's place in `kinds` adds to it."""
    return [
        {
            "id": f"q{i}",
            "kind": kinds[i % len(kinds)],
            "nll": 2 + loss * (1 + i % 2 / 10),
            "nll_full": 2.0,
            "kl": loss * (1 + i % 2 / 10) * (1 + i % len(kinds)),
            "kl_first": loss,
            "kl_gold": loss,
            "agree": 1 - loss / 2,
            "agree_first": 1.0,
            "full_em": full_em,
            "full_f1": 0.1,
            "rows": computed,
            "flops": 1e9,
        }
        for i in range(8)
    ]


def real(losses=LOSSES, more=None, **of_rows):
    """Results of made-up losses; `more` configurations by name → loss."""
    configs = {f"{p}, {s}": config(p, s) for p, s in losses} | {"full": MethodConfig()}
    by_name = {f"{p}, {s}": loss for (p, s), loss in losses.items()} | {"full": 0.0}
    configs = {name.removesuffix(", none"): value for name, value in configs.items()}
    by_name = {name.removesuffix(", none"): value for name, value in by_name.items()}
    for name, (added, loss) in (more or {}).items():
        configs[name], by_name[name] = added, loss
    made = {name: rows(loss, computed=100.0 if name == "full" else 20.0, **of_rows) for name, loss in by_name.items()}
    group = Group("tiny", "nq", "choices", HEAD, made, {})
    return Real.of(merge_shards.methods([group], configs), merge_shards.questions([group]), "tiny")


def swapped(one, other):
    """The losses with two of them exchanged."""
    return LOSSES | {one: LOSSES[other], other: LOSSES[one]}


def test_of_data_sets_with_as_many_questions_the_one_with_more_methods_is_shown():
    more, fewer = real(), real({choice: LOSSES[choice] for choice in list(LOSSES)[:4]})
    both = pd.concat([fewer.table.assign(data="manuals"), more.table])
    assert Real.of(both, more.questions, "tiny").data_sets == ["nq", "manuals"]
    asked = both.assign(n=both.n + 1 * (both.data == "manuals"))
    assert Real.of(asked, more.questions, "tiny").data == "manuals"


def test_kinds_are_told_apart_by_their_intervals():
    apart = figures.kinds_sentence(real(kinds=("bridge", "comparison")))
    assert "loses most on comparison" in apart and "least on bridge" in apart and "intervals apart" in apart
    assert "leaves: bridge .04" in apart and "comparison .08" in apart
    words = figures.kinds_sentence(real(LOSSES | {(SYSTEM, "none"): 0.0}, kinds=("bridge", "comparison")))
    assert "intervals overlap" in words
    (several,) = real(kinds=("a", "b")).with_kinds()
    assert several.kinds == ["a", "b"] and real().with_kinds() == [] == several.with_kinds(least=9)


def lab(better):
    """A lab model whose trial of preparation is right on every question, or on none."""
    trials = {"reuse": (SYSTEM, "none", 0.5), "ten": (TEN, "none", float(better))}
    swept = pd.DataFrame(
        [
            {"trial": "full", "mode": "full", "prepare": "independent", "select": "none", "em": 1.0},
            *({"trial": t, "mode": "block", "prepare": p, "select": s, "em": em} for t, (p, s, em) in trials.items()),
        ]
    ).assign(kind="all", ratio=0.15, model="lab-full", n=4, seed=1, passages=10)
    swept = swept.assign(em_low=swept.em - 0.1, em_high=swept.em + 0.1)
    return beside.Lab(swept, pd.DataFrame({"em reuse": [1, 0, 1, 0], "em ten": [int(better)] * 4}))


def test_a_claim_is_asked_of_both_models_question_by_question():
    (lifted,) = beside.held(real(), lab(better=True))
    assert (lifted.lab.mean, beside.verdict(lifted.kl)) == (-0.5, "better")
    (lowered,) = beside.held(real(swapped((SYSTEM, "none"), (TEN, "none"))), lab(better=False))
    assert (lowered.lab.mean, beside.verdict(lowered.kl)) == (0.5, "worse")
    assert beside.records([lifted])[0]["kl_high"] < 0
    assert "+50.0 [" in cells(beside.claims_table(real(), lab(better=True)))
    assert title(beside.order(real(), lab(better=True))) == "<b>The same methods on both models</b>"


def text_of(figure, place):
    return figure.layout.annotations[place].text


def title(figure):
    return text_of(figure, -3)


def caption(figure):
    return text_of(figure, -1).replace("<br>", " ")


def cells(figure):
    return str(figure.data[0].cells["values"])


def test_figures_are_drawn_with_what_the_model_says_of_itself():
    several = real(kinds=("bridge", "comparison"))
    for figure in (figures.methods(several), figures.by_data(several), figures.by_kind(several)):
        assert "4-bit." in caption(figure)
    assert "4-bit. nq: n = 8, seed 5, 10 passages" in caption(choices.preparation_and_selection(several))
    assert "best n is 10" in text_of(choices.neighbours(several), -2).replace("<br>", " ")


def test_a_method_that_reads_everything_first_is_a_family_of_its_own():
    row = {"rows": 20, "prepare": SYSTEM, "select": "none"}
    assert figures.family(row, 100) == "reuse"
    assert figures.family(row | {"prepare": TEN}, 100) == "prepare"
    assert figures.family(row | {"select": "random"}, 100) == "select"
    assert figures.family(row | {"select": "random", "prepare": TEN}, 100) == "both"
    assert figures.family(row | {"select": "oracle", "rows": 115}, 100) == "whole"
    assert len({(look.colour, look.symbol) for look in figures.FAMILIES.values()}) == 5
    assert len({look.symbol for look in figures.FAMILIES.values()}) == 5, "told apart without colour"


def test_ratios_are_drawn_once_they_are_measured():
    assert not choices.has_ratios(real())
    more = {"at 5%": (config(SYSTEM, "kv_deviation", 0.05), 0.3), "guided": (config(SYSTEM, "query_guided", 0.05), 0.2)}
    both = real(more=more)
    assert choices.has_ratios(both) and choices.tried(both) == ["kv_deviation", "query_guided"]
    words = text_of(choices.by_ratio(both), -2).replace("<br>", " ")
    assert words.startswith("Least KL at 5% question-guided (FusionRAG) (.210), 15% KV deviation (CacheBlend)")
    assert "Full Reuse + KV deviation (CacheBlend) at 5%" in [
        findings.name_of(r) for r in both.rows().to_dict("records")
    ]


def test_neighbours_by_another_embedder_have_a_name_and_no_place_on_the_line_of_the_first():
    minilm = "with_neighbours(n=4, search=exact, embedder=minilm)"
    both = real(more={"m": (config(minilm, "none"), 0.3)})
    assert "4 neighbours by MiniLM" in [findings.name_of(r) for r in both.rows().to_dict("records")]
    assert findings.neighbours_of(minilm) is None and findings.neighbours_of(TEN) == 10
    assert list(choices.neighbours(both, ["none"]).data[-1].x) == [0, 10]


@pytest.mark.parametrize("model, data, problem", [("none", "", "none of model 'none'"), ("tiny", "x", "there are nq")])
def test_results_that_are_not_there_are_refused(model, data, problem):
    found = real()
    with pytest.raises(BadInput, match=problem):
        Real.of(found.table, found.questions, model, data)


def test_what_ships_has_its_seed_and_intervals():
    shipped = Real.read()
    row = shipped.rows().iloc[0]
    assert (
        row.n >= 500 and row.n == row.asked and "4-bit" in shipped.about() and f"seed {row.seed:,}" in shipped.about()
    )
    full = shipped.rows().set_index("trial").loc["full"]
    assert full.kl == full.nll_extra == 0 and (shipped.rows().kl_low <= shipped.rows().kl_high).all()
    exact = shipped.score("after_system")
    assert exact["low"] < exact["mean"] < exact["high"]
    ours = shipped.questions[(shipped.questions.data == shipped.data) & (shipped.questions.trial == "after_system")]
    assert ours.kl.mean() == pytest.approx(exact["mean"], rel=1e-4), "both tables are of the same rows"


def asked(method, loss, answers):
    return [
        row | {"method": method, "answer": answer}
        for row, answer in zip(rows(loss)[: len(answers)], answers, strict=True)
    ]


def test_a_model_that_is_not_fetched_is_told_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv(fetched.CACHE, str(tmp_path))
    words = here.absent("smollm2")
    assert "`workbench models get smollm2`" in words and words.endswith("committed results alone.")
    assert here.absent("lab-full") == ""


def test_an_adapter_is_shown_beside_its_own_base_alone():
    assert here.is_tuned("smollm2-block", "smollm2") and not here.is_tuned("smollm2-block", "lab-full")
    assert not here.is_tuned("lab-block", "lab-full") and not here.is_tuned("none", "smollm2")
