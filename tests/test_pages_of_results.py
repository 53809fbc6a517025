"""Pages of measured results draw whatever result tables hold: what ships, a small sweep of other models, nothing."""

import json
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from workbench.results import Missing, Writer, read
from workbench.results.writer import prepare

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
ENDS = {"12_real_model": "## The same here and now", "10_sparse_quality": "## When does a choice pay?"}
FEWEST = {  # figures of what ships, and of the small sweep
    "12_real_model": (14, 8),
    "10_sparse_quality": (10, 5),
}
SPARSE = ["none", "window(block=64, local=1)", "window(block=64, local=4)", "bfla(block=64, mass=0.9)"]
REUSE = [
    ("independent", "none"),
    ("after_system", "none"),
    ("after_system", "random"),
    ("with_neighbours(n=2)", "random"),
]


def drawn(name: str, results: list[str]) -> list:
    """What the cells of results of a notebook show, in their order."""
    shown, namespace = [], {}
    for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if source.startswith(ENDS[name]):
            break
        if cell["cell_type"] == "code":
            *rest, last = source.rstrip().split("\n\n")
            is_shown = last.startswith(("chart.", "heads."))
            exec("\n\n".join(rest) if is_shown else source, namespace)
            shown += [eval(last, namespace)] if is_shown else []
            namespace |= {"results": results} if "parameters" in cell["metadata"].get("tags", []) else {}
    return shown


def sweep(folder: Path) -> str:
    """A sweep of made-up numbers: reuse and sparse methods on a model and data of other names."""
    draw = np.random.default_rng(0)
    about = {"model": "acme/tiny", "data": "notes.jsonl", "passages": 5, "seed": 7, "device": "a GPU"}
    methods = [{"mode": "block", "prepare": p, "select": s, "ratio": r} for p, s in REUSE for r in (0.1, 0.3)]
    methods += [{"mode": "full", "prepare": "independent", "select": "none", "sparse": spec} for spec in SPARSE]
    for number, method in enumerate(methods):
        method = {"positions": "re-encoded", "sparse": "none", **method, "method": f"m{number}"}
        with Writer(folder, f"trial@{number}", **about, **method) as out:
            values = {name: draw.random() for name in ("kl", "nll_extra", "em", "f1", "rows_charged")}
            values |= {name: draw.random() for name in ("density", "mass")} if method["sparse"] != "none" else {}
            out.counts(
                {"measure": name, "kind": kind, "value": value, "low": value, "high": value, "n": 20}
                for name, value in values.items()
                for kind in ("all", "how", "why")
            )
            out.answers({"question": f"q{i}", "kl": draw.random(), "em": float(i % 2)} for i in range(20))
    return str(folder)


def figures(shown: list) -> list:
    return [one for one in shown if isinstance(one, go.Figure)]


@pytest.mark.parametrize("name", ENDS)
def test_a_page_draws_what_ships_and_a_sweep_of_ones_own(name, tmp_path):
    shipped, own = FEWEST[name]
    assert len(figures(drawn(name, ["shipped"]))) >= shipped
    mine = drawn(name, [sweep(tmp_path)])
    assert len(figures(mine)) >= own and all(isinstance(one, go.Figure | Missing) for one in mine)
    sources = {source for one in figures(mine) for source in one.layout.meta["sources"] if one.layout.meta}
    assert sources <= {str(tmp_path), "published"}, "a reader's page shows no shipped numbers"


@pytest.mark.parametrize("name", ENDS)
def test_two_sources_stand_side_by_side(name, tmp_path):
    shown = figures(drawn(name, ["shipped", sweep(tmp_path)]))
    assert any(set(one.layout.meta["sources"]) == {"shipped", str(tmp_path)} for one in shown if one.layout.meta)


@pytest.mark.parametrize("name", ENDS)
def test_without_results_a_page_names_the_command(name, tmp_path):
    prepare(tmp_path)
    assert read([tmp_path]).counts().empty
    shown = drawn(name, [str(tmp_path)])
    assert shown and all(isinstance(one, Missing) for one in shown)
    assert any("workbench sweep" in str(one) for one in shown)
