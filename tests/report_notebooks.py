"""Tiny notebooks for the tests of the report and of the browser."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = """from typing import Optional

points: int = 5  # points in the figure
output: Optional[str] = None  # folder for the results"""
VALIDATE = """from workbench import notebook

notebook.validate(globals(), points=notebook.between(2, 100))"""
FIGURE = """import pandas as pd
import plotly.graph_objects as go

frame = pd.DataFrame({"x": range(points), "y": [i * i for i in range(points)]})
go.Figure(go.Scatter(x=frame.x, y=frame.y))"""
SAVE = 'notebook.save(output, {"points": points, "live": notebook.is_live()}, {"curve": frame})'


def write(folder: Path, name: str, *cells: str, title: str = "A curve", model: str = "") -> Path:
    """A notebook with the shared first cells, then `cells`; with a parameter `model` where it has a value."""
    parameters = PARAMETERS + (f'\nmodel: str = "{model}"  # a name' if model else "")
    code = [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    code += [new_code_cell(source) for source in (VALIDATE, *cells)]
    path = folder / f"{name}.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=[new_markdown_cell(f"# {title}"), *code], metadata=kernel), path)
    return path
