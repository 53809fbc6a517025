"""Functions that shape records into tables and figures: deviation and the choice of tokens."""

import json
import re
import struct
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
from colorspacious import cspace_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.figure_views import PROMPT, view_of
from tests.random_models import prompt_of
from tests.refusals import refused
from workbench.app.reports import figure_files
from workbench.app.reports.figure_files import write_figure
from workbench.app.reports.thumbnail import chromium
from workbench.core.kv import KV
from workbench.core.masks import block_attention, causal
from workbench.data import prompt_view
from workbench.engine.encoding import encode_many
from workbench.methods.generation import generate
from workbench.metrics import attention_mass
from workbench.metrics.attention_mass import AttentionMass
from workbench.metrics.kv import kv_deviation, position_encoding
from workbench.metrics.kv.kv_deviation import RepairDeviation
from workbench.metrics.kv.selection import places
from workbench.plots.attention import masks
from workbench.plots.kv import deviation
from workbench.plots.marks import chart, styles, theme
from workbench.plots.marks.lines import Panel, Series, line_chart
from workbench.plots.marks.styles import SeriesStyle
from workbench.plots.marks.table import ROOM, SECOND, drawn_width, table
from workbench.plots.marks.theme import TURNED
from workbench.plots.reports import findings
from workbench.plots.tokens import ratio_outcomes
from workbench.plots.tokens.plans import turnover
from workbench.results import figure_data


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
    records = kv_deviation.concentration_records({"after_system": curve})
    assert records[1] == {"preparation": "after_system", "name": "layer 1", "at": 0.2, "mean": pytest.approx(0.75)}


def test_places_are_by_offset_and_by_rank():
    prompt = prompt_of(2, 4, 4, 3)
    values = [torch.tensor([9.0, 9.0, 1.0, 1.0, 0.0, 0.0, 3.0, 3.0, 0.0, 0.0])]
    records = places(values, [prompt], "mine", bins=2)
    means = {(r["by"], r["at"]): r["mean"] for r in records}
    assert means == {("offset", 0.25): 2.0, ("offset", 0.75): 0.0, ("rank", 1): 0.5, ("rank", 2): 1.5}


def test_causes_are_means_over_prompts(loaded):
    model, tokenizer, layout = loaded
    view = prompt_view.of_text("One.\n\nTwo.\n\nThree.", "Which?", tokenizer, layout)
    cached = encode_many(model, view.prompt.context)
    records = kv_deviation.cause_records(model, [view.prompt] * 2, [cached] * 2)
    assert len(records) == 2 * 3 * 2 * 2 and {r["prompt"] for r in records} == {0, 1}
    assert all(r["mean"] == 0 for r in records if (r["cause"], r["part"]) == ("position", "values"))
    means = kv_deviation.mean_causes(records).set_index(["cause", "part", "at"])["mean"]
    keys = [r["mean"] for r in records if (r["cause"], r["part"], r["at"]) == ("context", "keys", 1)]
    assert means["context", "keys", 1] == pytest.approx(np.mean(keys)) and means["context", "keys", 1] > 0


def test_repairs_keep_selector_and_part_together():
    before, after = torch.ones(12, 3), torch.ones(12, 3)
    after[8:] = 0.25
    repair = RepairDeviation(before, after, torch.tensor([4]), 8)
    records = kv_deviation.repair_records({"first_k": [repair, repair], "oracle": [repair]})
    assert [r["at"] for r in records[:2]] == [1, 2], "the first layer never deviates"
    final = {(r["name"], r["part"]): r["mean"] for r in records if r["at"] == 2}
    assert final["first_k", "question_left"] == 0.25 and final["oracle", "context"] == 1


def test_the_map_of_one_prompt_leaves_its_question_out():
    fig = deviation.token_map({"after_system": torch.rand(8, 2) + 1}, view_of(), about="tiny")
    assert fig.data[0].z.shape == (2, 8)


CHOICES = {
    (ratio, spec): torch.arange(3, 3 + count) for ratio, count in ((0.0, 0), (0.5, 2)) for spec in ("first_k", "oracle")
}


