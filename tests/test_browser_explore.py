"""Linked explorers in a real JupyterLab under its dark theme."""

import nbformat
import pytest

pytestmark = pytest.mark.browser

CELLS = """from workbench import data, explore, models

loaded = models.load({folder!r})
sample = data.load("lab", 1, 0, 3)[0]
explore.tokens(loaded, sample)
---
explore.deviation(loaded, sample)"""
FILTER = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => getComputedStyle(plot).filter)"""
MARKS = """() => [...document.querySelectorAll('.js-plotly-plot')]
  .map(plot => (plot.layout.shapes || []).filter(shape => shape.name === 'selected token').length)"""
GONE = "() => getComputedStyle(document.querySelector('.wb-explorer'), '::before').content"
# Where the box of token 40 lies on the screen: the text is drawn as bars, each from its base on.
TOKEN = """() => { const plot = document.querySelectorAll('.js-plotly-plot')[0];
  const {xaxis: x, yaxis: y} = plot._fullLayout;
  plot.scrollIntoView({block: 'center'});
  const box = plot.getBoundingClientRect(), point = plot.calcdata[0][40];
  return [box.left + x._offset + x.c2p(point.b + point.s / 2), box.top + y._offset + y.c2p(point.p)]; }"""


def test_a_click_on_a_token_marks_it_in_every_explorer_and_figures_turn_dark(lab, folder, tmp_path):
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = nbformat.v4.new_notebook(metadata=kernel)
    book.cells = [nbformat.v4.new_code_cell(part) for part in CELLS.format(folder=str(folder)).split("\n---\n")]
    nbformat.write(book, path := tmp_path / "linked.ipynb")
    with lab.open(path) as reader:
        reader.run_all()
        assert reader.errors() == [] and reader.wait_for_figures(at_least=2) == 2
        assert reader.page.evaluate(MARKS) == [0, 0]
        reader.page.mouse.click(*reader.page.evaluate(TOKEN))
        reader.page.wait_for_function(f"() => ({MARKS})().every(count => count > 0)", timeout=10_000)
        assert reader.page.evaluate(FILTER) == ["none", "none"]
        reader.theme(dark=True)
        reader.page.wait_for_function(f"() => ({FILTER})().every(filter => filter.includes('invert'))", timeout=10_000)
        reader.theme(dark=False)
        assert reader.page.evaluate(GONE) == "none"
        reader.restart()
        reader.page.wait_for_function(f"() => ({GONE})() !== 'none'", timeout=10_000)
        assert reader.left_the_machine == []
