"""Every explorer draws what its controls say."""

import json
from types import SimpleNamespace

import ipywidgets as widgets
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from short_runs import EXPLORED, explorers_of

from tests.refusals import refused
from workbench import Block, MemoryStore, Prompt, data, explore, fetch
from workbench import results as tables
from workbench.app.explore import live
from workbench.app.explore.keeping import file_name, free
from workbench.app.explore.live import explorer, selection_of, slider
from workbench.app.explore.panels import editing, reuse
from workbench.app.explore.panels import masks as live_masks
from workbench.app.explore.panels import tradeoff as live_tradeoff
from workbench.app.notebooks import notebook
from workbench.core.errors import BadInput
from workbench.data.prompt_view import of_sample
from workbench.experiments.serving.sessions import SessionPrompt
from workbench.experiments.trials.trial import Trial
from workbench.models.given import loaded_of, reading_of
from workbench.plots.attention.masks import MaskPanel, masks
from workbench.plots.attention.token_axes import MARK, TokenAxes, axes_of, counts_tokens, marks, token_of
from workbench.plots.kv.deviation import deviation
from workbench.plots.marks import method_names
from workbench.plots.reports import trial_costs
from workbench.plots.tiles.reduce import cell_starts
from workbench.plots.tokens.chosen_tokens import width_of
from workbench.plots.tokens.plans import turnover
from workbench.store.urls import opened

RECORD = {"step": 0, "label": "", "tokens": 9, "after_prefix": 5, "computed": 1}
RECORD |= {"ttft_full": 1.0, "ttft_anew": 1.0, "ttft": 0.5}


@pytest.fixture(scope="module")
def samples():
    return data.load("lab", 2, 0, 3)


@pytest.fixture(scope="module")
def sample(samples):
    return samples[0]


@pytest.fixture
def view(loaded, sample):
    _, tokenizer, layout = loaded
    return of_sample(sample, "sample 0", tokenizer, layout)


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
    assert len(table.data[0].cells.values[0]) == 3 and "Sample 1" in texts(box)
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
    refused(
        "no selector",
        lambda: live_tradeoff.tradeoff_explorer(trial_costs.trials(tables.read().counts("trial").iloc[:0])),
    )


def test_any_two_measures_of_sparse_methods_are_set_against_each_other():
    found = tables.read()
    counts = found.counts("trial").query("model == 'lab-full' and data == 'lab' and passages == 40 and kind == 'all'")
    settings = method_names.with_method_names(tables.scores(counts))
    box = live_tradeoff.quality_explorer(settings, found.answers("trial").query("model == 'lab-full'"))
    method, across, up, keep = controls(box)
    assert "90% of the exact match" in texts(box) and across.value == "density"
    method.value, up.value, keep.value = "BFLA", "mass", 50
    assert "50% of the attention mass kept" in texts(box) and "attention mass kept against density" in texts(box)
    assert {trace.name for trace in box.children[-1].data} - {None} == {"BFLA"}


# --- Explorers in one line: on any form of model, prompt and records, linked by the token that is looked at
TEXT = "Alice lives in Paris.\n\nBob keeps <b>bees</b>.\n\nWhere does Alice live?"
SAID = {"notice": "n", "caption": "c"}
MB = 1_000_000


def figures(box) -> list[go.FigureWidget]:
    return [child for child in box.children if isinstance(child, go.FigureWidget)]


def marked(figure) -> list:
    return [shape for shape in figure.layout.shapes if shape.name == MARK]


def test_the_first_message_of_a_figure_holds_it(monkeypatch):
    opened_with = []
    script = live.Script.of_kernel()
    monkeypatch.setattr("comm.create_comm", lambda **message: opened_with.append(message))
    live.LiveFigure(go.Figure(go.Bar(y=[1, 3, 2])))
    states = [message["data"]["state"] for message in opened_with if "_widget_data" in message["data"]["state"]]
    assert [state["_widget_data"][0]["y"] for state in states] == [[1, 3, 2]]
    assert states[0]["_plotly"] == f"IPY_MODEL_{script.model_id}" and len(states[0]["_esm"]) < 10_000


def test_figures_share_plotlys_script_until_widgets_are_closed():
    first, second = (live.LiveFigure(go.Figure()) for _ in range(2))
    assert first._plotly is second._plotly
    widgets.Widget.close_all()
    assert live.LiveFigure(go.Figure())._plotly is not first._plotly


