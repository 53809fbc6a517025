"""What a reader sees in a real JupyterLab and in a report page: figures that move, and no request to anywhere."""

import nbformat
import pytest
import report_notebooks as tiny
from short_runs import FIGURES, NOTEBOOKS, TINY

from workbench.app.notebook_run import Task, Workers

pytestmark = pytest.mark.browser

EXPLORED = [path for path in NOTEBOOKS if "_explorer(" in path.read_text()]

LIVE = """import ipywidgets

if notebook.is_live():
    drawn = go.FigureWidget(go.Scatter(y=[0, 0]))
    power = ipywidgets.IntSlider(value=1, min=1, max=9)

    def redraw(change):
        drawn.data[0].y = [0, change["new"]]

    power.observe(redraw, "value")
    display(ipywidgets.VBox([power, drawn]))"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("notebooks"), "01_curve", tiny.FIGURE, LIVE, tiny.SAVE)


@pytest.fixture(scope="module")
def report(notebook, tmp_path_factory):
    """Its folder in a report, made by another process: the browser's loop runs in this one."""
    out = tmp_path_factory.mktemp("report")
    with Workers(1) as workers:
        (ended,) = workers.run([Task(str(notebook), str(out), {})])
    assert ended.ok, ended.message
    return out / "01_curve"


def test_run_all_in_jupyterlab_is_live_and_its_slider_moves_the_figure(lab, notebook):
    with lab.open(notebook) as reader:
        reader.run_all()
        assert reader.errors() == []
        assert reader.wait_for_figures(at_least=2) == 2
        assert reader.move_slider()
        assert reader.left_the_machine == []


def test_a_cell_that_ends_in_an_error_is_noticed(lab, tmp_path):
    failing = tiny.write(tmp_path, "02_failing", "raise ValueError('no such thing')")
    with lab.open(failing) as reader:
        reader.run_all()
        assert reader.errors() == ["ValueError: no such thing"]


def test_executed_notebook_is_drawn_untrusted(lab, report):
    with lab.open(report / "01_curve.ipynb") as reader:
        assert reader.wait_for_figures() == 1
        assert reader.left_the_machine == []


def test_report_page_is_interactive_without_a_network(lab, report):
    with lab.page(report / "01_curve.html") as reader:
        assert reader.wait_for_figures() == 1
        assert "4" in reader.hover()  # the third of five squares
        assert reader.left_the_machine == []
        assert reader.problems == []


@pytest.mark.parametrize("path", EXPLORED, ids=lambda path: path.stem)
def test_the_explorer_of_a_shipped_notebook_moves(lab, folder, tmp_path, path):
    name, written = path.stem, nbformat.read(path, as_version=4)
    given = {"model": str(folder), **TINY[name]}
    if "\ntuned:" in written.cells[1].source:
        given["tuned"] = given["model"]
    written.cells[1].source += "".join(f"\n{key} = {value!r}" for key, value in given.items())
    short = tmp_path / path.name
    nbformat.write(written, short)
    with lab.open(short) as reader:
        reader.run_all(timeout_s=200)
        assert reader.errors() == []
        assert reader.wait_for_figures(at_least=FIGURES[name] + 1) > FIGURES[name]
        slider = reader.page.locator(".widget-slider").count() - 1  # the head: it begins at its lowest value
        assert reader.move_slider(slider, steps=1)
        assert reader.errors() == []
        assert reader.left_the_machine == []
