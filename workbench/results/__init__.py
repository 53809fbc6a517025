"""Result tables: measurements write them; figures and claims read them.

    from workbench import results

    found = results.read(["shipped", "runs/mine"])
    results.scores(found.counts("trial"))

`scores` has one row per method and kind of question, and a column per measure.
"""

from workbench.data.assets import SHIPPED
from workbench.results.reader import HERE, Missing, Results, expanded, read
from workbench.results.schema import EXPERIMENTS, MEASURES, METHOD, Answer, Count, Origin, Timing
from workbench.results.summary import (
    beside,
    figure_data,
    latex,
    mainly,
    means,
    over_draws,
    over_seeds,
    paired,
    ranked,
    records,
    scores,
    speedups,
    usual,
    varied,
)
from workbench.results.writer import Writer, merge, this_run

__all__ = [
    "EXPERIMENTS",
    "HERE",
    "MEASURES",
    "METHOD",
    "SHIPPED",
    "Answer",
    "Count",
    "Missing",
    "Origin",
    "Results",
    "Timing",
    "Writer",
    "beside",
    "expanded",
    "figure_data",
    "latex",
    "mainly",
    "means",
    "merge",
    "over_draws",
    "over_seeds",
    "paired",
    "ranked",
    "read",
    "records",
    "scores",
    "speedups",
    "this_run",
    "usual",
    "varied",
]


def __dir__() -> list[str]:
    return sorted(__all__)
