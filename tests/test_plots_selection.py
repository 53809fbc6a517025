"""Figures and explorers of deviation and selection, on small numbers."""

import json

import numpy as np
import torch

from tests.random_models import prompt_of
from tests.test_plots import SAID, check
from workbench import data
from workbench.app.explore.panels import critical, repair
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.methods import select
from workbench.methods.prepare.after_system import AfterSystem
from workbench.plots.kv.deviation import deviation
from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.styles import SELECTORS
from workbench.plots.tokens.chosen_tokens import Choice, _layout, agreement, coloured
from workbench.plots.tokens.ratio_outcomes import RatioOutcome, ratios
from workbench.store import MemoryStore

PROMPT = prompt_of(3, 5, 4, 2)
TOKENS = [f" t{i}<" for i in range(14)]


def test_every_selector_has_a_look_of_its_own():
    assert set(select.names()) == set(SELECTORS)
    looks = [(SELECTORS.colour_of(name), SELECTORS.symbol_of(name)) for name in select.names()]
    assert len(set(looks)) == len(looks), "colour and symbol"
    assert SELECTORS.name_of("query_guided(layers=all)") == "question-guided (FusionRAG): layers=all"
    assert SELECTORS.colour_of("query_guided(layers=all)") == SELECTORS.colour_of("query_guided")


def test_profiles_list_every_name_once_and_leave_nan_out():
    rows = [
        {"name": name, "at": at, "mean": at / 4 if at else float("nan"), "low": 0.0, "high": 1.0}
        for name in ("a", "b")
        for at in range(4)
    ]
    panels = [
        profile("one", rows, "layer", "share", percent=True),
        profile("two", rows, "layer", log=True),
    ]
    check(fig := profiles(panels, title="T", colours={"a": "#0072B2"}, mark=1, **SAID))
    assert [trace.name for trace in fig.data if trace.showlegend] == ["a", "b"]
    lines = [trace for trace in fig.data if trace.mode == "lines+markers"]
    assert len(lines) == 4 and all(trace.x == (1, 2, 3) for trace in lines)
    assert fig.layout.yaxis2.type == "log"


def test_deviation_is_logarithmic_and_white_where_there_is_none():
    gap = np.array([[0.0, 1.0], [0.0, 100.0], [1e-9, 10.0]] * 4)
    check(fig := deviation({"a": gap, "b": gap / 10}, TOKENS[:12], PROMPT.block_of[:12].numpy(), **SAID))
    first, second = fig.data
    assert np.isnan(first.z[0]).all() and first.z[1][:3].tolist() == [0, 2, 1]
    np.testing.assert_allclose(second.z[1], first.z[1] - 1, atol=1e-6)
    assert "question" not in str(first.customdata)
    check(deviation({"exact": gap * 0}, TOKENS[:12], PROMPT.block_of[:12].numpy(), **SAID))


def test_coloured_text_frames_what_is_chosen():
    scores = np.array([-np.inf] * 3 + [0.1, 0.5, 0.2, 0.4, 0.3, 9, 8, 7, 6])
    choices = {"one": Choice(scores, np.array([8, 9])), "two": Choice(scores[::-1].copy(), np.array([0]))}
    check(fig := coloured(choices, TOKENS, PROMPT.block_of.numpy(), title="T", marked=[1], **SAID))
    bars, letters = fig.data
    assert letters.mode == "text" and list(letters.x) == list(bars.base), "letters lie over the boxes of all tokens"
    assert len(letters.text) == 14 and letters.text[0] == " t0&lt;"
    assert [i for i, width in enumerate(bars.marker.line.width) if width] == [8, 9]
    assert bars.marker.color[8] == 1 and bars.marker.color[0] == 0 and bars.marker.color[13] == 0
    assert "never" in bars.customdata[0] and "always" in bars.customdata[13] and "recomputed" in bars.customdata[8]
    assert fig.layout.updatemenus[0].buttons[1].args[0]["marker.line.width"][0][0] > 0
    assert list(fig.layout.yaxis.ticktext) == ["0", "1★", "2", "question"]


def test_long_text_wraps_and_blocks_begin_a_line():
    lines, columns, first = _layout([56] * 5, np.array([0, 0, 0, 1, 1]))
    assert lines == [0, 0, 1, 2, 2] and columns == [0, 56, 0, 0, 56] and first == {0: 0, 1: 2}


def test_agreement_shows_one_measure_at_a_time():
    matrix = np.array([[1, 0.25], [0.25, 1]])
    check(fig := agreement({"a": matrix, "b": matrix}, ["one (x)", "two"], title="T", **SAID))
    assert [trace.visible for trace in fig.data] == [True, False]
    assert np.isnan(fig.data[0].z[0][0]) and fig.data[0].z[0][1] == 0.25
    assert fig.layout.updatemenus[0].buttons[1].args[0]["visible"] == [False, True]


def test_the_slider_moves_the_set_and_the_answer():
    nothing, some = np.array([], dtype=int), np.array([4, 11, 13])
    steps = {
        0.0: {"a": RatioOutcome(nothing, "wrong", False), "b": RatioOutcome(nothing, "wrong", False)},
        0.5: {"a": RatioOutcome(some, "right", True), "b": RatioOutcome(nothing, "who <knows>", None)},
    }
    check(fig := ratios(steps, TOKENS, PROMPT.block_of.numpy(), title="T", active=1, **SAID))
    assert [frame.name for frame in fig.frames] == ["0%", "50%"] and fig.layout.sliders[0].active == 1
    assert np.isnan(fig.frames[0].data[0].z).all()
    assert np.argwhere(~np.isnan(fig.data[0].z)).tolist() == [[0, 4], [0, 11]], "the question is left out"
    assert fig.data[1].text == ("✓ right", "who &lt;knows>") and "✗" in fig.frames[0].data[1].text[0]


# --- explorers


def test_packed_answers_are_those_of_each_choice_alone(loaded):
    model, tokenizer, layout = loaded
    prompt = layout.prompt(data.load("lab", 1, 0, 3)[0], tokenizer)
    kv = assemble(model, prompt, encode_many(model, prompt.context))
    before = [x.clone() for x in kv.tensors()]
    choices = [torch.arange(0), torch.tensor([20, 30]), torch.arange(prompt.starts[-1])]
    together = critical.answers(loaded, prompt, kv, choices, 4)
    assert together == [critical.answers(loaded, prompt, kv, [rows], 4)[0] for rows in choices]
    assert all(torch.equal(a, b) for a, b in zip(before, kv.tensors(), strict=True))


def test_an_explorer_draws_again_what_its_controls_say(loaded):
    model, tokenizer, layout = loaded
    samples = data.load("lab", 2, 0, 3)
    box = critical.critical_explorer(loaded, samples, AfterSystem(), 2)
    number, menu, percent = box.children[0].children
    number.value, menu.value, percent.value = 1, "first_k", 50
    widget = box.children[-1]
    assert sum(width > 0 for width in widget.data[0].marker.line.width) > 20
    cached = AfterSystem()(model, layout.prompts(samples, tokenizer), MemoryStore())
    box = repair.repair_explorer(loaded, samples, {"after_system": cached})
    *_, menu, percent = box.children[0].children
    before = json.loads(box.children[-1].to_json())["layout"]["annotations"]
    menu.value, percent.value = "all", 0
    assert json.loads(box.children[-1].to_json())["layout"]["annotations"] != before
