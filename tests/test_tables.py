"""Functions that shape records into tables, figures and sentences for the notebooks, on small numbers."""

from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from tests import tiny
from tests.random_models import prompt_of
from tests.test_plots_sessions import RECORDS
from workbench import models
from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.masks import block_attention, causal
from workbench.data import game, prompt_view
from workbench.data.prompt_view import Reading
from workbench.data.sample import Sample
from workbench.experiments import results, session_replay
from workbench.methods.generation import generate
from workbench.metrics import attention_mass, kv_deviation, position_encoding
from workbench.metrics.attention_mass import AttentionMass
from workbench.metrics.kv_deviation import Repair
from workbench.metrics.selection import places
from workbench.plots import attention_mass as attention_figures
from workbench.plots import (
    block_finetuning,
    chosen_places,
    chosen_tokens,
    cost,
    deviation,
    deviation_repair,
    intervals,
    mask_savings,
    masks,
    position_drift,
    prompt_strip,
    ratio_outcomes,
    sweep_curves,
    token_sources,
)
from workbench.plots import position_encoding as position_figures
from workbench.plots import session_replay as session_figures
from workbench.plots.table import verdict

PROMPT = prompt_of(3, 5, 4)


def view_of(prompt: Prompt = PROMPT, answers: tuple[str, ...] = ("Wilby",), supporting: tuple[int, ...] = (1,)):
    pieces = tuple(f"piece {i}" for i in range(len(prompt.blocks)))
    tokens = [f"t{i}" for i in range(len(prompt))]
    return Reading(prompt, tokens, "sample 1 of lab", "Where is Ada?", answers, supporting, pieces)


def texts(fig: go.Figure) -> str:
    """All texts around a figure, as one line."""
    return " ".join(note.text for note in fig.layout.annotations).replace("<br>", " ")


def rows(fig: go.Figure) -> list[tuple[str, ...]]:
    """The rows of a table."""
    return list(zip(*fig.data[0].cells["values"], strict=True))


def mass_of(tokens: list[list[list[float]]], blocks: torch.Tensor | None = None) -> AttentionMass:
    kv = KV([torch.zeros(1, 12, 4)], [torch.zeros(1, 12, 4)], 0)
    blocks = torch.zeros(1, 1, 3, 3) if blocks is None else blocks
    return AttentionMass(torch.tensor(tokens), blocks, torch.zeros(5), kv)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return models.load(tiny.checkpoint(tmp_path_factory.mktemp("model") / "tiny"))


# --- prompts and masks


def test_a_prompt_says_its_question_and_what_is_expected():
    assert prompt_strip.question_of(view_of()) == "“Where is Ada?” Expected: Wilby."
    assert prompt_strip.question_of(view_of(answers=())) == "“Where is Ada?”"
    assert "12 tokens in 3 blocks" in texts(prompt_strip.prompt_strip(view_of()))


def test_masks_are_compared_on_one_prompt_and_cached_rows_are_pale():
    rules = {"Full attention": causal, "Reuse": block_attention(PROMPT)}
    fig = masks.compare_masks(rules, view_of(), cached=["Reuse"], own="window(3)")
    full, reuse = fig.data[1], fig.data[3]
    assert full.z[4, 4] == 1 and reuse.z[4, 4] == 1 + 3, "a passage's own colour, then its pale one"
    assert reuse.z[11, 4] == 1, "the question is computed"
    assert "Your rule: window(3)." in texts(fig) and "cells" not in texts(fig)


def test_a_mask_of_many_tokens_says_how_far_it_is_reduced():
    prompt = prompt_of(300, 300)
    fig = masks.compare_masks({"Full attention": causal}, view_of(prompt), cached=(), own="causal")
    assert "600 tokens" in texts(fig) and "512² cells" in texts(fig)


def test_pairs_are_counted_over_the_rows_that_a_request_computes():
    rules = {"Full attention": causal, "Cached blocks (pale)": block_attention(PROMPT)}
    full, reuse = mask_savings.count_pairs(rules, PROMPT, cached=["Cached blocks (pale)"])
    assert full == {"mask": "Full attention", "pairs": 78, "computed": 78, "causal": 78, "rows": 12, "length": 12}
    assert reuse["mask"] == "Cached blocks" and reuse["rows"] == 4
    assert reuse["pairs"] == 6 + 15 + 42 and reuse["computed"] == 9 + 10 + 11 + 12
    assert "Cached blocks: 4 of 12 tokens are computed" in texts(mask_savings.request_savings([full, reuse], "a text"))


