"""Markup of strangers stays text: in the figures of a page, in its index and in names; no code or pickle is run."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from tests.refusals import refused
from workbench.app.reports import html, report
from workbench.app.reports import index as report_index
from workbench.plots.marks.pages import inert
from workbench.plots.marks.table import table

ROOT = Path(__file__).parents[1]
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    '<a href="JaVaScRiPt:alert(1)" target="_blank">x</a>',
    "<span style='background:url(http://a.example/x)'>x</span>",
    '<b style="background:url(//a.example/x)">x</b>',
    "<svg onload=alert(1)>",
    "<iframe src=http://a.example>",
    "<!--<script>",
    "</script><script>alert(1)</script>",
    "<b onmouseover=alert(1)>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_tag_that_links_loads_or_runs_is_text_in_a_figure(text):
    made = inert({"data": [{"text": [text, 1], "hovertemplate": f"<b>{text}</b><extra></extra>"}]})["data"][0]
    assert not re.search(r"<(?!/?b>|/?extra>)[a-zA-Z/!]", made["text"][0] + made["hovertemplate"])
    assert made["text"][0].replace("&lt;", "<") == text and made["text"][1] == 1


@pytest.mark.parametrize("text", ["<b>a</b><br>", "10<sup>3</sup>", "a < b", "%{y}<extra></extra>", "<|user|>", "x<y"])
def test_what_figures_are_written_with_is_left(text):
    assert inert([text]) == [text.replace("x<y", "x&lt;y")]


def test_a_page_holds_no_hostile_tag_of_a_figure(tmp_path):
    figure = {"data": [{"type": "scatter", "text": HOSTILE}], "layout": {"title": {"text": HOSTILE[0]}}}
    output = nbformat.v4.new_output("display_data", {html.PLOTLY: figure})
    cell = nbformat.v4.new_code_cell("1", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "a.ipynb")
    html.notebook_page(tmp_path / "a.ipynb", tmp_path / "a.html")
    script = (tmp_path / "a.html").read_text().rpartition("workbench.draw(")[2].partition("</script>")[0]
    assert "&lt;script>" in script and "<script" not in script
    assert not re.search(r"<(?:img|a|span|svg|iframe|!--)", script)


def test_an_index_shows_markup_of_titles_messages_and_metrics_as_text(tmp_path):
    (tmp_path / "a").mkdir()
    said = " ".join(HOSTILE)
    card = report_index.card(tmp_path / "a", said, "failed", 1.0, said, {said: {said: 1}})
    page = report_index.page([(said, said)], [report_index.Group([card], said, said)])
    plain = report_index.card(tmp_path / "a", "", "failed", 1.0, "", {})
    clean = report_index.page([("", "")], [report_index.Group([plain])])
    for tag in ("<script", "<img", "<a ", "<svg", "<iframe", "<b "):
        assert page.count(tag) == clean.count(tag) or "alert(1)" not in "".join(
            piece.partition(">")[0] for piece in page.split(tag)[1:]
        )


NAMES = ["javascript:alert(1)", "<img src=x onerror=alert(1)>", "a'b", 'a"b', "..", "-x", "a\nb", "%2e%2e"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_whose_name_is_no_plain_address_is_refused(name, tmp_path):
    path = tmp_path / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), path)
    refused("the name of a notebook", report.run, [path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_jupyterlab_listens_on_loopback_and_asks_for_its_token():
    lines = (ROOT / "Makefile").read_text().replace("\\\n", "").splitlines()
    (line,) = (line for line in lines if "jupyter lab" in line)
    assert "--LabApp.news_url= " in line and "NeverCheckForUpdate" in line
    assert "--ServerApp.ip=127.0.0.1" in line and "allow_remote_access=False" in line
    assert "token=" not in line and "password=" not in line


def test_nothing_is_unpickled_and_no_code_of_a_checkpoint_is_trusted():
    sources = {path: path.read_text() for path in (ROOT / "workbench").rglob("*.py")}
    for path, source in sources.items():
        assert not re.search(
            r"^\s*(?:import|from) (?:pickle|dill|cloudpickle|joblib|marshal|shelve)\b", source, re.M
        ), path
        assert not re.search(
            r"torch\.load\(|allow_pickle\s*=\s*True|trust_remote_code\s*=\s*True|yaml\.load\(", source
        ), path
        assert "weights_only=False" not in source, path


def test_texts_and_tables_of_figures_are_written_without_hostile_tags():
    hostile = HOSTILE[0]
    drawn = table([hostile], [[hostile]], title=hostile, notice=hostile, caption=hostile)
    written = html.drawn(json.loads(drawn.to_json()), "figure-1-0")
    assert written.startswith("<figure") and "<table" in written and written.count("&lt;") >= 5
    own = {*"<figure <h3 <p <div <table <thead <tbody <tr <th <td".split()}
    assert {*re.findall(r"<[a-z0-9]+", written)} <= own
