"""Every notice that compares is run with its numbers, and with the sign reversed: its words turn."""

import numpy as np
import pandas as pd
import pytest

from workbench.core.errors import BadInput
from workbench.experiments import results
from workbench.experiments.ttft_costs import published
from workbench.metrics.published_numbers import BFLA_TABLE_5
from workbench.plots import (
    block_finetuning,
    cost,
    deviation_findings,
    kept_costs,
    latency_findings,
    reuse_findings,
    session_replay,
    sparse_findings,
    sweep_findings,
)
from workbench.plots.chosen_places import evenness
from workbench.plots.findings import compared, joined, judged, sentence, times
from workbench.plots.position_encoding import shift_beside_place, within_tolerance
from workbench.plots.styles import SELECTORS


def test_a_difference_is_above_below_or_open():
    assert compared("A", "B", 0.074, (0.028, 0.12)) == "A 7.4 points above B (2.8 to 12.0)"
    assert compared("A", "B", -0.074, (-0.12, -0.028)) == "A 7.4 points below B (2.8 to 12.0)"
    assert compared("A", "B", 0.01, (-0.02, 0.04)) == "A +1.0 points to B (-2.0 to +4.0: no difference that shows)"
    assert compared("A", "B", 0.0) == "A level with B" and compared("A", "B", -0.01) == "A 1.0 points below B"


def test_a_sentence_begins_large_and_ends_in_a_full_stop():
    assert sentence("at 2 neighbours TF-IDF 84%") == "At 2 neighbours TF-IDF 84%."
    assert sentence("It holds.") == "It holds."


def test_words_of_ratios_lists_and_judgements():
    assert (times(2, "less", "more"), times(0.5, "less", "more")) == ("2.0 times less", "2.0 times more")
    assert (joined([]), joined(["a"]), joined(["a", "b", "c"])) == ("", "a", "a, b and c")
    said = [judged("X", "y", holds) for holds in (True, False, None)]
    assert [text.split(": ")[1] for text in said] == ["confirmed here.", "contradicted here.", "left open here."]


def settings(bfla: float, dense: float = 0.96) -> pd.DataFrame:
    spec = "bfla(block=64, flat=16, local=2, mass=0.99)"
    return pd.DataFrame([{"spec": spec, "em": bfla, "density": 0.3, "method": "bfla"}])


def test_bfla_beside_dense_says_what_table_5_says():
    dense = {"em": 0.956, "n": 500}
    said = sparse_findings.bfla_beside_dense(settings(0.41), dense)
    assert "41% at 30% density, dense attention 96% (n = 500)" in said and "0.8 of 40.2 points at 15% density" in said
    assert said.endswith("contradicted here.")
    assert sparse_findings.bfla_beside_dense(settings(0.95), dense).endswith("confirmed here.")
    rows = {row[-2]: row[-3] for row in BFLA_TABLE_5["rows"]}
    assert sparse_findings.published_loss() == (0.1465, pytest.approx(40.22 - rows[0.1465]))


@pytest.mark.parametrize(("random", "said"), [(1, "above BFLA"), (0, "below BFLA")])
def test_random_tiles_stand_above_or_below(random, said):
    rows = [("random(share=0.5)", "random", 0.58), ("bfla(mass=1)", "bfla", 0.56)]
    curve = pd.DataFrame([dict(zip(("spec", "method", "density"), row, strict=True)) for row in rows])
    answers = pd.DataFrame({"em random(share=0.5)": [random] * 9 + [1], "em bfla(mass=1)": [1 - random] * 9 + [1]})
    text = sparse_findings.random_beside(curve, answers)
    assert said in text and text.startswith("The choice by content pays at every density") == (not random)
    assert sparse_findings.random_beside(curve.assign(density=[0.1, 0.9]), answers) == "", "no density is shared"


def test_the_rule_of_full_rows_pays_or_not():
    lost = [(-0.5, (-0.6, -0.4)), (-0.6, (-0.7, -0.5))]
    assert "at least 50 points" in sparse_findings.of_last_rows(
        lost, 0.2
    ) and "the rule" in sparse_findings.of_last_rows(lost, 0.2)
    assert sparse_findings.of_last_rows(lost, 0.9).endswith("the choice weighs more.")
    assert sparse_findings.of_last_rows([*lost, (0.1, (0.0, 0.2))], 0.2) == "The rule does not pay with every method."


def test_methods_that_were_not_measured_without_the_rule_are_named():
    ruled = ["flash_prefill(tail=1, alpha=0.5)", "seer_attention(tail=1, threshold=0.06)", "bfla(mass=0.9)"]
    told = sparse_findings.without_rule_lacking(ruled, ["flash_prefill(tail=0, alpha=0.5)"])
    assert told == " Without it SeerAttention is not measured yet, as it ships."
    assert sparse_findings.without_rule_lacking(ruled, [spec.replace("tail=1", "tail=0") for spec in ruled]) == ""


