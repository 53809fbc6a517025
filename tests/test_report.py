"""A report keeps going on failure, shows it, and never passes a partial run off as complete; its index names all."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import report_notebooks as tiny
import typer
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from plotly.graph_objects import Figure, Heatmap
from typer.testing import CliRunner

from tests.refusals import refused
from workbench.app.commands.report import _listed as notebooks_of
from workbench.app.commands.report import command as report_command
from workbench.app.console.options import parse
from workbench.app.notebooks.run import NotebookTask
from workbench.app.reports import html, real_pages, report, thumbnail
from workbench.app.reports import index as report_index
from workbench.data.assets import ROOT
from workbench.plots.marks.theme import finish
from workbench.results import Writer

IMPORTED = """import sys

imported = sorted({"nbformat", "jsonschema", "rfc3987_syntax"} & set(sys.modules))"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, forked_workers):
    """One good notebook, one that fails, one that saves nothing, one whose process dies; run once for all tests."""
    folder = tmp_path_factory.mktemp("notebooks")
    save = tiny.SAVE.replace('"live"', '"imported": imported, "live"')
    good = tiny.write(folder, "01_good", tiny.FIGURE, IMPORTED, save, title="Points & <curves>")
    failing = tiny.write(folder, "02_failing", tiny.FIGURE, tiny.SAVE, "1 / 0")
    silent = tiny.write(folder, "03_silent", tiny.FIGURE)
    killed = tiny.write(folder, "04_killed", "import os; os.kill(int(os.environ['JPY_PARENT_PID']), 9)")
    return report.run([good, failing, silent, killed], folder / "report", {"points": 7}, jobs=2)


def test_every_notebook_is_run_failures_are_told_and_only_the_complete_run_has_success(finished):
    assert [run.ok for run in finished.runs] == [True, False, False, False]
    assert not finished.ok
    assert finished.runs[1].message == "ZeroDivisionError: division by zero"
    assert "metrics.json was not written" in finished.runs[2].message
    assert finished.runs[3].message.startswith("its process ended with exit code -9")
    out = finished.index.parent
    assert [path.parent.name for path in out.glob("*/_SUCCESS")] == ["01_good"]
    assert len(list(out.glob("*/*.html"))) == len(list(out.glob("*/picture.js"))) == 3


def test_results_are_those_of_the_given_parameters_and_the_kernel_built_no_grammars(finished):
    good = finished.index.parent / "01_good"
    metrics = json.loads((good / "metrics.json").read_text())["here"]
    assert (metrics["points"], metrics["live"]) == (7, False)
    assert pd.read_parquet(good / "curve.parquet").y.tolist() == [i * i for i in range(7)]
    assert finished.runs[0].metrics["here"]["imported"] == ["jsonschema", "nbformat"]


def test_index_shows_titles_statuses_metrics_and_reasons(finished):
    index = finished.index.read_text()
    assert "Points &amp; &lt;curves&gt;" in index
    assert "4, 3 failed, in" in index
    assert "ZeroDivisionError: division by zero" in index
    assert "<td>points (here)</td><td>7</td>" in index
    assert '<a href="01_good/curve.parquet">curve.parquet</a>' in index
    assert (finished.index.parent / "plotly.min.js").read_text() == html.get_plotlyjs()
    assert "01_good/01_good.html" in index and 'data-picture="01_good/picture.js"' in index


def test_notebook_stores_a_figure_once_and_no_widget_state(finished):
    executed = nbformat.read(finished.index.parent / "01_good" / "01_good.ipynb", as_version=4)
    kinds = [set(output.data) for cell in executed.cells for output in cell.get("outputs", []) if "data" in output]
    assert {html.PLOTLY} in [kind - {"text/plain"} for kind in kinds]
    assert "widgets" not in executed.metadata