def test_answers_under_masks_are_those_of_generation_and_the_first_rule_is_no_distance_away(loaded):
    model, tokenizer, layout = loaded
    view = prompt_view.of_text("Ada lives in Wilby.\n\nBen is a potter.", "Where is Ada?", tokenizer, layout)
    rules = {"full": causal, "block": block_attention(view.prompt)}
    found = {name: attention_mass.masked(model, view.prompt, rule) for name, rule in rules.items()}
    records = attention_mass.answers_under(loaded, view, rules, found, 4)
    (full,) = generate(model, tokenizer, [view.prompt], "full", max_new_tokens=4, stop=layout.stop)
    (block,) = generate(model, tokenizer, [view.prompt], "block", max_new_tokens=4, stop=layout.stop)
    assert [r["answer"] for r in records] == [full.text.strip(), block.text.strip()]
    assert records[0]["kl"] == 0 < records[1]["kl"]
    assert [r["right"] for r in records] == [None, None]
    table = masks.answers_table(records, view, about="tiny", device="CPU")
    assert [row[0] for row in rows(table)] == ["full", "block"] and rows(table)[0][2] == "–"


def test_a_verdict_is_a_word():
    assert [verdict(right) for right in (True, False, None)] == ["yes", "no", "–"]


# --- attention


def test_positions_of_blocks_are_those_of_the_passages_by_default():
    assert attention_mass.positions_of(PROMPT).nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    assert attention_mass.positions_of(PROMPT, (0, 2)).nonzero().flatten().tolist() == [0, 1, 2, 8, 9, 10, 11]


def test_attention_to_other_blocks_is_what_passages_do_not_pay_themselves():
    blocks = torch.zeros(1, 2, 4, 4)
    blocks[:, :, 1, 1] = 0.5
    blocks[:, 0, 2, 2], blocks[:, 1, 2, 2] = 1.0, 0.5
    assert attention_mass.to_other_blocks(mass_of([[[1.0]]], blocks)) == pytest.approx(1 - (0.5 + 0.75) / 2)


def test_the_head_that_naive_positions_change_most_also_looks_at_the_answer():
    wanted = torch.tensor([True, False, False])
    full = mass_of([[[0.9, 0.1, 0.0], [0.6, 0.4, 0.0]], [[0.0, 0.1, 0.9], [0.9, 0.1, 0.0]]])
    naive = mass_of([[[0.9, 0.1, 0.0], [0.0, 0.4, 0.6]], [[1.0, 0.0, 0.0], [0.8, 0.2, 0.0]]])
    assert attention_mass.most_changed({"full": full, "naive": naive}, wanted) == (0, 1)


def test_figures_of_attention_say_how_much_stays_where_full_attention_has_it():
    view = view_of()
    full, half = [0.0] * 12, [0.0] * 12
    full[4], half[4], half[0] = 1.0, 0.25, 0.75
    found = {"Full attention": mass_of([[full]]), "Block attention": mass_of([[half]])}
    fig = attention_figures.attention_under_masks(found, view, 0, 0, chosen=False, about="tiny")
    assert "25% under block attention" in texts(fig) and "looks most at what the answer needs (★)" in texts(fig)
    fig = attention_figures.attention_under_masks(found, view, 0, 0, chosen=True, about="tiny")
    assert "in one head" in texts(fig)
    modes = {"full": mass_of([[full]]), "block": mass_of([[full]]), "naive": mass_of([[half]])}
    fig = attention_figures.attention_by_positions(modes, view, 0, 0, about="tiny")
    assert "100% of its attention stays" in texts(fig) and "25% with naive ones" in texts(fig)


# --- positions


def test_the_slider_of_a_rotating_key_stands_at_a_distance():
    speeds, place = np.array([1.0, 0.1]), np.ones((3, 2, 2))
    rotated = position_encoding.KeyRotation((0, 7), speeds, np.ones((2, 2)), (0, 16, 64), place)
    fig = position_figures.rotating_key(rotated, "<Ada>", distance=32, about="tiny")
    assert fig.layout.sliders[0].active == 2 and "2 channel pairs of the key of “&lt;Ada&gt;”" in texts(fig)
    assert position_figures.rotating_key(rotated, "Ada", distance=999, about="tiny").layout.sliders[0].active == 2
    angles = position_encoding.angles(rotated)
    assert angles[3] == {"distance": 16, "pair": 7, "turned_radians": pytest.approx(1.6)} and len(angles) == 6