def test_outcomes_hold_rows_and_verdict_by_ratio_and_selector():
    outcomes = ratio_outcomes.outcomes_of(CHOICES, ["Tamton", "Tamton", "Wilby", "Tamton"], ["Wilby"])
    assert outcomes[0.5]["first_k"].right and not outcomes[0.5]["oracle"].right
    assert outcomes[0.5]["first_k"].rows.tolist() == [3, 4]
    assert ratio_outcomes.smallest_ratios(outcomes, "Wilby") == {"first_k": 0.5, "oracle": None}
    assert ratio_outcomes.smallest_ratios({1.0: outcomes[0.5]}, "Wilby") == {"first_k": None, "oracle": None}
    said = ratio_outcomes.describe_recovery({"first": None, "last": 0.5}, 0.9)
    assert said.endswith("50% of the tokens recomputed; the other selector does not with up to 90%.")
    said = ratio_outcomes.describe_recovery({"a": 0.01, "c": None, "b": 0.05, "d": None, "e": 0.01}, 0.5)
    assert "a and e recover full" in said and " 1% of the tokens recomputed, b with 5%; the other 2 selectors" in said
    assert ratio_outcomes.describe_recovery({"a": 0.5}, 0.5).endswith("with 50% of the tokens recomputed.")
    assert "no selector recovers" in ratio_outcomes.describe_recovery({"a": None}, 0.5)
    assert ratio_outcomes.is_right("Wilby", ()) is None


def test_a_paired_difference_says_whether_the_questions_distinguish_two_methods():
    said = findings.paired_difference("a", "b", "nats", -0.2, -0.5, 0.0, 16)
    assert said.startswith(
        "0.200 nats lower with a than with b (paired by question, 95% interval -0.500 to +0.000, n = 16"
    )
    assert said.endswith("): these questions cannot distinguish the two.")
    assert findings.paired_difference("a", "b", "nats", 0.2, 0.1, 0.3, 16).endswith("+0.300, n = 16).")
    assert "cannot" in findings.paired_difference("a", "b", "nats", 0.2, float("nan"), float("nan"), 1)


# --- Functions that shape records into tables, figures and sentences: prompts, masks, attention, positions
def mass_of(tokens: list[list[list[float]]], blocks: torch.Tensor | None = None) -> AttentionMass:
    kv = KV([torch.zeros(1, 12, 4)], [torch.zeros(1, 12, 4)], 0)
    blocks = torch.zeros(1, 1, 3, 3) if blocks is None else blocks
    return AttentionMass(torch.tensor(tokens), blocks, torch.zeros(5), kv)


def test_masks_are_compared_on_one_prompt_and_cached_rows_are_pale():
    rules = {"Full attention": causal, "Reuse": block_attention(PROMPT)}
    fig = masks.compare_masks(rules, view_of(), cached=["Reuse"], own="window(3)")
    full, reuse = fig.data[1], fig.data[3]
    assert full.z[4, 4] == 1 and reuse.z[4, 4] == 1 + 3, "a passage's own colour, then its pale one"
    assert reuse.z[11, 4] == 1, "the question is computed"


def test_pairs_are_counted_over_the_rows_that_a_request_computes():
    rules = {"Full attention": causal, "Cached blocks (pale)": block_attention(PROMPT)}
    full, reuse = masks.count_pairs(rules, PROMPT, cached=["Cached blocks (pale)"])
    assert full == {"mask": "Full attention", "pairs": 78, "computed": 78, "causal": 78, "rows": 12, "length": 12}
    assert reuse["mask"] == "Cached blocks" and reuse["rows"] == 4
    assert reuse["pairs"] == 6 + 15 + 42 and reuse["computed"] == 9 + 10 + 11 + 12


def test_answers_under_masks_are_those_of_generation_and_the_first_rule_is_no_distance_away(loaded):
    model, tokenizer, layout = loaded
    view = prompt_view.of_text("Ada lives in Wilby.\n\nBen is a potter.", "Where is Ada?", tokenizer, layout)
    rules = {"full": causal, "block": block_attention(view.prompt)}
    found = {name: attention_mass.measure_masked(model, view.prompt, rule) for name, rule in rules.items()}
    records = attention_mass.answers_under(loaded, view, rules, found, 4)
    (full,) = generate(model, tokenizer, [view.prompt], "full", max_new_tokens=4, stop=layout.stop)
    (block,) = generate(model, tokenizer, [view.prompt], "block", max_new_tokens=4, stop=layout.stop)
    assert [r["answer"] for r in records] == [full.text.strip(), block.text.strip()]
    assert records[0]["kl"] == 0 < records[1]["kl"]
    assert [r["right"] for r in records] == [None, None]


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
    assert attention_mass.most_changed({"full": full, "block": full, "naive": naive}, wanted) == (0, 1)


