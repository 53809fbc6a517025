"""The index of a report: what an entry says, what stands for a notebook, and that nothing in it is markup."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from plotly.graph_objects import Figure, Heatmap

from workbench.app.reports import html, thumbnail
from workbench.app.reports import index as report_index
from workbench.plots.marks.theme import finish

HEAT = {"type": "heatmap", "z": [[0, 1]], "customdata": [["hover"]], "text": [["a", "b"]]}
STRANGE = '<img src=x onerror="alert(1)"> & "quotes"'


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
    still = thumbnail.still({"data": [HEAT, hidden, written], "layout": {"updatemenus": [menu]}, "frames": [1]})
    assert still["data"] == [{"type": "heatmap", "z": [[0, 1]]}, {"type": "scattergl", "visible": False}, written]
    assert still["layout"]["updatemenus"] == [{"buttons": [{"label": "a", "method": "skip"}], "x": 0}]
    assert "frames" not in still


def test_webgl_is_drawn_as_svg():
    assert thumbnail.still({"data": [{"type": "scattergl", "y": [1]}]})["data"] == [{"type": "scatter", "y": [1]}]


@pytest.mark.parametrize(
    ("outputs", "shown"),
    [
        ([{"text/plain": "words"}, {"image/png": "iVBO\nRw=="}], {"image": "data:image/png;base64,iVBORw=="}),
        ([{"text/plain": "a" * 200 + "\nb"}], {"text": "a" * 90 + "\nb"}),
        ([{"text/html": "<script>1</script>"}], {}),
        ([], {}),
    ],
)
def test_a_figure_stands_for_a_notebook_else_an_image_else_its_first_text(tmp_path, outputs, shown):
    assert thumbnail.picture(executed(tmp_path / "01_a", *outputs)) == shown


def test_the_picture_of_a_figure_has_its_first_panel_at_the_size_of_the_picture(tmp_path):
    other = {"type": "bar", "x": [1, 2], "y": ["a", "b" * 40], "orientation": "h"}
    second = {**other, "xaxis": "x2", "yaxis": "y2"}
    drawn = {html.PLOTLY: {"data": [other, second], "layout": {"xaxis": {"domain": [0, 0.4]}, "width": 900}}}
    shown = thumbnail.picture(executed(tmp_path / "01_a", {"text/plain": "words"}, drawn))["figure"]
    assert [trace["y"] for trace in shown["data"]] == [other["y"]]
    assert (shown["layout"]["width"], shown["layout"]["height"]) == thumbnail.SIZE
    assert shown["layout"]["xaxis"]["domain"] == [0, 1]
    assert list(shown["layout"]["yaxis"]["labelalias"]) == ["b" * 40]


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
    assert '<a href="docs/index.html">' in page


def test_a_notebook_whose_process_died_has_an_entry_without_a_picture(tmp_path):
    (tmp_path / "01_a").mkdir()
    entry = report_index.card(tmp_path / "01_a", "Title", "failed", 0.0, "it died", {})
    assert (entry["picture"], entry["figures"], entry["parameters"]) == ("", [], [])
