"""Result tables: measurements write them; figures and claims read them.

    from workbench import results

    found = results.read(["shipped", "runs/mine"])
    results.scores(found.counts("trial"))

`scores` has one row per method and kind of question, and a column per measure.
"""

from workbench.data.assets import SHIPPED
from workbench.results.reader import HERE, Missing, Results, expand_settings, read
from workbench.results.schema import EXPERIMENTS, MEASURES, METHOD, Answer, Count, Origin, Timing
from workbench.results.summary import (
    figure_data,
    latex,
    means,
    most_frequent,
    over_draws,
    over_seeds,
    paired_differences,
    rank_measures,
    records,
    scores,
    speedups,
    usual_values,
    vary_one,
    with_trial_measure,
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
    "expand_settings",
    "figure_data",
    "latex",
    "means",
    "merge",
    "most_frequent",
    "over_draws",
    "over_seeds",
    "paired_differences",
    "rank_measures",
    "read",
    "records",
    "scores",
    "speedups",
    "this_run",
    "usual_values",
    "vary_one",
    "with_trial_measure",
]


def __dir__() -> list[str]:
    return sorted(__all__)
