"""Figures as files: PNG and SVG drawn by Chromium, HTML that stands alone."""

import struct
import xml.etree.ElementTree as ET

import pandas as pd
import plotly.graph_objects as go
import pytest

from workbench.app.reports import figure_files
from workbench.app.reports.figure_files import write_figure
from workbench.app.reports.thumbnail import chromium
from workbench.core.errors import BadInput
from workbench.plots.marks.theme import TURNED
from workbench.plots.tokens.block_history import turnover
from workbench.results import figure_data

RECORD = {"step": 0, "label": "", "tokens": 9, "after_prefix": 5, "computed": 1}
RECORD |= {"ttft_full": 1.0, "ttft_anew": 1.0, "ttft": 0.5}


@pytest.fixture
def figure() -> go.Figure:
    return turnover([RECORD] * 2, unit="frame", title="T", caption="</script><b>", notice="n")


def test_a_page_stands_alone_and_follows_the_theme(figure, tmp_path):
    text = write_figure(figure, tmp_path / "f.html").read_text()
    assert text.count("</script>") == 2 and "prefers-color-scheme: dark" in text and 'data-theme=""' in text
    assert "src=" not in text.split("<script>")[0] and len(text) < 8_000_000
    assert 'data-theme="dark"' in write_figure(figure, tmp_path / "d.html", dark=True).read_text()


@pytest.mark.parametrize("name, problem", [("f.gif", "png, svg, pdf"), ("f", "nothing"), ("no/f.html", "is no folder")])
def test_another_file_is_refused(figure, tmp_path, name, problem):
    with pytest.raises(BadInput, match=problem):
        write_figure(figure, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_data_of_a_figure_is_read_back_from_csv_and_set_as_latex(figure, tmp_path):
    read = pd.read_csv(write_figure(figure, tmp_path / "f.csv"))
    points = figure_data(figure)
    assert len(read) == len(points) > 0 and read.y.tolist() == points.y.tolist()
    assert r"\toprule" in write_figure(figure, tmp_path / "f.tex").read_text()


def test_error_bars_are_the_ends_of_intervals_and_a_table_is_its_cells():
    bars = go.Figure(go.Scatter(x=["a"], y=[0.5], error_y={"array": [0.2], "arrayminus": [0.1]}, name="n"))
    assert figure_data(bars).to_dict("records") == [{"trace": "n", "x": "a", "y": 0.5, "low": 0.4, "high": 0.7}]
    table = go.Figure(go.Table(header={"values": ["a", "b"]}, cells={"values": [["1", "2"], ["<b>3</b>", "4"]]}))
    assert figure_data(table).to_dict("list") == {"a": ["1", "2"], "b": ["3", "4"]}


def test_without_chromium_a_page_is_named_instead(figure, tmp_path, monkeypatch):
    monkeypatch.setattr(figure_files, "chromium", lambda: None)
    with pytest.raises(BadInput, match="install chromium"):
        write_figure(figure, tmp_path / "f.png")


@pytest.mark.browser
def test_png_svg_and_pdf_are_drawn(figure, tmp_path):
    if chromium() is None:
        pytest.skip("there is no Chromium on this machine")
    png = write_figure(figure, tmp_path / "f.png").read_bytes()
    assert struct.unpack(">II", png[16:24]) == (figure.layout.width, figure.layout.height)
    assert write_figure(figure, tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    svg = write_figure(figure, tmp_path / "f.svg", dark=True).read_text()
    assert ET.fromstring(svg).tag.endswith("svg") and f"invert({TURNED[0]})" in svg