def test_angles_are_turned_by_distance_and_speed():
    speeds, place = np.array([1.0, 0.1]), np.ones((3, 2, 2))
    rotated = position_encoding.KeyRotation((0, 7), speeds, np.ones((2, 2)), (0, 16, 64), place)
    angles = position_encoding.angles(rotated)
    assert angles[3] == {"distance": 16, "pair": 7, "turned_radians": pytest.approx(1.6)} and len(angles) == 6


def test_frequencies_fall_from_one_to_nearly_the_inverse_of_the_base():
    frequencies = position_encoding.rope_frequencies(1e4, 4)
    assert frequencies.dtype == torch.float64
    assert frequencies.tolist() == pytest.approx([1.0, 1e-2])


# --- Figures as files: PNG and SVG drawn by Chromium, HTML that stands alone
RECORD = {"step": 0, "label": "", "tokens": 9, "after_prefix": 5, "computed": 1}
RECORD |= {"ttft_full": 1.0, "ttft_anew": 1.0, "ttft": 0.5}


@pytest.fixture
def figure() -> go.Figure:
    return turnover([RECORD] * 2, unit="frame", title="T", caption="</script><b>", notice="n")


def test_a_page_stands_alone_and_follows_the_theme(figure, tmp_path):
    text = write_figure(figure, tmp_path / "f.html").read_text()
    assert text.count("</script>") == 2 and "prefers-color-scheme: dark" in text and 'data-theme=""' in text
    assert "src=" not in text.split("<script>")[0] and len(text) < 8_000_000
    assert 'data-theme="dark"' in write_figure(figure, tmp_path / "d.html", dark=True).read_text()