def test_frequencies_fall_from_one_to_nearly_the_inverse_of_the_base():
    frequencies = position_encoding.rope_frequencies(1e4, 4)
    assert frequencies.dtype == torch.float64
    assert frequencies.tolist() == pytest.approx([1.0, 1e-2])


def test_rounding_and_differences_quote_the_measured_numbers():
    records = position_encoding.shift_errors(position_encoding.rope_frequencies(1e4, 16), [1, 1024], 4)
    at = {r["scheme"]: r["error"] for r in records if r["distance"] == 1024}
    assert f"{at['bf16 cache, fp32 shift']:.1e}" in texts(position_figures.scheme_errors(records, at, about="4 keys"))
    records = [{"family": "llama", "keys": 1e-7, "values": 0.0, "logits": 2e-7, "naive": 1e-3, "distance": 84}]
    expected = [("llama", "1.0e-07", "0.0e+00", "2.0e-07", "1.0e-03", "5,000 ×")]
    assert rows(position_figures.family_table(records)) == expected
    assert "up to 84 tokens" in texts(position_figures.family_differences(records, seed=0, device="CPU"))


def test_drift_quotes_the_share_of_equal_first_tokens():
    layers = [{"mode": mode, "layer": 0, "error": [0.1, 0.2]} for mode in ("block", "naive")]
    first = [
        {"mode": mode, "kl": [0.1], "agree": agree, "low": 0.0, "high": 1.0}
        for mode, agree in (("block", 0.75), ("naive", 0.25))
    ]
    assert "in 75% of the prompts with re-encoded positions and in 25% with naive ones" in texts(
        position_drift.positions_drift(layers, first, about="tiny")
    )


# --- cost of reuse


TIMED = [
    {"length": length, "mode": mode, "p5": ms / 2e3, "p50": ms / 1e3, "p95": ms / 500, "n": 20}
    for length, times in ((128, (20, 5)), (512, (80, 6)))
    for mode, ms in zip(("full", "block"), times, strict=True)
]
STORED = {"full": 0, "block": 2**19}  # bytes
COUNTED = [
    {"length": length, "mode": mode, "flops": 1e9, "bytes": 2**20, "kv_loaded": stored, "convention": 2e9}
    for length in (128, 512)
    for mode, stored in STORED.items()
]


def test_lines_hold_one_mode_each_with_its_band():
    full, block = cost.lines_by_mode(TIMED, "p50", 1e3, band=True)
    assert list(full.y) == [20, 80] and list(block.y) == pytest.approx([5, 6])
    assert list(full.low) == [10, 40] and list(full.high) == [40, 160]
    (alone,) = cost.lines_by_mode(TIMED, "p50", modes=["block"])
    assert list(alone.x) == [128, 512] and not len(alone.low)
    few = [{**r, "n": 19} for r in TIMED]
    assert not len(cost.lines_by_mode(few, "p50", band=True)[0].low), "percentiles of fewer than 20 runs are not drawn"
    ranged = [{**r, "least": 0.001, "most": 1.0} for r in few]
    assert list(cost.lines_by_mode(ranged, "p50", band=True)[0].high) == [1.0, 1.0]


def test_times_are_quoted_at_the_longest_context():
    assert cost.longest_ttft(TIMED) == (512, {"full": 80, "block": 6})
    paper = [{"length": 512, "mode": mode, "ttft_ms": 50, "flops": 1e12} for mode in ("full", "block")]
    fig = cost.ttft_by_length(TIMED, paper, model="tiny", question=50, device="CPU")
    assert "At 512 tokens reuse takes 6 ms where full attention takes 80 ms" in texts(fig)
    assert "20 runs" in texts(fig)
    assert "tiny, computed" in texts(cost.flops_by_length(COUNTED, COUNTED, paper, model="tiny", question=50))
    fig = cost.bytes_by_length(COUNTED, COUNTED, model="tiny", dtype="float32")
    assert "tiny, computed (float32)" in texts(fig)
    stored = [trace for trace in fig.data if trace.name == "of it, read from the store"]
    assert [list(trace.y) for trace in stored] == [[0.5, 0.5], [2**-11, 2**-11]]