def test_page_names_no_address_outside_itself(finished):
    page = (finished.index.parent / "01_good" / "01_good.html").read_text()
    without_plotly = page.replace(html.get_plotlyjs(), "")
    assert "src=" not in without_plotly and "cdn" not in without_plotly and "import(" not in without_plotly
    assert len(page) - len(without_plotly) == len(html.get_plotlyjs())  # once
    assert without_plotly.count("Plotly.newPlot(") == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"piints": 3}, "unknown parameter piints: the notebooks take points"),
        ({"points": 1000}, "parameter points is 1000: allowed is between 2 and 100"),
        ({"output": "elsewhere"}, "unknown parameter output"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_written(tmp_path, forked_workers, parameters, message):
    path = tiny.write(tmp_path, "01_good", tiny.FIGURE, tiny.SAVE)
    refused(message, report.run, [path], tmp_path / "report", parameters, jobs=1)
    assert not (tmp_path / "report").exists()


def test_model_and_data_of_results_are_for_notebooks_that_take_them(tmp_path):
    with Writer(tmp_path / "mine", "trial@a", model="lab-full", data="lab") as out:
        out.counts([{"measure": "em", "value": 1.0}])
    takes = {"05_beyond_rag": {"model"}, "12_real_model": {"model", "data"}}
    for name, more in takes.items():
        path = Path(__file__).parents[1] / "notebooks" / f"{name}.ipynb"
        assert set(report.parameters_of([str(tmp_path / "mine")], [path])) == {"results", *more}


def test_notebooks_that_ask_a_real_model_are_begun_first():
    def task(name: str, **parameters: str) -> NotebookTask:
        return NotebookTask(str(ROOT.parent / "notebooks" / f"{name}.ipynb"), "", parameters)

    asked = [task("01_masks"), task("12_real_model"), task("03_reuse", model="smollm2")]
    assert [real_pages.asks_real_model(each) for each in asked] == [False, True, True]
    assert not real_pages.asks_real_model(task("12_real_model", model="lab-full"))


def test_links_to_notebooks_lead_to_their_pages_and_are_text_where_there_is_none(tmp_path):
    own, other = (tmp_path / name / f"{name}.html" for name in ("01_a", "02_b#"))
    links = (
        '<a href="01_a.ipynb">own</a> <a href="02_b%23.ipynb" target="_blank">beside</a> <a href="03_c.ipynb">gone</a>'
    )
    for page in (own, other):
        page.parent.mkdir()
        page.write_text(links + html.STEPS)
    html.link([(own, "A: one"), (other, "B: two")])
    beside = '<a href="../02_b%23/02_b%23.html">'
    assert own.read_text() == f'<a href="01_a.ipynb">own</a> {beside}beside</a> gone{beside}B →</a>'


def test_missing_notebooks_are_refused(tmp_path):
    refused("there are no notebooks", report.run, [], tmp_path)
    refused(r"none\.ipynb is no notebook file", report.run, [tmp_path / "none.ipynb"], tmp_path)


def test_a_killed_run_is_not_complete(tmp_path):
    path = tiny.write(
        tmp_path, "01_slow", tiny.SAVE.replace("curve", "early").replace("frame", "None"), "while True: pass"
    )
    out = tmp_path / "report"
    (out / "01_slow").mkdir(parents=True)
    (out / "01_slow" / "_SUCCESS").touch()
    (out / "index.html").touch()
    command = [sys.executable, "-m", "workbench", "report", str(path), "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (out / "01_slow" / "01_slow.ipynb").exists() and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    assert (out / "01_slow" / "01_slow.ipynb").exists()
    assert not (out / "01_slow" / "_SUCCESS").exists()
    assert not (out / "index.html").exists()


def invoke(*arguments):
    app = typer.Typer()
    app.command()(report_command)
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_command_line_exits_with_2_and_one_sentence_on_bad_input(tmp_path):
    result = invoke(tiny.write(tmp_path, "01_good"), "--out", tmp_path / "report", "-p", "piints=3")
    assert result.exit_code == 2
    assert result.stderr == "error: unknown parameter piints: the notebooks take points; did you mean 'points'?\n"


@pytest.mark.parametrize(("message", "code"), [("", 0), ("it failed", 1)])
def test_command_line_exits_with_1_when_a_notebook_failed(monkeypatch, tmp_path, message, code):
    ended = report.ReportResult(tmp_path / "index.html", (report.NotebookRun("01_good", "Good", message=message),))
    monkeypatch.setattr(report, "run", lambda *_, **__: ended)
    (notebook := tmp_path / "any.ipynb").write_text("{}")
    result = invoke(str(notebook))
    assert (result.exit_code, result.stdout) == (code, f"{ended.index}\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [("n=3", 3), ("n=1e-3", 1e-3), ("n=None", None), ("n=true", True), ("n=[1, 2]", [1, 2]), ("n=a=b", "a=b")],
)
def test_command_line_values_are_json_or_text(text, value):
    assert parse([text]) == {"n": value}


def test_notebooks_are_those_of_a_folder_of_the_one_here_or_of_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = sorted(path.name for path in (Path(__file__).parents[1] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert [path.name for path in notebooks_of(None)] == shipped
    (tmp_path / "notebooks").mkdir()
    refused("holds no notebooks", notebooks_of, None)
    (tmp_path / "notebooks" / "01_mine.ipynb").write_text("{}")
    for named in (None, [Path("notebooks")], [Path("notebooks/01_mine.ipynb")]):
        assert [path.name for path in notebooks_of(named)] == ["01_mine.ipynb"]


# --- The index of a report: what an entry says, what stands for a notebook, and that nothing in it is markup
HEAT = {"type": "heatmap", "z": [[0, 1]], "customdata": [["hover"]], "text": [["a", "b"]]}
STRANGE = '<img src=x onerror="alert(1)"><script>alert(1)</script><a href="javascript:alert(1)">x</a> & "quotes"'


def executed(folder, *outputs, prose="# Title\n\nFirst words."):
    """Write an executed notebook whose cells have these outputs, by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = [new_code_cell("n: int = 3  # how many", metadata={"tags": ["parameters"]})]
    cells += [new_code_cell("", outputs=[new_output("display_data", data=data)]) for data in outputs]
    notebook = new_notebook(cells=[new_markdown_cell(prose), *cells])
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook.metadata["papermill"] = {"parameters": {"n": 7}}
    path = folder / f"{folder.name}.ipynb"
    nbformat.write(notebook, path)
    return path


def figure(**layout):
    return {html.PLOTLY: {"data": [HEAT], "layout": layout}}


def test_a_still_figure_keeps_what_is_seen_and_the_places_of_what_is_not():
    hidden = {"type": "scattergl", "visible": False, "y": [1, 2]}
    written = {"type": "scatter", "mode": "markers+text", "y": [1], "text": ["seen"]}
    menu = {"buttons": [{"label": "a", "args": [{"z": [1] * 999}]}], "x": 0}
    still = thumbnail.without_interaction(
        {"data": [HEAT, hidden, written], "layout": {"updatemenus": [menu]}, "frames": [1]}
    )
    assert still["data"] == [{"type": "heatmap", "z": [[0, 1]]}, {"type": "scattergl", "visible": False}, written]
    assert still["layout"]["updatemenus"] == [{"buttons": [{"label": "a", "method": "skip"}], "x": 0}]
    assert "frames" not in still


def test_webgl_is_drawn_as_svg():
    assert thumbnail.without_interaction({"data": [{"type": "scattergl", "y": [1]}]})["data"] == [
        {"type": "scatter", "y": [1]}
    ]


@pytest.mark.parametrize(
    ("outputs", "shown"),
    [
        ([{"text/plain": "words"}, {"image/png": "iVBO\nRw=="}], {"image": "data:image/png;base64,iVBORw=="}),
        ([{"text/plain": "a" * 200 + "\nb"}], {"text": "a" * 90 + "\nb"}),
        ([{"text/html": "<script>1</script>"}], {}),
        ([{"text/plain": "<Markdown object>", "text/markdown": "**found**"}], {}),
        ([], {}),
    ],
)
def test_a_figure_stands_for_a_notebook_else_an_image_else_its_first_text(tmp_path, outputs, shown):
    assert thumbnail.picture(executed(tmp_path / "01_a", *outputs)) == shown


def test_the_picture_of_a_figure_has_its_first_panel_at_the_size_of_the_picture(tmp_path):
    other = {"type": "bar", "x": [1, 2], "y": ["a", "b" * 40], "orientation": "h"}
    second = {**other, "xaxis": "x2", "yaxis": "y2"}
    drawn = {
        html.PLOTLY: {
            "data": [other, second],
            "layout": {"xaxis": {"domain": [0, 0.4], "title": {"text": "ms"}}, "width": 900},
        }
    }
    shown = thumbnail.picture(executed(tmp_path / "01_a", {"text/plain": "words"}, drawn))["figure"]
    assert [trace["y"] for trace in shown["data"]] == [other["y"]]
    assert (shown["layout"]["width"], shown["layout"]["height"]) == thumbnail.SIZE
    assert (shown["layout"]["xaxis"]["domain"], shown["layout"]["xaxis"]["title"]["text"]) == ([0, 1], "ms")
    assert list(shown["layout"]["yaxis"]["labelalias"]) == ["b" * 40]
    assert shown["layout"]["yaxis"]["dtick"] == 1 and "dtick" not in shown["layout"]["xaxis"]


def test_a_name_in_a_picture_is_broken_before_its_bracket_if_there_are_few_names():
    bar = {"type": "bar", "x": [1], "y": ["question-guided (FusionRAG)"], "orientation": "h"}
    shown = thumbnail.shrink_figure({"data": [bar], "layout": {}})
    assert shown["layout"]["yaxis"]["labelalias"] == {bar["y"][0]: "question-guided<br>(FusionRAG)"}
    many = {**bar, "x": [1] * 9, "y": [*bar["y"], *"abcdefgh"]}
    shown = thumbnail.shrink_figure({"data": [many], "layout": {}})
    assert shown["layout"]["yaxis"]["labelalias"] == {bar["y"][0]: "question-guided (Fusi…"}


def test_what_was_found_stands_in_an_entry_and_is_found(tmp_path):
    entry = card(tmp_path, metrics={"finding": "Reuse scores 3 points below."})
    assert entry["finding"] == "Reuse scores 3 points below." and "3 points below" in entry["searched"]
    assert entry["metrics"] == []


def test_facts_count_the_models_data_and_devices_of_what_was_measured():
    metrics = [{"here": {"model": "a", "data": "d"}}, {"here": {"model": "b"}}, {"here": {"model": "b"}}, {}]
    assert report_index.measured_with(metrics) == [("model", "b, a"), ("data", "d")]


def test_a_picture_is_a_call_that_no_text_can_leave(tmp_path):
    path = executed(tmp_path / "01_a", {"text/plain": "</script><script>alert(1)"})
    text = thumbnail.write(path, path.parent).read_text()
    assert text.startswith('picture("01_a", {') and "</script" not in text


def card(tmp_path, name="01_a", metrics=None, message="", title="Title"):
    framed = finish(Figure(Heatmap(z=HEAT["z"])), title="Who sees whom", caption="c", height=100)
    path = executed(tmp_path / name, {html.PLOTLY: json.loads(framed.to_json())})
    thumbnail.write(path, path.parent)
    path.with_suffix(".html").write_text("")
    (path.parent / "metrics.json").write_text("{}")
    (path.parent / "_SUCCESS").write_text("")
    return report_index.card(path.parent, title, "ok", 1.0, message, metrics or {})


def test_an_entry_tells_figures_parameters_data_and_numbers_with_their_source(tmp_path):
    entry = card(tmp_path, metrics={"here": {"em": 0.98765, "records": {"a": 1}}, "mine": {"em": 0.5}})
    assert entry["metrics"] == [("em (here)", "0.9877"), ("em (mine)", "0.5")]
    assert entry["figures"] == [("01_a/01_a.html#figure-2-0", "Who sees whom")]
    assert entry["parameters"] == [("n", "7", "how many")]
    assert entry["data"] == [("01_a/metrics.json", "metrics.json")]
    assert all(word in entry["searched"] for word in ("first words", "who sees whom", "n 7", "em"))


def test_an_entry_is_found_by_the_names_of_its_lines_and_categories(tmp_path):
    drawn = figure()
    drawn["application/vnd.plotly.v1+json"]["data"] = [{"name": "<b>QUOKA</b>", "x": [1, 2], "y": ["EPIC", "BFLA"]}]
    path = executed(tmp_path / "01_a", drawn)
    entry = report_index.card(path.parent, "Title", "ok", 1.0, "", {})
    assert all(word in entry["searched"].split() for word in ("quoka", "epic", "bfla"))


def test_names_with_signs_are_addresses_that_lead_to_their_files(tmp_path):
    entry = card(tmp_path, name="01_a#b?c%20 <x>")
    assert entry["page"] == "01_a%23b%3Fc%2520%20%3Cx%3E/01_a%23b%3Fc%2520%20%3Cx%3E.html"
    assert card(tmp_path, name="javascript:alert(1)")["page"].startswith("javascript%3A")


def test_what_notebooks_say_is_text(tmp_path):
    entry = card(tmp_path, title=STRANGE, message=STRANGE, metrics={STRANGE: {STRANGE: 1}})
    groups = [report_index.Group([entry], STRANGE, STRANGE)]
    page = report_index.page([(STRANGE, STRANGE)], groups, [("docs/index.html", STRANGE)])
    assert "<img" not in page and page.count("&lt;img src=x onerror=&#34;alert(1)&#34;&gt;") >= 6
    assert "<script>alert" not in page and '<a href="javascript' not in page
    assert '<a href="docs/index.html">' in page


def test_a_failed_notebook_is_described_by_its_own_words_without_marks():
    told = new_markdown_cell("<span>An Exception</span>", metadata={"tags": [report_index.FAILED]})
    own = new_markdown_cell("# Title\n\nWhat `x` is *about*.")
    assert report_index._first_paragraph([told, own]) == "What x is about."


def test_a_notebook_whose_process_died_has_an_entry_without_a_picture(tmp_path):
    (tmp_path / "01_a").mkdir()
    entry = report_index.card(tmp_path / "01_a", "Title", "failed", 0.0, "it died", {})
    assert (entry["picture"], entry["figures"], entry["parameters"]) == ("", [], [])