def test_explorers_of_one_prompt_mark_the_same_token(loaded, sample):
    boxes = [explore.masks(loaded, sample), explore.deviation(loaded, sample), explore.tokens(loaded, sample)]
    shown = [figure for box in boxes for figure in figures(box)]
    selection = selection_of(reading_of(loaded, sample).prompt)
    selection.token = -1  # other explorers of this prompt share it
    assert not any(marked(figure) for figure in shown)
    text = figures(boxes[2])[0]
    text.data[0]._dispatch_on_click(SimpleNamespace(point_inds=[40]), None)
    assert selection.token == 40 and all(marked(figure) for figure in shown)
    rows, column = [shape for shape in marked(shown[0]) if shape.yref == "y"], marked(figures(boxes[1])[0])[0]
    assert len(rows) == 1 and rows[0].y0 == 40 == column.x0
    percent = boxes[1].children[0].children[1]
    percent.value = 60
    assert marked(figures(boxes[1])[0]), "the mark stays when a figure is drawn again"
    heat = figures(boxes[1])[0].data[0]
    heat._dispatch_on_click(SimpleNamespace(point_inds=[[1, 7]]), None)
    assert selection.token == 7 and "token 7 " in boxes[0].children[2].children[-1].value


@pytest.mark.parametrize("length", [300, 5000])
def test_a_token_is_found_where_it_is_marked(length):
    at = cell_starts(length, 512)
    axes = TokenAxes(length, len(at))
    assert all(axes.token_at(axes.cell_of(int(token))) == token for token in at)
    figure = counts_tokens(go.Figure(go.Heatmap(z=np.zeros((2, len(at))))), axes)
    assert token_of(figure, figure.data[0], [0, 9]) == at[9] and marks(figure, int(at[9]))[0]["x0"] == 9
    assert marks(figure, length) == [] and axes_of(go.Figure()) is None


def test_sparse_tiles_and_latency_of_own_text(loaded):
    box = explore.sparse(loaded, TEXT * 6, tile=16, methods=("bfla",))
    assert axes_of(figures(box)[0]) is not None and len(figures(box)) == 2
    timed = figures(explore.latency(loaded, TEXT, repeats=1))[0]
    assert "than with full attention" in " ".join(note.text for note in timed.layout.annotations)


def test_models_and_prompts_come_in_many_forms(loaded, folder, sample):
    assert loaded_of(loaded) is loaded and loaded_of(tuple(loaded)).layout is loaded.layout
    by_text = reading_of(loaded, TEXT)
    assert by_text.question == "Where does Alice live?" and len(by_text.prompt.blocks) >= 3
    assert reading_of(loaded, "Alice lives.", "Where?").question == "Where?"
    by_list = reading_of(loaded, ["Alice lives in Paris.", "Where?"])
    assert len(by_list.prompt.blocks) == 2 and reading_of(loaded, by_list.prompt).tokens == by_list.tokens
    assert reading_of(loaded, sample).answers == sample.answers and reading_of(loaded, by_list) is by_list


@pytest.mark.parametrize("prompt", ["one paragraph", [], ["one"], 7, None, [1, 2], ""])
def test_what_is_no_prompt_is_refused(loaded, prompt):
    refused(".", reading_of, loaded, prompt)


def test_what_is_no_model_is_refused():
    for model in (7, None, (1, 2), "no-such-model"):
        refused(".", loaded_of, model)


