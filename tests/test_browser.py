"""What a reader sees in a real JupyterLab and in a report page: figures that move, and no request to anywhere."""

import subprocess
import sys

import pytest
import report_notebooks as tiny

pytestmark = pytest.mark.browser

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
    """The report over the notebook, made by another process: the browser's loop runs in this one."""
    out = tmp_path_factory.mktemp("report")
    subprocess.run([sys.executable, "-m", "workbench.app.report", str(notebook), "--out", str(out)], check=True)
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


def test_report_has_a_picture_of_the_figure(lab, report):
    assert (report / "thumbnail.png").stat().st_size > 5_000
    assert not (report / "thumbnail.svg").exists()


def test_report_page_is_interactive_without_a_network(lab, report):
    with lab.page(report / "01_curve.html") as reader:
        assert reader.wait_for_figures() == 1
        assert "4" in reader.hover()  # the third of five squares
        assert reader.left_the_machine == []
        assert reader.problems == []