def test_the_papers_table_leaves_cells_empty_where_a_length_was_not_measured():
    paper = [
        {"length": length, "mode": mode, "ttft_ms": 1000, "flops": 1e12}
        for length in (128, 4096)
        for mode in ("full", "block")
    ]
    fig = cost.paper_table(paper, COUNTED, TIMED, COUNTED, model="tiny", question=20, device="CPU")
    table = {row[0]: row[1:] for row in rows(fig)}
    assert list(fig.data[0].header["values"])[1:] == ["<b>128</b>", "<b>4K</b>"]
    assert table["TTFT, full (ms)"] == ("20", ""), "the last one of that name: measured here"
    assert table["FLOPs as the paper counts, block"] == ("2.0e+09", "")
    assert table["Published: 8B"] == ("", "")


def trial(mode: str, em: float, computed: float, reused: float, hit_rate: float) -> SimpleNamespace:
    score = {"n": 4, "em": em, "em_low": em / 2, "em_high": 1.0, "f1": em, "f1_low": em / 2, "f1_high": 1.0}
    return SimpleNamespace(
        **score,
        rows_computed=computed,
        rows_reused=reused,
        hit_rate=hit_rate,
        prompt_tokens=100.0,
        device="CPU",
        trial={"mode": mode},
        ttft_s=SimpleNamespace(p50=0.0125),
        by_kind={"order": SimpleNamespace(em=em, n=4)},
        rows=lambda: [{"mode": mode, "kind": "all", **score}],
    )


TRIALS = {"full": trial("full", 0.75, 100, 0, 0), "block": trial("block", 0.5, 20, 80, 0.25)}


def test_tokens_of_trials_come_from_the_store_or_are_computed():
    full, block = token_sources.token_sources(TRIALS)
    assert (full["reused"], full["encoded"], full["question"], full["hit_rate"]) == (0, 320, 80, None)
    assert (block["reused"], block["encoded"], block["question"], block["hit_rate"]) == (320, 0, 80, 0.25)
    assert "computes 20 of 100 tokens" in texts(token_sources.trial_reuse(TRIALS, about="tiny"))
    scores = intervals.reuse_quality({**TRIALS, "naive": TRIALS["block"]}, about="tiny")
    assert "answer 50% where full attention answers 75%" in texts(scores)
    assert "They lose most on order: 25 points (n = 4)" in texts(scores)
    turned = {"full": TRIALS["block"], "block": TRIALS["full"], "naive": TRIALS["full"]}
    assert "No kind of question answers less" in texts(intervals.reuse_quality(turned, about="tiny"))


# --- block fine-tuning

MEASURED = results.read("block-attention")


def test_the_comparison_quotes_differences_of_the_results_file():
    fig = block_finetuning.comparison(MEASURED)
    methods = MEASURED["methods"]
    gap, (low, high) = results.difference(methods["block fine-tuned"], methods["full attention"])
    assert gap < 0 and f"{-gap * 100:.1f} points below the model before it" in texts(fig)
    assert f"({-high * 100:.1f} to {-low * 100:.1f})" in texts(fig)
    assert set(methods) <= set(block_finetuning.COLOURS)


def test_scores_by_kind_stand_in_the_order_of_the_methods():
    fig = block_finetuning.by_kind(MEASURED)
    by_kind = MEASURED["methods"]["block fine-tuned"]["record"]["by_kind"]
    for kind, count, _full, _reused, tuned, _tuned_full in rows(fig):
        assert count == f"{by_kind[kind]['n']:,}" and tuned.startswith(f"{by_kind[kind]['em']:.1%} (")
    assert len(rows(fig)) == len([kind for kind in by_kind if kind])


def test_published_accuracy_has_a_dash_where_nothing_is_ours():
    ours = {"full attention": {"record": {"em": 0.5}}}
    fig = block_finetuning.paper_accuracy({"methods": ours, "samples": 10})
    cells = {row[0]: row[1] for row in rows(fig)}
    assert cells["full attention"] == "50.0" and cells["PromptCache"] == "–"


def test_trials_here_stand_with_tokens_and_milliseconds():
    fig = block_finetuning.measured_here({"full attention": TRIALS["full"]}, about="tiny")
    assert rows(fig) == [("full attention", "75%", "38% to 100%", "100", "12.5")]


