"""Functions that shape records into tables and figures: deviation and the choice of tokens."""

import numpy as np
import pytest
import torch

from tests.figure_views import PROMPT, texts, view_of
from tests.random_models import prompt_of
from workbench.core.kv import KV
from workbench.data import prompt_view
from workbench.engine.encoding import encode_many
from workbench.metrics.kv import kv_deviation
from workbench.metrics.kv.kv_deviation import Repair
from workbench.metrics.kv.selection import places
from workbench.plots.kv import deviation, deviation_repair
from workbench.plots.tokens import chosen_tokens, ratio_outcomes


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
    assert [trace.name for trace in fig.data] == ["layer 1"]


def test_places_are_by_offset_and_by_rank():
    prompt = prompt_of(2, 4, 4, 3)
    values = [torch.tensor([9.0, 9.0, 1.0, 1.0, 0.0, 0.0, 3.0, 3.0, 0.0, 0.0])]
    records = places(values, [prompt], "mine", bins=2)
    means = {(r["by"], r["at"]): r["mean"] for r in records}
    assert means == {("offset", 0.25): 2.0, ("offset", 0.75): 0.0, ("rank", 1): 0.5, ("rank", 2): 1.5}
    both = [{**r, "name": name} for name in ("after_system", "with_neighbours") for r in records]
    fig = deviation.where_it_sits(both, layer=1, prompts=1, about="tiny")
    assert {trace.name for trace in fig.data} >= {"after_system", "with_neighbours"}


def test_causes_are_means_over_prompts_and_typical_ones_leave_the_first_layer_out(loaded):
    model, tokenizer, layout = loaded
    view = prompt_view.of_text("One.\n\nTwo.\n\nThree.", "Which?", tokenizer, layout)
    cached = encode_many(model, view.prompt.context)
    records = kv_deviation.cause_records(model, [view.prompt] * 2, [cached] * 2)
    assert len(records) == 2 * 3 * 2 * 2 and {r["prompt"] for r in records} == {0, 1}
    assert all(r["mean"] == 0 for r in records if (r["cause"], r["part"]) == ("position", "values"))
    typical = kv_deviation.typical_causes(records)
    keys = [r["mean"] for r in records if (r["cause"], r["part"], r["at"]) == ("context", "keys", 1)]
    assert typical["context"] == pytest.approx(np.mean(keys)) and typical["context"] > 0
    fig = deviation_repair.what_causes_it(records, about="tiny")
    assert "2 prompts" in texts(fig)


def test_repairs_keep_selector_and_part_together():
    before, after = torch.ones(12, 3), torch.ones(12, 3)
    after[8:] = 0.25
    repair = Repair(before, after, torch.tensor([4]), 8)
    records = deviation_repair.repair_records({"first_k": [repair, repair], "oracle": [repair]})
    assert [r["at"] for r in records[:2]] == [1, 2], "the first layer never deviates"
    final = deviation_repair.left_in_last_layer(records)
    assert final["first_k", "asked"] == 0.25 and final["oracle", "context"] == 1
    fig = deviation_repair.what_is_repaired(records, ratio=0.15, prompts=2, about="tiny")
    assert "2 prompts" in texts(fig)


def test_a_repair_is_made_for_every_selector_and_prompt(monkeypatch):
    monkeypatch.setattr(kv_deviation, "repair", lambda model, prompt, kv, choices, truth: [f"{kv}{c}" for c in choices])
    made = kv_deviation.repairs(None, ["p", "q"], ["k", "l"], {"a": [1, 2], "b": [3, 4]}, ["t", "u"])
    assert made == {"a": ["k1", "l2"], "b": ["k3", "l4"]}


def test_the_map_of_one_prompt_leaves_its_question_out():
    fig = deviation.token_map({"after_system": torch.rand(8, 2) + 1}, view_of(), about="tiny")
    assert fig.data[0].z.shape == (2, 8) and "sample 1 of lab. tiny." in texts(fig)


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
    assert "answers “Wilby” ✓, Full Reuse “Tamton”. The least that gives" in texts(fig)
    assert "the answer of full attention: first tokens (EPIC) at 50%." in texts(fig)


def test_selectors_are_compared_by_place_and_by_common_tokens():
    records = [
        {"by": by, "name": name, "at": at, "mean": mean, "low": 0.0, "high": 1.0, "n": 1}
        for by in ("offset", "rank")
        for name, mean in (("first tokens (EPIC)", 0.9), ("largest deviation (oracle)", 0.2))
        for at in (0.25, 0.75)
    ]
    assert chosen_tokens.first_tenth(records) == {"first tokens (EPIC)": 0.9, "largest deviation (oracle)": 0.2}
    fig = chosen_tokens.where_chosen(records, ["first_k", "oracle"], sample="1 prompt", about="tiny")
    assert "1 prompt; mean" in texts(fig)
    share = np.array([[1.0, 0.3, 0.1], [0.3, 1.0, 0.6], [0.1, 0.6, 1.0]])
    names = ["random", "first_k", "oracle"]
    fig = chosen_tokens.common_tokens({"share": share}, names, ratio=0.15, sample="1 prompt", about="tiny")
    assert np.nanmax(fig.data[0].z) == np.float32(0.6)