def test_figures_of_32k_tokens_stay_small():
    length = 32768
    block_of = np.repeat(np.arange(8), length // 8)
    tokens = [f" {number}" for number in range(length)]
    gaps = {"a": np.random.default_rng(0).random((length, 30), np.float32)}
    fig = deviation(gaps, tokens, block_of, **SAID)
    assert len(fig.to_json()) < 4 * MB and axes_of(fig) == TokenAxes(length, 1024)
    at = cell_starts(length)
    share = np.tri(512, dtype=np.uint8)
    fig = masks([MaskPanel("m", share)] * 3, [tokens[i] for i in at], block_of[at], **SAID)
    assert len(fig.to_json()) < 8 * MB


def test_wide_and_joined_letters_take_their_place():
    assert [width_of(text) for text in ("abc", "日本", "e\u0301", "")] == [3, 4, 1, 0]


def test_tradeoff_takes_tables_records_and_files(loaded, tmp_path):
    table = pd.DataFrame(
        {"model": "m", "mode": "block", "prepare": "independent", "select": select, "ratio": ratio, "kind": "all"}
        | {"em": ratio, "em_low": ratio, "em_high": ratio, "rows_computed": 100 * ratio, "flops": 1e9 * ratio, "n": 10}
        for select in ("random", "first_k", "oracle")
        for ratio in (0.05, 0.15, 0.5)
    )
    box = explore.tradeoff(table)
    _, cost, _ = box.children[0].children
    before = len(figures(box)[0].data)
    cost.value = "flops"
    assert before == 3 and "Best is" in " ".join(note.text for note in figures(box)[0].layout.annotations)
    record = Trial("tiny", samples=2, passages=2, timed=1, max_new_tokens=2).run(loaded=loaded)
    (path := tmp_path / "r.json").write_text(json.dumps(record.to_json()))
    for given in (record, record.to_json(), path, [record, str(path)]):
        assert figures(explore.tradeoff(given))
    for wrong in ("nowhere.json", 7, [], tmp_path):
        refused(".", explore.tradeoff, wrong)


def test_a_store_and_receipts_are_shown(loaded, tmp_path):
    blocks = [Block((1, 2, 3)), Block((4, 5))]
    fetch(loaded.model, blocks, kept := opened(tmp_path / "store", {"model": "tiny"}, new=True))
    fetch(loaded.model, blocks, memory := MemoryStore())
    assert len(kept) == 2
    for given in (tmp_path / "store", memory):
        cells = figures(explore.store(given))[0].data[0].cells.values
        assert "2" in cells[1] and "blocks" in cells[0]
    trial = Trial("tiny", samples=3, passages=2, timed=1, max_new_tokens=2, mode="block", receipt=True)
    box = explore.store(trial.run(loaded=loaded))
    _, unit = box.children[0].children
    for name in ("blocks", "tokens", "bytes"):
        unit.value = name
    assert "Store lookups" in " ".join(note.text for note in figures(box)[0].layout.annotations)
    with pytest.raises(BadInput, match="no receipts"):
        explore.store(Trial("tiny", samples=1, passages=2, timed=1, max_new_tokens=2).run(loaded=loaded))


def test_markup_in_a_prompt_stays_text(loaded):
    evil = '<a href="javascript:alert(1)">x</a> <img src=x onerror=alert(1)> &lt;b&gt;'
    box = explore.tokens(loaded, Prompt(reading_of(loaded, [evil, f"{evil}?"]).prompt.blocks))
    shown = json.dumps([figure.to_plotly_json() for figure in figures(box)], default=list)
    assert "<a href" not in shown and "<img" not in shown


def test_files_of_figures_are_named_after_their_titles(tmp_path, monkeypatch):
    figure = go.Figure(layout={"annotations": [{"text": "<b>Where layer 1 deviates: a/b</b>"}]})
    assert file_name(figure) == "where-layer-1-deviates-a-b" and file_name(go.Figure()) == "figure"
    monkeypatch.chdir(tmp_path)
    free("x", "png").touch()
    assert free("x", "png").name == "x-2.png"


# --- Every explorer of a shipped notebook
def inside(widget):
    """A widget and all below it."""
    return [widget, *(each for child in getattr(widget, "children", ()) for each in inside(child))]


def values_of(control):
    """Values that a control offers; none of one that saves figures, or has no choice."""
    if hasattr(control, "max"):
        return [control.min, control.max]
    values = [each[1] if isinstance(each, tuple) else each for each in getattr(control, "options", ())]
    return values if len(values) > 1 and "svg" not in values else []


@pytest.mark.parametrize("name", EXPLORED)
def test_every_control_of_a_notebooks_explorers_moves_a_figure(name, folder, monkeypatch):
    monkeypatch.setattr(notebook, "is_live", lambda: True)
    shown: list = []
    namespace: dict = {"display": shown.append}
    for cell in explorers_of(name, str(folder)).cells:
        exec(cell.source, namespace)
    boxes = [box for box in shown if isinstance(box, live.Explorer)]
    assert boxes, "an explorer is shown"
    for box in boxes:
        figures = [each for each in inside(box) if isinstance(each, live.LiveFigure)]
        controls = [each for each in inside(box) if values_of(each)]
        assert figures and controls
        choices = [each for each in inside(box) if hasattr(each, "options") or hasattr(each, "max")]
        assert all(each.description for each in choices), "a label stands beside each"
        still = []
        for control in controls:
            drawn, value = set(), control.value
            for each in values_of(control):
                control.value = each
                drawn.add(tuple(figure.to_json() for figure in figures))
            if value in values_of(control) or hasattr(control, "max"):
                control.value = value
            if len(drawn) < 2 and values_of(control):
                still.append(control.description)
        assert set(still) <= {"threshold"}, "of a short prompt a method may keep all tiles at any"