@pytest.mark.parametrize(("block", "said"), [(0.89, "from step 10 on"), (0.5, "starts 80 points behind. Full")])
def test_a_tuning_curve_says_from_which_step_the_modes_are_equal(block, said):
    def score(em):
        return {"em": em, "em_low": em, "em_high": em, "n": 7}

    scores = [
        {"step": 0, "full": score(0.9), "block": score(0.1)},
        {"step": 10, "full": score(0.9), "block": score(block)},
    ]
    recipe = {"mode": "both", "steps": 10, "batch": 2, "accumulate": 3, "optimizer": "AdamW", "lr": 1e-3}
    tuning = {"scores": scores, "recipe": recipe, "minutes": 1.5, "device": "CPU"}
    fig = block_finetuning.tuning_curve(tuning, "tiny")
    assert said in texts(fig) and "6 contexts" in texts(fig)
    assert [(r["mode"], r["step"], r["em"]) for r in block_finetuning.tuning_scores(tuning)][:2] == [
        ("full", 0, 0.9),
        ("block", 0, 0.1),
    ]


def test_answers_of_both_modes_stand_question_by_question():
    def answer(text, *tokens):
        return SimpleNamespace(text=text, tokens=tokens)

    samples = [Sample("s0", "Where?", ("Wilby",), (), kind="single-hop")]
    full, block, before = [answer(" Wilby", 1)], [answer(" Wilby", 1)], [answer(" Tamton", 2)]
    assert block_finetuning.equal_in_both_modes(full, block) == 1
    assert block_finetuning.equal_in_both_modes(full, before) == 0
    fig = block_finetuning.question_by_question(samples, before, block, full, model="a", tuned="b", about="lab")
    assert rows(fig) == [("Where?", "single-hop", "Wilby", "✗ Tamton", "✓ Wilby", "✓ Wilby")]


# --- sessions

ANSWERED = [
    {**record, "equal": True, "right": step == 1, "answer": "a", "answer_anew": "a", "logit_gap": 1e-6 * step}
    for step, record in enumerate(RECORDS)
]


def test_a_session_is_summarised_behind_its_first_prompt():
    summary = session_replay.later_prompts(ANSWERED)
    assert summary["blocks"] == 3 and summary["repeated"] == pytest.approx(2 / 3)
    assert (summary["computed"], summary["tokens"], summary["after_prefix"]) == (11, 17, 13)
    assert summary["ttft_ms"] == pytest.approx(10) and summary["ttft_full_ms"] == pytest.approx(100)
    assert session_replay.total(ANSWERED, "right") == 1
    assert all("fates" not in record and "ttft" in record for record in session_replay.without_blocks(ANSWERED))


def test_scores_of_several_numbers_of_demonstrations_are_weighed_by_their_questions():
    score = {"em_low": 0.0, "em_high": 1.0, "f1": 0.5, "f1_low": 0.0, "f1_high": 1.0}
    found = [
        {"mode": mode, "kind": kind, "n": n, "em": em, **score}
        for mode in ("full", "block")
        for kind, n, em in (("all", 4, 0.25), ("own passage", 1, 1.0), ("demonstration", 3, 0.0))
    ]
    counted = session_replay.by_number(found, 8)
    assert [row["kind"] for row in counted[:2]] == ["own passage, 8", "demonstration, 8"] and counted[0]["shots"] == 8
    assert session_replay.mean_em(counted, "full") == 0.25
    fig = session_figures.demonstrations_quality(counted, about="tiny", device="CPU")
    assert "Full attention answers 25%, blocks 25%" in texts(fig)
    assert "Full attention answers 25%" in texts(session_figures.chat_quality(found, about="tiny", device="CPU"))


def test_figures_of_sessions_say_what_was_computed():
    fig = session_figures.demonstrations_history(ANSWERED, shots=1, seed=0)
    assert "blocks compute 22 of 34 tokens, a prefix cache 26" in texts(fig)
    fig = session_figures.demonstrations_turnover(ANSWERED, repeats=2, device="CPU")
    assert "blocks compute 11 of 17 tokens each. 2 of 2 answers are those" in texts(fig)
    assert "From turn 2 on" in texts(session_figures.chat_history(ANSWERED, turns=3, memory=1, seed=0))
    assert "No turn is dropped" in texts(session_figures.chat_history(ANSWERED, turns=2, memory=8, seed=0))
    fig = session_figures.chat_turnover(ANSWERED, memory=8, repeats=2, device="CPU")
    assert "In the last 1 turns blocks compute 11 tokens" in texts(fig)
    fig = session_figures.game_turnover(ANSWERED, repeats=2, device="CPU")
    assert "10 ms where full attention takes 100 ms" in texts(fig)


