"""The index in a real browser: pictures are drawn from plotly's JSON, search works, and nothing runs or leaves.
Tables there: no row is cut, no space is left."""

import json
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest
from test_report import STRANGE, card, executed

from workbench.app.reports import html, thumbnail
from workbench.app.reports import index as report_index
from workbench.app.reports.figure_files import page_of
from workbench.plots.marks import chart
from workbench.plots.marks.table import table
from workbench.plots.marks.theme import PAGE_STYLE

pytestmark = pytest.mark.browser
DRAWN = "() => [...document.querySelectorAll('[data-picture]')].every(place => place.dataset.drawn)"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    cards = [card(out, "01_first#", title="Masks"), card(out, "02_second", title=STRANGE, metrics={"found": STRANGE})]
    for name, output in [("03_text", {"text/plain": STRANGE}), ("04_none", {"text/html": "<b>1</b>"})]:
        path = executed(out / name, output)
        thumbnail.write(path, path.parent)
        cards.append(report_index.card(path.parent, name, "ok", 1.0, "", {}))
    (out / report_index.PLOTLY_FILE).write_text(html.get_plotlyjs())
    (out / "index.html").write_text(report_index.page([("notebooks", "4")], [report_index.Group(cards)]))
    return out / "index.html"


def test_pictures_are_drawn_and_search_finds_entries(lab, index):
    with lab.page(index) as reader:
        page = reader.page
        page.wait_for_function(DRAWN)
        assert [page.locator(".picture").nth(n).locator("img").count() for n in range(4)] == [1, 1, 0, 0]
        assert page.locator(".picture img").first.get_attribute("src").startswith("data:image/svg")
        assert page.locator(".picture").nth(2).inner_text() == STRANGE[: thumbnail.COLUMNS]
        assert page.locator("h2").nth(1).inner_text() == STRANGE
        page.locator("#search").fill("masks")
        assert page.locator("article:visible").count() == 1
        assert page.locator("#count").inner_text() == "1 of 4"
        page.locator("#search").fill("")
        assert page.locator("article:visible").count() == 4
        assert (reader.left_the_machine, reader.problems) == ([], [])


def test_pictures_follow_light_and_dark(lab, index):
    with lab.page(index) as reader:
        reader.page.wait_for_function(DRAWN)
        reader.page.emulate_media(color_scheme="dark")
        reader.page.wait_for_function("() => document.querySelector('[data-picture]').dataset.drawn === 'dark'")
        assert reader.problems == []


FAULTS = (Path(__file__).parent / "figure_faults.js").read_text()
SPARE = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => {
  const top = plot.getBoundingClientRect().top, cells = [...plot.querySelectorAll('.column-cell rect')];
  const below = Math.max(...cells.map(node => node.getBoundingClientRect().bottom));
  return top + plot._fullLayout.height - plot._fullLayout.margin.b - below; })"""
MORE = "Plotly.newPlot(document.body.appendChild(document.createElement('div')), {});"
SCALE = """() => { const plot = document.querySelector('.js-plotly-plot');
  return plot.getBoundingClientRect().width / plot.offsetWidth; }"""
BEYOND = """() => [...document.querySelectorAll('.column-cell')].filter(node => node.textContent).map(node =>
  node.querySelector('.cell-text').getBoundingClientRect().right
    - node.querySelector('.cell-rect').getBoundingClientRect().right)"""
SETTING = "bfla(block=64 flat=16 local=4 mass=0.99 stride=16 threshold=0.5), of every layer and head"


def test_a_table_whose_cells_wrap_is_neither_cut_nor_followed_by_empty_space(lab, tmp_path):
    figures = [
        table(
            ["setting", *["exact match (n = 694)"] * columns],
            [[SETTING[: 30 * (1 + at % 3)], *[cell] * columns] for at in range(12)],
            **{"title": "T", "notice": "n", "caption": "c"},
        )
        for columns in (2, 5, 7)
        for cell in ("98% (96%–99%)", "100.0% (98.2%–100.0%)")
    ]
    more = "".join(MORE.format(figure.to_json()) for figure in figures[1:])
    page = tmp_path / "tables.html"
    page.write_text(page_of(figures[0]).replace("</script></body>", f"{more}</script></body>"))
    with lab.page(page) as reader:
        reader.page.wait_for_function(f"() => ({SPARE})().filter(isFinite).length === {len(figures)}")
        assert [fault for fault in reader.page.evaluate(FAULTS) if fault[2] != "cells shortened"] == []
        assert all(0 <= px <= 12 for px in reader.page.evaluate(SPARE))


def test_headings_stay_in_their_cells_where_a_page_is_narrow(lab, tmp_path):
    heads = ["method", "likelihood lost", "tokens that agree", "time to first token (ms)"]
    texts = {"title": "T", "notice": "n.", "caption": "c"}
    page = tmp_path / "narrow.html"
    drawn = page_of(table(heads, [["block", "0.59", "0.91", "13.4"]], **texts))
    around = f"<style>{PAGE_STYLE}</style><body class=jp-OutputArea>"
    page.write_text(f"<!DOCTYPE html>{drawn.replace('<body>', around)}")
    with lab.page(page) as reader:
        reader.page.set_viewport_size({"width": 700, "height": 600})
        reader.page.reload()
        reader.page.wait_for_selector(".column-cell .cell-text")
        assert reader.page.evaluate(SCALE) < 0.9
        assert [px for px in reader.page.evaluate(BEYOND) if px > 0] == []


LETTERS = (
    "[...document.querySelectorAll('.js-plotly-plot text')].filter(node => node.getBoundingClientRect().width > 2)"
)
SMALL = f"""() => {LETTERS}.flatMap(node => [node, ...node.querySelectorAll('tspan')])
  .map(node => [parseFloat(getComputedStyle(node).fontSize), node.textContent]).filter(([size]) => size < 11)"""
CUT = f"() => {LETTERS}.some(node => node.textContent.includes('…'))"
LONG = "a name of more than forty letters, of a row"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", [1280, 800, 390])
def test_letters_of_figures_have_11_px_at_least(lab, tmp_path, scheme, wide):
    rows = [{"name": f"{LONG} {at}", "value": at, "panel": f"independent blocks, panel {at}"} for at in range(4)]
    values = chart.measured_rows({**row, "low": 0, "high": 5} for row in rows)
    panels = chart.lines(
        values.assign(x=1), x="x", by="name", panel="panel", x_axis="tokens of the longest prompt", title="T"
    )
    dots = chart.dot_plot(values, y="name", axis="an axis with a long title, nats", title="T")
    text = go.Figure(go.Scatter(x=[0], y=[0], text=["text"], mode="text", textfont={"family": "mono", "size": 12.5}))
    steps = [
        {"label": "threshold 0.95: this head keeps a fifth of all pairs, of which most are near", "method": "skip"}
    ]
    text.update_layout(sliders=[{"steps": steps}])
    show = [
        nbformat.v4.new_output("display_data", {html.PLOTLY: json.loads(figure.to_json())})
        for figure in (panels, dots, text)
    ]
    cells = [nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell("1", outputs=show)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "small.ipynb")
    html.notebook_page(tmp_path / "small.ipynb", tmp_path / "small.html")
    with lab.page(tmp_path / "small.html") as reader:
        reader.page.emulate_media(color_scheme=scheme)
        reader.page.set_viewport_size({"width": wide, "height": 800})
        reader.page.reload()
        assert reader.wait_for_figures() == 3
        assert reader.page.evaluate(SMALL) == []
        assert not reader.page.evaluate(CUT)
        assert reader.page.evaluate("() => document.documentElement.scrollWidth") <= wide
