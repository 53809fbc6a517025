"""BFLA's table 5: every printed row stands beside the same setting at a quarter of its sizes."""

from sparse_settings import TABLE

from workbench.methods import sparse
from workbench.metrics import crossover
from workbench.metrics.published_numbers import BFLA_TABLE_5
from workbench.models import load
from workbench.plots import bfla_table
from workbench.plots.sparse_quality import Measured


def test_every_printed_row_is_measured_by_the_script():
    printed = [bfla_table.scaled(row) for row in BFLA_TABLE_5["rows"]]
    assert set(printed) <= set(TABLE) and len(set(printed)) == len(printed) == 12
    released = [spec for spec in TABLE if spec not in printed]
    assert [any(spec.endswith(f"{end})") for end in bfla_table.RELEASED) for spec in released] == [True] * 3
    assert len({sparse.named(spec) for spec in TABLE}) == len(TABLE)


def test_the_table_holds_all_printed_rows_and_says_what_is_not_measured():
    model = crossover.CrossoverModel.of("lab-full", load("lab-full")[0].config)
    cells = bfla_table.table_5(Measured.of(model)).data[0].cells.values
    assert len(cells[0]) >= 14 and "39.40" in cells[1] and "40.6%" in cells[5]
    assert bfla_table.said([], 12) == "None of the 12 printed settings is measured yet."
    assert "1 of 2 keep less here; 2 of 12" in bfla_table.said([(0.5, 0.9), (0.95, 0.9)], 12)