def test_frames_of_a_game_stand_in_a_table_with_both_answers():
    played = game.frames(2, 0, 1)
    assert "3 blocks; 66.7% of them" in texts(session_figures.game_frames(ANSWERED, played, seed=0))
    fig = session_figures.game_table(ANSWERED, played, model="tiny", device="CPU")
    assert [row[0] for row in rows(fig)] == ["1", "2"] and rows(fig)[1][3:] == ("a", "a", "yes", "1e-06", "1 of 3")
    assert "1 of 2 are" in texts(fig)
    assert len(rows(session_figures.game_table(ANSWERED, played, model="tiny", device="CPU", most=1))) == 1


# --- recomputation


@pytest.fixture(scope="module")
def swept():
    return results.today(results.table("fusion"))


def test_quality_of_a_sweep_is_quoted_at_its_ratio(swept):
    fig = sweep_curves.quality_by_ratio(swept, ["query_guided", "random"], ["all", "order"])
    level = sweep_curves.levels(swept)
    (point,) = sweep_curves.curves(swept, ["query_guided"], only=0.15)
    assert f"At 15%: question-guided {point['mean']:.1%}" in texts(fig)
    asked = swept[swept.kind == "order"].n.max()
    assert f"order, n = {asked} (full attention {level['full', 'order']:.0%})" in texts(fig)
    assert sweep_curves.asked(swept) in texts(fig)


def test_kinds_at_a_ratio_begin_with_full_attention_and_full_reuse(swept):
    fig = sweep_curves.kinds_at(swept, ["query_guided"])
    full = swept[(swept["mode"] == "full") & (swept.kind == "order")].iloc[0]
    column = [head.removeprefix("<b>").split(" (")[0] for head in fig.data[0].header["values"]].index("order")
    assert [row[0] for row in rows(fig)] == ["full attention", "Full Reuse", "question-guided (FusionRAG)"]
    assert rows(fig)[0][column] == f"{full.em:.0%} ({full.em_low:.0%}–{full.em_high:.0%})"


def test_selectors_and_preparations_stand_with_signed_differences(swept):
    low_high = {"normalised_low": 0.1, "normalised_high": 0.9, "difference_low": -0.02, "difference_high": 0.01}
    pair = {"select": "first_k", "em": 0.5, "normalised": 0.4, "difference": -0.01, **low_high}
    fig = sweep_curves.selectors_at(swept, [pair])
    first = ("first tokens (EPIC)", "50.0%", "0.40", "0.10 to 0.90", "-1.0 points", "-2.0 to +1.0")
    assert rows(fig) == [first] and "recovers 40%" in texts(fig)
    sides = {f"{side}{end}": 0.5 for side in ("one", "other") for end in ("", "_low", "_high")}
    pairs = [
        {"select": spec, "gain": gain, "gain_low": 0.0, "gain_high": 0.1, **sides}
        for spec, gain in (("none", 0.05), ("query_guided", -0.01))
    ]
    fig = sweep_curves.preparations(swept, pairs, neighbours=10)
    assert rows(fig)[0] == ("nothing recomputed", "50.0% (50%–50%)", "50.0% (50%–50%)", "+5.0 points", "+0.0 to +10.0")
    assert "nothing recomputed +5.0 and question-guided (FusionRAG) -1.0" in texts(fig)


def test_neighbours_antecedents_and_operations_of_the_shipped_sweep(swept):
    points = sweep_curves.by_neighbours(swept, ["none"])
    fig = sweep_curves.number_of_neighbours(swept, ["none"])
    assert f"nothing recomputed: {points[0]['mean']:.1%} at 0" in texts(fig)
    fig = sweep_curves.antecedents_table({1: (3, 12)}, passages=4000, seed=7)
    assert rows(fig) == [("1", "12", "3 (25%)")] and "4,000 passages" in texts(fig)
    fig = sweep_curves.quality_by_operations(swept, ["query_guided"])
    line = next(trace for trace in fig.data if trace.mode == "lines+markers")
    assert 0 < min(line.x) < 1 and f"{swept[swept['mode'] == 'full'].flops.iloc[0]:.1e}" in texts(fig)


