"""Strangers' markup and data: markup stays text, no code or pickle is run; files end in one sentence or are read."""

import gzip
import json
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from tests.refusals import refused
from workbench import data
from workbench.app.console.sweep_report import show_sweep
from workbench.app.reports import html, report
from workbench.core.utils import json_text
from workbench.data import layouts
from workbench.data.layouts import LAB, Layout
from workbench.data.sources import files, folders
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
    assert "answer_yes=True" in line  # one Ctrl-C ends it
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


@pytest.mark.parametrize("columns", [80, 220])
def test_a_sweeps_table_prints_no_control_character_of_a_value(columns, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", str(columns))
    row = {"kind": "all", "select": "[red]\x1b[31mnone", "note": "", "n": 2, "rows_computed": 9.0, "ttft_p50": 0.01}
    show_sweep(pd.DataFrame([row | {"em": 0.5, "em_low": 0.4, "em_high": 0.6}]), ["select"], tmp_path)
    printed = capsys.readouterr().out
    assert "[red]" in printed and "none" in printed and "\x1b[31m" not in printed


def test_texts_and_tables_of_figures_are_written_without_hostile_tags():
    hostile = HOSTILE[0]
    drawn = table([hostile], [[hostile]], title=hostile, notice=hostile, caption=hostile)
    written = html.figure_html(json.loads(drawn.to_json()), "figure-1-0")
    assert written.startswith("<figure") and "<table" in written and written.count("&lt;") >= 5
    own = {*"<figure <h3 <p <div <table <thead <tbody <tr <th <td".split()}
    assert {*re.findall(r"<[a-z0-9]+", written)} <= own


# --- Data files, layouts and JSON from strangers end in one sentence, or are read as what they are
OURS = {"question": "q", "answers": ["a"], "ctxs": [{"title": "t", "text": "x"}]}
HOTPOT = {"question": "q", "answer": "a", "context": [["t", ["s"]]], "supporting_facts": [["t", 0]]}
KILT = {"input": "q", "output": [{"answer": "a", "provenance": [{"title": "t", "text": "x"}]}]}
MUSIQUE = {"id": "2hop__1", "question": "q", "answer": "a", "paragraphs": [{"title": "t", "paragraph_text": "x"}]}
INFINITY = float("inf")

WRONG = {
    "hops": (OURS, "hops", ["three", -1, 1.5, INFINITY, [2], {"a": 1}, True, 10**30]),
    "id": (OURS, "id", [{"a": 1}, [1]]),
    "kind": (OURS, "kind", [{"a": 1}, [1]]),
    "supporting_titles": (OURS, "supporting_titles", [5, 1.5, True, "abc", [[1]], [None], {"a": 1}]),
    "answers": (OURS, "answers", [5, "abc", [None], [{}], [[]], [""], [INFINITY]]),
    "ctxs": (OURS, "ctxs", [5, [5], [None], [{"text": 5}], [{"title": {"a": 1}, "text": "a"}], [["t", [1]]], [[]]]),
    "context": (HOTPOT, "context", [[5], [["t", 5]], {"title": 5, "sentences": 5}, {"title": ["t"], "sentences": []}]),
    "supporting_facts": (HOTPOT, "supporting_facts", [5, "abc", [5], [None], [[]], {"title": 5}, [{"a": 1}]]),
    "paragraphs": (MUSIQUE, "paragraphs", [[5], [{}], [{"title": [1], "paragraph_text": "x", "is_supporting": 1}]]),
    "answer_aliases": (MUSIQUE, "answer_aliases", [5, "abc", [None], {"a": 1}]),
    "output": (KILT, "output", [5, [5], ["a"], [{}], [{"answer": "a", "provenance": 5}]]),
    "provenance": (KILT, "output", [[{"answer": "a", "provenance": [bad]}] for bad in (5, "x", {"text": 5})]),
    "a KILT record's ctxs": (KILT, "ctxs", [5, "a", [5], {"a": 1}]),
}
CASES = [(record | {field: value}) for record, field, values in WRONG.values() for value in values]


@pytest.mark.parametrize("record", CASES, ids=[json.dumps(case)[:90] for case in CASES])
def test_a_field_of_a_wrong_type_is_named(record, tmp_path):
    (tmp_path / "r.jsonl").write_text(json.dumps(OURS) + "\n" + json.dumps(record))
    refused(r"r\.jsonl, line 2: (field|the question)", files.read_samples, tmp_path / "r.jsonl")


TEXTS = {
    "nested too deep": "[" * 100_000 + "]" * 100_000,
    "nested too deep inside": json.dumps(OURS)[:-1] + ', "x": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    "too many digits": json.dumps(OURS)[:-1] + ', "x": ' + "9" * 5000 + "}",
    "half a character": json.dumps(OURS | {"question": "\ud800"}),
    "'hops' is inf": json.dumps(OURS | {"hops": INFINITY}),
    "'hops' is nan": json.dumps(OURS | {"hops": float("nan")}),
}


@pytest.mark.parametrize("ending", ["json", "jsonl"])
@pytest.mark.parametrize("why", TEXTS)
def test_json_that_breaks_readers_is_refused(why, ending, tmp_path):
    (tmp_path / f"r.{ending}").write_text(TEXTS[why])
    refused(why.removesuffix(" inside"), files.read_samples, tmp_path / f"r.{ending}")


def test_a_whole_character_of_two_halves_is_read(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(OURS | {"question": "😀"}))
    assert files.read_samples(tmp_path / "r.json")[0].question == "😀"


def test_a_gzip_file_damaged_anywhere_is_refused(tmp_path):
    whole = gzip.compress(json.dumps([OURS] * 200).encode(), mtime=0)
    for i in range(10, len(whole) - 4):
        (tmp_path / "g.json.gz").write_bytes(whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :])
        refused(r"g\.json\.gz", files.read_samples, tmp_path / "g.json.gz")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".json", "x" * 5000 + ".txt", "a\0b.json", "a\ud800.json"])
def test_a_name_that_no_file_can_have_is_refused(name):
    for call in (data.load, data.corpus, layouts.known_layout, lambda text: folders.read_document(f"{text}.txt")):
        assert len(refused(".", call, name)) < 1000


FIELDS = ["{}", "{0}", "{nope}", "{title.__class__}", "{text.__class__.__mro__}", "{text[0]}", "{text!r}", "{text!s}"]
FIELDS += ["{question:>10}", "{answer:{title}}", "{", "}", "{ text }", "{__class__}"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("part", ["passage", "question", "answer"])
def test_a_field_of_a_template_that_is_not_plainly_one_of_its_own_is_refused(part, field):
    record = LAB.to_json()
    refused(f"layout template {part}", Layout.from_json, record | {part: record[part] + field})


def test_braces_that_are_doubled_are_text():
    assert "{x}" in Layout.from_json(LAB.to_json() | {"passage": "{text}{{x}}\n"}).passage.format(text="a")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"bos":' + "9" * 5000 + "}", '{"name": "\\ud800"}', "[]", "{"])
def test_a_broken_layout_file_is_one_sentence(text, tmp_path):
    (tmp_path / "layout.json").write_text(text)
    refused(r"layout file .*layout\.json", layouts.known_layout, str(tmp_path / "layout.json"))


def test_a_json_file_of_another_kind_names_what_is_needed(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    assert json_text.read_json(tmp_path / "a.json", list) == [1]
    refused(r"a\.json is corrupt: an object is needed, not list", json_text.read_json, tmp_path / "a.json")
    refused(r"b\.json is missing", json_text.read_json, tmp_path / "b.json")