def test_mass_and_answers_rank_alike_or_the_other_way():
    curve = pd.DataFrame({"mass": [0.1, 0.5, 0.9], "em": [0.2, 0.5, 0.8], "spec": ["a", "b", "c"]})
    assert "ρ = 1.00; c answers 80%" in sparse_findings.mass_and_answers(curve)
    assert "ρ = -1.00; a answers 80%" in sparse_findings.mass_and_answers(curve.assign(em=[0.8, 0.5, 0.2]))
    densities = {"oracle": np.array([[0.1, 0.9]]), "flat": np.array([[0.5, 0.5]])}
    assert "under oracle: 10% to 90%" in sparse_findings.densities_apart(densities)
    pays = [{"own": 512, "L": 1024}, {"own": None, "L": 1024}]
    assert (
        sparse_findings.which_pays_first(pays, "m", "L")
        == "L needs more tokens than m with 1 of 2 methods, fewer with 1."
    )


@pytest.mark.parametrize(("gap", "holds"), [(0.016, "contradicted"), (-0.016, "confirmed")])
def test_the_choice_by_position_beside_the_choice_by_content(gap, holds):
    ends = sorted((gap / 2, gap * 2))
    row = {"select": "first_k", "difference": gap, "difference_low": ends[0], "difference_high": ends[1]}
    text = sweep_findings.by_position([row])
    assert holds in text and ("above" if gap > 0 else "below") in text
    assert sweep_findings.by_position([]) == ""


def test_preparation_gains_loses_or_leaves_open():
    def pair(gain, low, high):
        return {"select": "none", "gain": gain, "gain_low": low, "gain_high": high}

    assert "contradicted" in sweep_findings.preparation([pair(0.1, 0.05, 0.2), pair(-0.1, -0.2, -0.05)])
    assert "confirmed" in sweep_findings.preparation([pair(0.1, 0.05, 0.2)])
    assert "left open" in sweep_findings.preparation([pair(0.01, -0.05, 0.2)])


def test_antecedents_costs_and_components_follow_their_numbers():
    assert "none of the continued" in sweep_findings.found_antecedents({1: (0, 9), 20: (0, 9)})
    assert "most of the continued passages (89%)" in sweep_findings.found_antecedents({20: (8, 9)})
    drawn = [{"name": name, "at": at} for name, at in (("a", 0.1), ("a", 0.2), ("b", 0.1), ("b", 0.5))]
    assert (
        sweep_findings.first_costs(drawn)
    ) == "Reuse alone takes 10% of full attention's; the first point of a 20%, that of b 50%."
    rows = {name: {"em": em, "rows": n} for name, em, n in (("none", 0.5, 9), ("prepared", 0.4, 9), ("again", 0.6, 20))}
    said = sweep_findings.component_rows(rows | {"both": {"em": 0.7, "rows": 20}})
    assert "adds no token" in said and "-10 points with the first, +10 with the second, +20 with both" in said


@pytest.mark.parametrize(("reuse", "holds"), [([0, 0, 0, 1], "confirmed"), ([1, 1, 1, 1], "contradicted")])
def test_multi_hop_questions_lose_by_reuse_or_not(reuse, holds):
    gaps = reuse_findings.by_kind(reuse * 9, [1] * 36, ["two-hop"] * 36)
    assert reuse_findings.multi_hop(gaps, "reuse").endswith(f"{holds} here.")
    text = reuse_findings.lost(gaps, "reuse")
    assert ("loses 75.0 points (two-hop)" in text) == (holds == "confirmed")
    assert ("no difference for two-hop" in text) == (holds == "contradicted")
    assert "gains 75.0 points" in reuse_findings.lost(
        reuse_findings.by_kind([1] * 36, [0, 0, 0, 1] * 9, ["a"] * 36), "x"
    )
    with pytest.raises(BadInput, match="1 kinds for 2 questions"):
        reuse_findings.by_kind([1, 1], [1, 1], ["a"])


def test_kinds_of_the_results_stand_in_their_order():
    measured = results.read("block-attention")
    kinds = results.kinds(measured["samples"], measured["seed"])
    full = measured["methods"]["full attention"]
    right = pd.Series(results.right(full)).groupby(pd.Series(kinds)).mean()
    assert {kind: pytest.approx(right[kind]) for kind in right.index} == {
        kind: score["em"] for kind, score in full["record"]["by_kind"].items()
    }


def test_published_and_own_scores_agree_or_not():
    def methods(tuned):
        named = {"full attention": 0.9, "block fine-tuned": tuned}
        return {name: {"record": {"em": em}} for name, em in named.items()}

    assert "as in the paper for block fine-tuned" in block_finetuning.paper_agreement(methods(0.9))
    assert "otherwise for block fine-tuned (-1.3 there, -40.0 here)" in block_finetuning.paper_agreement(methods(0.5))


