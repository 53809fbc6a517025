"""Every explorer draws what its controls say."""

import ipywidgets as widgets
import pytest

from tests.refusals import refused
from workbench import data
from workbench import results as tables
from workbench.app.explore.live import explorer, slider
from workbench.app.explore.panels import editing, reuse
from workbench.app.explore.panels import masks as live_masks
from workbench.app.explore.panels import tradeoff as live_tradeoff
from workbench.core.errors import BadInput
from workbench.data.prompt_view import of_sample
from workbench.experiments.serving.sessions import SessionPrompt
from workbench.plots.marks import method_names
from workbench.plots.reports import trial_costs
from workbench.plots.tokens.plans import turnover

RECORD = {"step": 0, "label": "", "tokens": 9, "after_prefix": 5, "computed": 1}
RECORD |= {"ttft_full": 1.0, "ttft_anew": 1.0, "ttft": 0.5}


@pytest.fixture(scope="module")
def samples():
    return data.load("lab", 2, 0, 3)


@pytest.fixture
def view(loaded, samples):
    _, tokenizer, layout = loaded
    return of_sample(samples[0], "sample 0", tokenizer, layout)


def controls(box: widgets.VBox) -> tuple[widgets.Widget, ...]:
    return box.children[0].children


def texts(box: widgets.VBox, figure: int = -1) -> str:
    return " ".join(note.text for note in box.children[figure].layout.annotations)


def test_what_a_control_makes_impossible_is_said_and_the_figure_stays():
    def draw(value):
        if value > 1:
            raise BadInput("at most <1>")
        return turnover([RECORD] * (value + 1), unit="frame", title="T", caption="c", notice=f"value {value}")

    box = explorer([slider("value", 0, 0, 2)], draw)
    (value,) = controls(box)
    assert box.children[1].value == "" and "value 0" in texts(box)
    value.value = 2
    assert "at most &lt;1&gt;" in box.children[1].value and "value 0" in texts(box)
    value.value = 1
    assert box.children[1].value == "" and "value 1" in texts(box)
    assert slider("over", 9, 0, 2).value == 2


def test_a_mask_rule_is_drawn_with_the_attention_under_it(loaded, view):
    box = live_masks.masks_explorer(loaded, view, "window(3)")
    rule, layer, head = controls(box)
    before = texts(box, 3)
    rule.value, layer.value, head.value = "window(9)", 0, 1
    assert texts(box, 3) != before and "Layer 0, head 1; ★" in texts(box)
    rule.value = "nonsense("
    assert "mask rule" in box.children[1].value
    assert len(box.children[-1].data) == 2 * (1 + 1), "one head, and its mean"


def test_a_key_is_rotated_to_the_distance(loaded, view):
    box = reuse.positions_explorer(loaded, view)
    distance, token, layer, head = controls(box)
    distance.value, token.value, layer.value, head.value = 7, 2, 1, 1
    assert "layer 1, head 1, moved by 7 tokens" in texts(box)
    assert distance.max == loaded[0].config.max_position_embeddings - len(view.prompt.blocks[1])


def test_one_question_is_answered_with_three_methods(loaded, samples):
    box = reuse.reuse_explorer(loaded, samples, 2)
    number, _, head = controls(box)
    number.value, head.value = 1, 0
    table, attention = box.children[3:]
    assert len(table.data[0].cells.values[0]) == 3 and "sample 1" in texts(box)
    assert len(attention.data) == 3 * (1 + 1)


def test_an_edited_prompt_is_answered_again(loaded, samples):
    layout = loaded[2]
    pieces = tuple(layout.pieces(samples[0]))
    box = editing.editing_explorer(loaded, [SessionPrompt(pieces, samples[0].answers, "", "first")], max_new_tokens=2)
    edit, _, _, block = controls(box)
    assert "1 of" in texts(box)
    edit.value = "nothing"
    assert "0 of" in texts(box) and block.max == len(pieces) - 2


def test_curves_of_trials_are_drawn_against_any_cost_for_any_kind():
    box = live_tradeoff.tradeoff_explorer(trial_costs.trials(tables.read().counts("trial")))
    place, prepare, _, axis, measure = controls(box)
    place.value, prepare.value = "lab-full on lab", "after_system"
    measure.value, axis.value = "f1", "flops"
    drawn = box.children[-1].layout
    assert (drawn.xaxis.title.text, drawn.yaxis.title.text) == (live_tradeoff.AXES["flops"], "F1")
    refused("no selector", lambda: live_tradeoff.tradeoff_explorer(trial_costs.trials(tables.read().counts("nothing"))))


def test_any_two_measures_of_sparse_methods_are_set_against_each_other():
    found = tables.read()
    counts = found.counts("trial").query("model == 'lab-full' and data == 'lab' and passages == 40 and kind == 'all'")
    settings = method_names.named(tables.scores(counts))
    box = live_tradeoff.quality_explorer(settings, found.answers("trial").query("model == 'lab-full'"))
    method, across, up, keep = controls(box)
    assert "90% of the exact match" in texts(box) and across.value == "density"
    method.value, up.value, keep.value = "BFLA", "mass", 50
    assert "50% of the attention mass kept" in texts(box) and "attention mass kept against density" in texts(box)
    assert {trace.name for trace in box.children[-1].data} - {None} == {"BFLA"}
