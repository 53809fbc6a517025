"""Every notebook as it ships in a real JupyterLab: no error, no blank or crowded figure, controls that move data, both
themes, no request to anywhere. It takes a quarter of an hour: `pytest -m weekly tests/test_browser_notebooks.py`."""

from pathlib import Path

import pytest
from short_runs import NOTEBOOKS

pytestmark = [pytest.mark.browser, pytest.mark.weekly, pytest.mark.timeout(1800)]

FAULTS = (Path(__file__).parent / "figure_faults.js").read_text()
RED = """() => [...document.querySelectorAll('[data-mime-type*=stderr]')].map(node => node.textContent.trim())
  .filter(text => text).map(text => text.slice(0, 300))"""  # bars of the tests' own kernels leave blanks
BLANK = """() => [...document.querySelectorAll('.js-plotly-plot')].filter(plot => !(plot.calcdata || []).some(
  trace => trace.some(point => point.trace?.type === 'table' || point.trace?.type === 'heatmap' || point.x !== undefined
    || point.r !== undefined || point.y !== undefined))).map(plot => plot.layout.annotations?.[0]?.text || '?')"""
DRAWN = """() => JSON.stringify([...document.querySelectorAll('.js-plotly-plot')].map(plot => [plot.data,
  plot.layout.title, plot.layout.shapes, plot.layout.annotations]).concat([...document.querySelectorAll(
  '.jp-OutputArea-output .widget-html-content, .wb-bill, .wb-first, .wb-text')].map(node => node.textContent)))"""
FILTERS = "() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => getComputedStyle(plot).filter)"
FILES = {"png", "svg", "html"}  # the menu of what a figure is saved as


def settled(reader, before, timeout_s=60):
    """Wait until something that is drawn has changed; whether it has."""
    for _ in range(timeout_s * 4):
        if reader.page.evaluate(DRAWN) != before:
            return True
        reader.page.wait_for_timeout(250)
    return False


def unmoved_sliders(reader):
    """Names of sliders that change nothing, in either direction."""
    still = []
    for number in range(reader.page.locator(".widget-slider").count()):
        row = reader.page.locator(".widget-slider").nth(number)
        handle = row.locator(".noUi-handle").first
        low, high = (handle.get_attribute(f"aria-value{end}") for end in ("min", "max"))
        if low == high:
            continue
        handle.scroll_into_view_if_needed()
        moved = False
        for key in ("ArrowRight", "ArrowLeft"):
            before = reader.page.evaluate(DRAWN)
            handle.focus()
            for _ in range(3):
                reader.page.keyboard.press(key)
            moved = moved or settled(reader, before, 30)
            if moved:
                break
        if not moved:
            still.append(row.text_content())
    return still


def unmoved_menus(reader):
    """Names of menus whose other choices change nothing."""
    still = []
    for row in reader.page.locator(".widget-dropdown").all():
        select = row.locator("select")
        options = [text.strip() for text in select.locator("option").all_text_contents()]
        if len(options) < 2 or FILES & set(options):
            continue
        chosen = select.evaluate("node => node.selectedIndex")
        moved = False
        for index in [at for at in range(len(options)) if at != chosen][:3]:
            before = reader.page.evaluate(DRAWN)
            select.select_option(index=index)
            moved = moved or settled(reader, before, 30)
            if moved:
                break
        if not moved:
            still.append(options)
    return still


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_whole_in_jupyterlab(lab, path, request):
    if path.stem.startswith("12"):
        request.getfixturevalue("smollm2")
    with lab.open(path) as reader:
        page = reader.page
        reader.run_all(timeout_s=900)
        assert (reader.errors(), page.evaluate(RED)) == ([], [])
        figures = reader.wait_for_figures(at_least=1) if path.stem[:2] != "00" else 0
        assert figures or page.locator(".wb-prompt").count() == 1
        page.wait_for_function(f"() => ({BLANK})().length === 0", timeout=30_000)
        faults = [fault for fault in page.evaluate(FAULTS) if fault[2] != "cells shortened"]
        assert (unmoved_sliders(reader), unmoved_menus(reader)) == ([], [])
        assert reader.errors() == []
        light = page.evaluate(FILTERS)
        reader.theme(dark=True)
        page.wait_for_function(f"() => ({FILTERS})().every(filter => filter.includes('invert'))", timeout=10_000)
        reader.theme(dark=False)
        assert set(light) <= {"none"}
        assert (reader.left_the_machine, reader.problems) == ([], [])
        assert faults == []