def test_a_local_sweep_is_drawn_against_time_and_by_component(swept):
    timed = swept.assign(ttft_p50=0.02)
    partly = timed[(timed["mode"] == "block") & (timed.prepare == "after_system") & (timed.ratio != 1)]
    full = timed[timed["mode"] == "full"]
    fig = sweep_curves.quality_by_time(partly, full, ratios=[0.15], name="tiny on lab", about="n = 3")
    assert "in 20 ms. Points of a line are ratios 15%." in texts(fig)
    assert "full attention" in {trace.name for trace in fig.data}
    similar = "with_neighbours(n=10, search=exact)"
    parts = timed[timed.prepare.isin(["after_system", similar]) & timed["select"].isin(["none", "query_guided"])]
    parts = parts[(parts["select"] == "none") | (parts.ratio == 0.15)]
    fig = sweep_curves.components(parts, similar, about="tiny")
    assert [row[0] for row in rows(fig)][::3] == ["Full Reuse", "+ both (FusionRAG)"] and rows(fig)[0][-1] == "20.0"


# --- KV deviation


def test_the_context_of_a_prompt_is_measured_without_its_question():
    def kv_of(value):
        return KV([torch.full((1, 12, 2), value)], [torch.zeros(1, 12, 2)], 0)

    (gap,) = kv_deviation.context_gaps([kv_of(3.0)], [kv_of(1.0)], [PROMPT])
    assert gap.shape == (8, 1) and gap.unique().tolist() == [8.0]
    values = [torch.arange(8.0)]
    assert kv_deviation.document_mean(values, [PROMPT]) == 5, "tokens 3 to 7"