def test_a_sparse_prefill_saves_or_does_not():
    dense, few = ({"choose": c, "attend": a, "rest": 1.0} for c, a in ((0, 1.0), (0.2, 0.5)))
    assert "attention takes 50% less with 70% of the pairs left out; the whole prefill is 15% faster" in (
        latency_findings.saved_by_dropping(dense, few, 0.3)
    )
    assert "takes 100% more, though 70%" in latency_findings.saved_by_dropping(few, dense, 0.3)
    assert "takes as long, though" in latency_findings.saved_by_dropping(dense, dense, 0.3)
    assert latency_findings.beside_full(0.5) == "2.0 times more than full attention"
    assert "take 1.50 times its operations" in latency_findings.work_when_cold({"share": 0, "flops": 3}, {"flops": 2})


def test_counts_beside_the_paper_and_bytes_beside_full_attention():
    paper = published()
    full = [{**r, "flops": 2 * r["flops"]} for r in paper]
    assert cost.beyond_paper(full, paper) == "At 32,768 tokens our count is 2.00 times what the paper prints."
    rows = [
        {"length": 9, "mode": mode, "bytes": b, "flops": f} for mode, b, f in (("full", 10, 100), ("block", 20, 10))
    ]
    assert cost.traffic(rows, "m") == "m moves 2.00 times the bytes at 9 tokens, with 10.0% of the operations."
    same = [{**r, "bytes": 10} for r in rows]
    assert "as many bytes" in cost.traffic(same, "m")
    assert "A800 (v1) and H20 (v2)" in cost.hardware()


def test_deviation_turns_with_its_numbers():
    assert "contradicted" in deviation_findings.outside_as_published(0.2, 0.15)
    assert "confirmed" in deviation_findings.outside_as_published(0.6, 0.15)
    assert deviation_findings.outside_as_published(0.6, 0.3) == "", "the paper says it of 15%"
    assert "confirmed" in deviation_findings.where(2.0, 1.5) and "contradicted" in deviation_findings.where(0.5, 1.5)
    assert "contradicted" in deviation_findings.change_as_published(0.02)
    assert "confirmed" in deviation_findings.change_as_published(-0.7)
    left = {("s", "asked"): 0.4, ("s", "context"): 0.8}
    assert "comes nearer" in deviation_findings.context_or_question(left, "s")
    assert "or further" in deviation_findings.context_or_question({k: 1.2 - v for k, v in left.items()}, "s")
    errors = [{"mode": "block", "error": [0.2]}, {"mode": "naive", "error": [0.4]}]
    assert "it is 2.0 times that" in deviation_findings.price_of_positions(errors)
    assert "missing context" in deviation_findings.largest_cause({"position": 0.1, "context": 0.2, "precision": 0.0})
    gap = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 5.0]])
    said = deviation_findings.of_first_passage({"p": gap}, np.array([0, 1, 2]), 1e-4)
    assert "The first layer is within rounding" in said and "the first passage is within rounding" in said
    assert said.index("later ones") < said.index("by 5")
    assert "deviates by up to 1" in deviation_findings.of_first_passage({"p": gap + 1}, np.array([0, 1, 2]), 1e-4)


def test_positions_are_within_tolerance_or_named():
    families = [{"family": name, "keys": 0, "values": 0, "logits": x} for name, x in (("a", 1e-6), ("b", 1.0))]
    assert within_tolerance(families) == "Beyond the tolerance in 1 of 2 families: b."
    assert "all 1 families" in within_tolerance(families[:1])
    said = shift_beside_place({"bf16 cache, fp32 shift": 1e-3, "computed in place in bf16": 2e-3})
    assert "0.5 times that. Least: bf16 cache, fp32 shift" in said


@pytest.mark.parametrize(("head", "holds"), [(0.9, "confirmed"), (0.05, "contradicted")])
def test_chosen_tokens_stand_at_the_head_of_blocks_or_not(head, holds):
    means = {"kv_deviation": [head, 0.1], "query_guided": [0.1, 0.1]}
    rows = [{"name": SELECTORS.name_of(spec), "mean": mean} for spec, both in means.items() for mean in both]
    assert evenness(rows).endswith(f"{holds} here.") and evenness(rows[:2]) == ""


def test_intervals_lie_apart_or_overlap():
    def row(mode, em):
        return {"mode": mode, "kind": "follow-up", "em": em, "em_low": em - 0.1, "em_high": em + 0.1}

    assert "follow-up (90% and 30%)" in session_replay.overlapping([row("full", 0.9), row("block", 0.3)])
    assert "follow-up (30% and 90%)" in session_replay.overlapping([row("full", 0.3), row("block", 0.9)])
    assert "overlap for every kind" in session_replay.overlapping([row("full", 0.5), row("block", 0.6)])


def test_the_largest_tensor_of_a_choice_grows_as_measured():
    records = [{"method": "bfla", "length": n, "largest": n, "pairs": n * n} for n in (10, 100)]
    said = kept_costs.growth(records)
    assert "the pairs grow 100 times" in said and "grows up to 10 times (BFLA) and holds at most 1.0%" in said