@pytest.mark.parametrize("name, problem", [("f.gif", "png, svg, pdf"), ("f", "nothing"), ("no/f.html", "is no folder")])
def test_another_file_is_refused(figure, tmp_path, name, problem):
    refused(problem, write_figure, figure, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_data_of_a_figure_is_read_back_from_csv_and_set_as_latex(figure, tmp_path):
    read = pd.read_csv(write_figure(figure, tmp_path / "f.csv"))
    points = figure_data(figure)
    assert len(read) == len(points) > 0 and read.y.tolist() == points.y.tolist()
    assert r"\toprule" in write_figure(figure, tmp_path / "f.tex").read_text()


def test_error_bars_are_the_ends_of_intervals_and_a_table_is_its_cells():
    bars = go.Figure(go.Scatter(x=["a"], y=[0.5], error_y={"array": [0.2], "arrayminus": [0.1]}, name="n"))
    assert figure_data(bars).to_dict("records") == [{"trace": "n", "x": "a", "y": 0.5, "low": 0.4, "high": 0.7}]
    table = go.Figure(go.Table(header={"values": ["a", "b"]}, cells={"values": [["1", "2"], ["<b>3</b>", "4"]]}))
    assert figure_data(table).to_dict("list") == {"a": ["1", "2"], "b": ["3", "4"]}
    dots = pd.DataFrame({"name": [*"abab"], "of": [*"kkll"], "measure": [*"mmnn"], "value": range(4), "source": "s"})
    one = figure_data(chart.dot_plot(dots, y="name", by="of", title="t"))
    assert [*zip(one.trace, one.y, one.x, strict=True)] == [("k", "a", 0), ("k", "b", 1), ("l", "a", 2), ("l", "b", 3)]
    two = figure_data(chart.dot_plot(dots, y="name", panel="measure", title="t"))
    assert [*zip(two.panel, two.y, strict=True)] == [("m", "a"), ("m", "b"), ("n", "a"), ("n", "b")]


def test_without_chromium_a_page_is_named_instead(figure, tmp_path, monkeypatch):
    monkeypatch.setattr(figure_files, "chromium", lambda: None)
    refused("install chromium", write_figure, figure, tmp_path / "f.png")


@pytest.mark.browser
def test_png_svg_and_pdf_are_drawn(figure, tmp_path):
    if chromium() is None:
        pytest.skip("there is no Chromium on this machine")
    png = write_figure(figure, tmp_path / "f.png").read_bytes()
    assert struct.unpack(">II", png[16:24]) == (figure.layout.width, figure.layout.height)
    assert write_figure(figure, tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    svg = write_figure(figure, tmp_path / "f.svg", dark=True).read_text()
    assert ET.fromstring(svg).tag.endswith("svg") and TURNED in svg


# --- Colours are told apart by people with the common colour-vision deficiencies, on light pages and on dark ones
DEFICIENCIES = (None, "deuteranomaly", "protanomaly", "tritanomaly")
GROUPS = {
    "modes": styles.MODES,
    "selectors": styles.SELECTORS,
    "sparse methods": styles.SPARSE_METHODS,
    "baselines": styles.BASELINES,
    "reuse": styles.REUSE_STATUSES,
    "schemes": styles.SCHEMES,
}
# Advances in thousandths of an em, None where a font lacks a letter; of Arial those of Liberation Sans, its equal.
WIDTHS = json.loads((Path(__file__).parent / "letter_widths.json").read_text())
APART = 8  # CAM02-UCS; 1 is about what can just be seen side by side
HUE = np.array([[-0.574, 1.43, 0.144], [0.426, 0.43, 0.144], [0.426, 1.43, -0.856]])  # hue-rotate(180deg)


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def turned(colour: np.ndarray) -> np.ndarray:
    """What the filter of a dark page makes of a colour."""
    amount, degrees, brighter = (float(part) for part in re.findall(r"\(([\d.]+)", theme.TURNED))
    assert degrees == 180
    inverted = colour * (1 - 2 * amount) + amount
    return np.clip(brighter * np.clip(HUE @ inverted, 0, 1), 0, 1)


def seen(colour: np.ndarray, deficiency: str | None) -> np.ndarray:
    """A colour as someone with a deficiency sees it, in a space whose distances are alike."""
    if deficiency is None:
        return cspace_convert(colour, "sRGB1", "CAM02-UCS")
    eye = {"name": "sRGB1+CVD", "cvd_type": deficiency, "severity": 90}
    return cspace_convert(np.clip(cspace_convert(colour, eye, "sRGB1"), 0, 1), "sRGB1", "CAM02-UCS")


def alike(one: SeriesStyle, other: SeriesStyle, dark: bool, deficiency: str | None) -> bool:
    pair = [turned(rgb(look.colour)) if dark else rgb(look.colour) for look in (one, other)]
    first, second = (seen(colour, deficiency) for colour in pair)
    return bool(np.linalg.norm(first - second) < APART)


def luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(colour: np.ndarray, paper: np.ndarray) -> float:
    high, low = sorted((luminance(colour), luminance(paper)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("group", GROUPS)
def test_names_of_one_figure_differ_in_colour_or_in_shape(group, dark):
    confused = [
        (one, other, deficiency)
        for (one, a), (other, b) in combinations(GROUPS[group].items(), 2)
        for deficiency in DEFICIENCIES
        if (a.symbol, a.dash) == (b.symbol, b.dash) and alike(a, b, dark, deficiency)
    ]
    assert confused == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_neighbouring_blocks_differ_in_colour_and_texts_stand_out(dark):
    cycle = [*theme.BLOCKS, theme.BLOCKS[0]]
    for deficiency in DEFICIENCIES:
        for one, other in pairwise(cycle):
            assert not alike(SeriesStyle(one), SeriesStyle(other), dark, deficiency), (one, other, deficiency)
    paper, *inks = (turned(rgb(c)) if dark else rgb(c) for c in (theme.PAPER, theme.INK, theme.MUTED))
    assert [contrast(ink, paper) >= 4.5 for ink in inks] == [True, True]
    assert (luminance(paper) < 0.02) is dark


def test_variants_of_one_method_have_lines_of_their_own():
    specs = ["query_guided", "query_guided(layers=all)", "query_guided(softmax=joint)", "kv_deviation"]
    looks = styles.family_looks((spec, styles.SELECTORS.of(spec)) for spec in specs).values()
    ways = [(look.colour, look.symbol, look.dash) for look in looks]
    assert len({*ways}) == 4 and ways[0] == (theme.BLUE, "square", "solid")
    assert len({way[1:] for way in ways[:3]}) == 3, "told apart without colour"
    assert [colour == theme.RED for colour, *_ in ways] == [False, False, False, True]


@given(st.lists(st.sampled_from(sorted(styles.VARIANTS)), unique=True), st.permutations(sorted(styles.VARIANTS)))
def test_a_known_variant_has_one_style_whatever_else_a_figure_shows(some, order):
    def drawn(specs):
        return styles.family_looks((spec, styles.SELECTORS.of(spec)) for spec in specs)

    every = drawn([*order, "query_guided", "kv_deviation", "first_k"])
    assert len({(look.colour, look.symbol, look.dash) for look in every.values()}) == len(every)
    assert drawn(["query_guided(softmax=joint)", *some]).items() >= {spec: every[spec] for spec in some}.items()


@pytest.mark.parametrize(
    "text", ["<b>x</b>", '<a href="javascript:alert(1)">x</a>', "<img src=x onerror=alert(1)>", "a<b"]
)
def test_markup_of_users_stays_text(text):
    assert "<" not in theme.plain(text) and "<" not in theme.escape_text(text)
    assert theme.plain("10<sup>3</sup><br>y") == "10<sup>3</sup><br>y"
    assert theme.escape_text("&lt;") == "&amp;lt;"


SAID = {"title": "T", "notice": "n", "caption": "c"}


def test_a_long_text_of_a_table_goes_on_in_further_lines_which_have_room():
    names = [f"question-guided (FusionRAG): {option}, of all layers" for option in ("layers=all", "tokens=last")]
    rows = [[name, *["1.00 (0.95 to 1.00)"] * 4] for name in names]
    tall, wide = table(["name", *"abcd"], rows, **SAID), table(["name", "a"], [row[:2] for row in rows], **SAID)
    lines = [text.split("<br>") for text in tall.data[0].cells.values[0]]
    assert [" ".join(each) for each in lines] == names and [len(each) for each in lines] == [2, 2]
    assert list(wide.data[0].cells.values[0]) == names
    assert tall.layout.height - wide.layout.height == pytest.approx(2 * SECOND, abs=1)


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.text("aW i", max_size=60), min_size=4, max_size=4), min_size=1, max_size=4),
    st.lists(st.floats(0.1, 9), min_size=4, max_size=4),
    st.integers(1, 4),
)
def test_columns_fill_a_table_and_no_line_is_wider_than_its_column(rows, widths, words):
    drawn = table(["a", "b", "c", "d"], rows, widths=widths, words=words, **SAID).data[0]
    assert sum(drawn.columnwidth) == pytest.approx(ROOM)
    texts = zip(drawn.columnwidth[:words], drawn.cells.values[:words], strict=True)
    assert all(drawn_width(line) <= px - 16 for px, column in texts for text in column for line in text.split("<br>"))


@pytest.mark.parametrize("bold", [False, True], ids=["regular", "bold"])
@pytest.mark.parametrize("font", WIDTHS["widths"])
def test_no_letter_is_wider_than_it_is_taken_for(font, bold):
    advances = WIDTHS["widths"][font]["bold" if bold else "regular"]
    taken = [drawn_width(letter, 1000, bold) for letter in WIDTHS["letters"]]
    there = [(x, px, most) for x, px, most in zip(WIDTHS["letters"], advances, taken, strict=True) if px is not None]
    assert [x for x, px, most in there if px > most + 80] == []
    assert sum(px for _, px, _ in there) <= sum(most for _, _, most in there)


def test_numbers_of_a_table_have_room():
    score = "100.0% (98%–100%)"
    fig = table(["name", *"abcde"], [["x", *[score] * 5]], widths=[9, 1, 1, 1, 1, 1], **SAID)
    assert min(fig.data[0].columnwidth[1:]) > 7 * len(score)


def test_a_legend_and_titles_of_panels_fit_the_figure():
    names = [f"question-guided (FusionRAG): option {number}" for number in range(9)]
    assert theme.legend_lines(names[:2]) == 1 and theme.legend_lines(names) == 3
    lines = [Series(name, [0, 1], [0, 1]) for name in names]
    one, nine = (line_chart([Panel("", lines[:count])], **SAID).layout.margin.t for count in (1, 9))
    assert nine > one + 40, "the legend stands over the plot, below the notice"
    wide = line_chart([Panel("order, n = 273 (full attention 100%)", lines[:1])] * 3, **SAID)
    assert wide.layout.annotations[0].font.size < 13