def test_the_share_outside_a_choice_is_one_minus_what_it_holds():
    gaps = [torch.tensor([[0.0, 9.0]] * 3 + [[0.0, 3.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])]
    curve = kv_deviation.mean_concentration(gaps, [PROMPT], points=6)
    assert curve[:, 1].tolist() == pytest.approx([0, 0.75, 1, 1, 1, 1]), "first block left out"
    assert float(deviation.outside(curve, 0.2)[1]) == pytest.approx(0.25)
    records = deviation.concentration_records({"after_system": curve})
    assert records[1] == {"preparation": "after_system", "name": "layer 1", "at": 0.2, "mean": pytest.approx(0.75)}
    fig = deviation.concentration_curves({"after_system": curve}, ratio=0.2, about="1 prompt")
    assert "leaves 25% of the deviation in layer 1" in texts(fig)


def test_places_are_by_offset_and_by_rank():
    prompt = prompt_of(2, 4, 4, 3)
    values = [torch.tensor([9.0, 9.0, 1.0, 1.0, 0.0, 0.0, 3.0, 3.0, 0.0, 0.0])]
    records = places(values, [prompt], "mine", bins=2)
    means = {(r["by"], r["at"]): r["mean"] for r in records}
    assert means == {("offset", 0.25): 2.0, ("offset", 0.75): 0.0, ("rank", 1): 0.5, ("rank", 2): 1.5}
    both = [{**r, "name": name} for name in ("after_system", "with_neighbours") for r in records]
    mean = {"after_system": 1.0, "with_neighbours": 1.5}
    fig = deviation.where_it_sits(both, mean, layer=1, prompts=1, about="tiny")
    assert "the last passage 1.0 times as much as the second" in texts(fig) and "all tokens by +50%" in texts(fig)


def test_causes_are_means_over_prompts_and_typical_ones_leave_the_first_layer_out(loaded):
    model, tokenizer, layout = loaded
    view = prompt_view.of_text("One.\n\nTwo.\n\nThree.", "Which?", tokenizer, layout)
    cached = kv_deviation.encode_many(model, view.prompt.context)
    records = kv_deviation.cause_records(model, [view.prompt] * 2, [cached] * 2)
    assert len(records) == 2 * 3 * 2 * 2 and {r["prompt"] for r in records} == {0, 1}
    assert all(r["mean"] == 0 for r in records if (r["cause"], r["part"]) == ("position", "values"))
    typical = kv_deviation.typical_causes(records)
    keys = [r["mean"] for r in records if (r["cause"], r["part"], r["at"]) == ("context", "keys", 1)]
    assert typical["context"] == pytest.approx(np.mean(keys)) and typical["context"] > 0
    fig = deviation_repair.what_causes_it(records, about="tiny")
    assert f"missing context leaves {typical['context']:.0%}" in texts(fig) and "2 prompts" in texts(fig)


def test_repairs_keep_selector_and_part_together():
    before, after = torch.ones(12, 3), torch.ones(12, 3)
    after[8:] = 0.25
    repair = Repair(before, after, torch.tensor([4]), 8)
    records = deviation_repair.repair_records({"first_k": [repair, repair], "oracle": [repair]})
    assert [r["at"] for r in records[:2]] == [1, 2], "the first layer never deviates"
    final = deviation_repair.left_in_last_layer(records)
    assert final["first_k", "asked"] == 0.25 and final["oracle", "context"] == 1
    fig = deviation_repair.what_is_repaired(records, ratio=0.15, prompts=2, about="tiny")
    assert "first tokens (EPIC) leaves least in the last layer of the question (25%)" in texts(fig)


def test_a_repair_is_made_for_every_selector_and_prompt(monkeypatch):
    monkeypatch.setattr(kv_deviation, "repair", lambda model, prompt, kv, choices, truth: [f"{kv}{c}" for c in choices])
    made = kv_deviation.repairs(None, ["p", "q"], ["k", "l"], {"a": [1, 2], "b": [3, 4]}, ["t", "u"])
    assert made == {"a": ["k1", "l2"], "b": ["k3", "l4"]}


def test_the_map_of_one_prompt_leaves_its_question_out():
    fig = deviation.token_map({"after_system": torch.rand(8, 2) + 1}, view_of(), about="tiny")
    assert fig.data[0].z.shape == (2, 8) and "sample 1 of lab. tiny." in texts(fig)


# --- selection

CHOICES = {
    (ratio, spec): torch.arange(3, 3 + count) for ratio, count in ((0.0, 0), (0.5, 2)) for spec in ("first_k", "oracle")
}


def test_outcomes_hold_rows_and_verdict_by_ratio_and_selector():
    outcomes = ratio_outcomes.outcomes_of(CHOICES, ["Tamton", "Tamton", "Wilby", "Tamton"], ["Wilby"])
    assert outcomes[0.5]["first_k"].right and not outcomes[0.5]["oracle"].right
    assert outcomes[0.5]["first_k"].rows.tolist() == [3, 4]
    assert ratio_outcomes.enough(outcomes, "Wilby") == {"first_k": 0.5, "oracle": None}
    assert ratio_outcomes.is_right("Wilby", ()) is None
    records = ratio_outcomes.answer_records(outcomes)
    assert records[2] == {
        "ratio": 0.5,
        "selector": "first tokens (EPIC)",
        "answer": "Wilby",
        "right": True,
        "tokens": 2,
    }
    fig = ratio_outcomes.answers_by_ratio(view_of(), outcomes, full="Wilby", reuse="Tamton", ratio=0.5, about="tiny")
    assert fig.layout.sliders[0].active == 1
    assert "answers “Wilby” ✓, Full Reuse “Tamton”. first tokens (EPIC) gives" in texts(fig)


def test_the_text_of_a_prompt_is_drawn_once_a_selector():
    scores = {spec: torch.rand(12) for spec in ("first_k", "oracle")}
    choices = {spec: torch.tensor([4]) for spec in scores}
    fig = chosen_tokens.chosen_text(view_of(), scores, choices, ratio=0.15, about="tiny")
    assert len(fig.layout.updatemenus[0].buttons) == 2 and "the answer (Wilby) needs" in texts(fig)


def test_selectors_are_compared_by_place_and_by_common_tokens():
    records = [
        {"by": by, "name": name, "at": at, "mean": mean, "low": 0.0, "high": 1.0, "n": 1}
        for by in ("offset", "rank")
        for name, mean in (("first tokens (EPIC)", 0.9), ("largest deviation (oracle)", 0.2))
        for at in (0.25, 0.75)
    ]
    assert chosen_places.first_tenth(records) == {"first tokens (EPIC)": 0.9, "largest deviation (oracle)": 0.2}
    fig = chosen_places.where_chosen(records, ["first_k", "oracle"], sample="1 prompt", about="tiny")
    assert "first tokens (EPIC) recomputes 90%, largest deviation (oracle) 20%" in texts(fig)
    share = np.array([[1.0, 0.3, 0.1], [0.3, 1.0, 0.6], [0.1, 0.6, 1.0]])
    names = ["random", "first_k", "oracle"]
    fig = chosen_places.common_tokens({"share": share}, names, ratio=0.15, sample="1 prompt", about="tiny")
    assert "first tokens (EPIC) and largest deviation (oracle) (60%)" in texts(fig)
