"""Colours are told apart by people with the common colour-vision deficiencies, on light pages and on dark ones."""

import json
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from colorspacious import cspace_convert
from hypothesis import given
from hypothesis import strategies as st
from plotly.graph_objects import Figure

from workbench.plots.marks import line_styles, styles, theme
from workbench.plots.marks.lines import Panel, Series, line_chart
from workbench.plots.marks.styles import Look
from workbench.plots.marks.table import ROOM, SECOND, drawn_width, table

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
    amount, degrees = theme.TURNED
    assert degrees == 180
    inverted = colour * (1 - 2 * amount) + amount
    return np.clip(HUE @ inverted, 0, 1)


def seen(colour: np.ndarray, deficiency: str | None) -> np.ndarray:
    """A colour as someone with a deficiency sees it, in a space whose distances are alike."""
    if deficiency is None:
        return cspace_convert(colour, "sRGB1", "CAM02-UCS")
    eye = {"name": "sRGB1+CVD", "cvd_type": deficiency, "severity": 90}
    return cspace_convert(np.clip(cspace_convert(colour, eye, "sRGB1"), 0, 1), "sRGB1", "CAM02-UCS")


def alike(one: Look, other: Look, dark: bool, deficiency: str | None) -> bool:
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
def test_neighbouring_blocks_differ_in_colour(dark):
    cycle = [*theme.BLOCKS, theme.BLOCKS[0]]
    for deficiency in DEFICIENCIES:
        for one, other in pairwise(cycle):
            assert not alike(Look(one), Look(other), dark, deficiency), (one, other, deficiency)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_stand_out_from_the_paper(dark):
    paper, *inks = (turned(rgb(c)) if dark else rgb(c) for c in (theme.PAPER, theme.INK, theme.MUTED))
    assert [contrast(ink, paper) >= 4.5 for ink in inks] == [True, True]
    assert (luminance(paper) < 0.02) is dark


def test_variants_of_one_method_have_lines_of_their_own():
    specs = ["query_guided", "query_guided(layers=all)", "query_guided(softmax=joint)", "kv_deviation"]
    drawn = line_styles.selector_looks(specs)
    ways = list(zip(*(drawn[way].values() for way in ("colours", "symbols", "dashes")), strict=True))
    assert len({*ways}) == 4 and ways[0] == (theme.BLUE, "square", "solid")
    assert len({way[1:] for way in ways[:3]}) == 3, "told apart without colour"
    assert [colour == theme.RED for colour, *_ in ways] == [False, False, False, True]


@pytest.mark.parametrize(
    "text", ["<b>x</b>", '<a href="javascript:alert(1)">x</a>', "<img src=x onerror=alert(1)>", "a<b"]
)
def test_markup_of_users_stays_text(text):
    assert "<" not in theme.plain(text) and "<" not in theme.escaped(text)
    assert theme.plain("10<sup>3</sup><br>y") == "10<sup>3</sup><br>y"
    assert theme.escaped("&lt;") == "&amp;lt;"


SAID = {"title": "T", "notice": "n", "caption": "c"}


def test_a_long_text_of_a_table_goes_on_in_further_lines_which_have_room():
    names = [f"question-guided (FusionRAG): {option}, of all layers" for option in ("layers=all", "tokens=last")]
    rows = [[name, *["1.00 (0.95 to 1.00)"] * 4] for name in names]
    tall, wide = table(["name", *"abcd"], rows, **SAID), table(["name", "a"], [row[:2] for row in rows], **SAID)
    lines = [text.split("<br>") for text in tall.data[0].cells.values[0]]
    assert [" ".join(each) for each in lines] == names and [len(each) for each in lines] == [2, 2]
    assert list(wide.data[0].cells.values[0]) == names
    assert tall.layout.height - wide.layout.height == pytest.approx(2 * SECOND, abs=1)


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


@pytest.mark.parametrize("notice", ["It holds", "It holds.", "Does it?"])
def test_what_to_notice_ends_in_a_full_stop(notice):
    fig = theme.finish(Figure(), title="T", notice=notice, caption="c", height=100)
    assert fig.layout.annotations[1].text == notice.removesuffix(".") + "." * (not notice.endswith("?"))


def test_a_legend_and_titles_of_panels_fit_the_figure():
    names = [f"question-guided (FusionRAG): option {number}" for number in range(9)]
    assert theme.legend_lines(names[:2]) == 1 and theme.legend_lines(names) == 3
    lines = [Series(name, [0, 1], [0, 1]) for name in names]
    one, nine = (line_chart([Panel("", lines[:count])], **SAID).layout.margin.t for count in (1, 9))
    assert nine > one + 40, "the legend stands over the plot, below the notice"
    wide = line_chart([Panel("order, n = 273 (full attention 100%)", lines[:1])] * 3, **SAID)
    assert wide.layout.annotations[0].font.size < 13
