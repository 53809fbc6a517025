"""Results of a pretrained model on one data set, by method and question.

Scores are KL from full attention and the likelihood of the gold answer lost ("nll_extra"), in nats a token; lower is
better. Differences are taken question by question.
"""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments import results
from workbench.metrics.paired import Difference, difference

RATIO = 0.15


@dataclass(frozen=True, eq=False)
class Real:
    """The two tables of data/benchmarks/real.py, of one model on one data set."""

    model: str
    data: str
    table: pd.DataFrame
    questions: pd.DataFrame

    @classmethod
    def read(cls, model: str = "smollm2", data: str = "") -> "Real":
        """Read what ships, of the first of `data_sets` where none is named. Raises BadInput for others."""
        return cls.of(results.table("real"), results.table("real-questions"), model, data)

    @classmethod
    def of(cls, table: pd.DataFrame, questions: pd.DataFrame, model: str, data: str = "") -> "Real":
        """Take one model and data set out of both tables."""
        own = table[table.model == model]
        known = _by_questions(own) or list(own.data.unique())
        if not known or data not in ("", *known):
            have = ", ".join(known) or f"none of model {model!r}"
            raise BadInput(f"no results on data {data!r}: there are {have}")
        return cls(model, data or known[0], own, questions[questions.model == model])

    @cached_property
    def data_sets(self) -> list[str]:
        """Every data set on which reuse was measured: most questions first, and of as many, most methods."""
        return _by_questions(self.table)

    def on(self, data: str) -> "Real":
        """Return the same model on another data set."""
        return Real(self.model, data, self.table, self.questions)

    def rows(self, kind: str = "all") -> pd.DataFrame:
        """Return the methods of reuse, full attention included, on one kind of question."""
        table = self.table
        return table[(table.data == self.data) & (table.kind == kind) & (table.group != "sparse")]

    @cached_property
    def sparse(self) -> pd.DataFrame:
        """The sparse prefills on this data set, or else on the first that has some; none where none was measured."""
        rows = self.table[(self.table.kind == "all") & (self.table["sparse"] != "none")]
        known = [self.data, *rows.data.unique()]
        return rows[rows.data == next((name for name in known if (rows.data == name).any()), "")]

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds of question, where the data has kinds."""
        return [kind for kind in self.table[self.table.data == self.data].kind.unique() if kind != "all"]

    def trial(self, prepare: str, select: str = "none") -> str | None:
        """Return the method that recomputes `RATIO` by a selector over a preparation; None where there is none."""
        rows = self.rows()
        found = rows[(rows["mode"] == "block") & (rows.positions != "naive") & (rows.prepare == prepare)]
        found = found[(found["select"] == select) & ((select == "none") | (found.ratio == RATIO))]
        return found.trial.iloc[0] if len(found) else None

    def by_ratio(self, prepare: str, select: str) -> dict[float, str]:
        """Return the methods of a selector over a preparation by their ratio."""
        rows = self.rows()
        found = rows[(rows["mode"] == "block") & (rows.positions != "naive") & (rows.prepare == prepare)]
        found = found[(found["select"] == select) & (select != "none") & found.ratio.notna()]
        return dict(zip(found.ratio.astype(float), found.trial, strict=True))

    def score(self, trial: str, measure: str = "kl") -> dict[str, float]:
        """Return {mean, low, high} of a method."""
        row = self.rows().set_index("trial").loc[trial]
        return {"mean": row[measure], "low": row[f"{measure}_low"], "high": row[f"{measure}_high"]}

    def gap(self, one: str, other: str, measure: str = "kl") -> Difference:
        """Return by how much a method's loss is above another's, question by question."""
        loss = "nll" if measure == "nll_extra" else measure
        both = pd.concat([self.losses(trial, loss) for trial in (one, other)], axis=1).dropna()
        return difference(both.iloc[:, 0].to_numpy(float), both.iloc[:, 1].to_numpy(float))

    def losses(self, trial: str, loss: str = "kl") -> pd.Series:
        """Return the losses ("kl" or "nll") of a method, a question each, by their ids."""
        return self._of_questions[loss][trial]

    @cached_property
    def _of_questions(self) -> dict[str, dict[str, pd.Series]]:
        """Losses by measure and method, a question each."""
        passages = self.rows().passages.iloc[0]
        own = self.questions[(self.questions.data == self.data) & (self.questions.passages == passages)]
        by_trial = {str(trial): rows.set_index("id") for trial, rows in own.groupby("trial", observed=True)}
        return {loss: {trial: rows[loss] for trial, rows in by_trial.items()} for loss in ("kl", "nll")}

    def with_kinds(self, least: int = 1) -> "list[Real]":
        """Return the data sets that have kinds and so many questions at least, this one first, then by questions."""
        names = [self.data, *(name for name in self.data_sets if name != self.data)]
        sets = [self.on(name) for name in names]
        return [each for each in sets if each.kinds and each.rows().n.max() >= least]

    def about(self, kind: str = "all") -> str:
        """Say how it was measured, for captions: the model with what it says of itself, questions, seed and device."""
        row = self.rows(kind).iloc[0]
        return (
            f"{row.note} {self.data}: n = {row.n:,}, seed {row.seed:,}, {row.passages} passages; full attention's own "
            f"answers have {int(row.max_new_tokens)} tokens at most; {row.device}"
        )


def _by_questions(table: pd.DataFrame) -> list[str]:
    """Return the data sets on which reuse was measured: most questions first, and of as many, most methods."""
    rows = table[(table.group != "sparse") & (table.kind == "all")]
    asked = rows.groupby("data", sort=True).agg(n=("n", "max"), methods=("trial", "nunique"))
    return list(asked.sort_values(["n", "methods"], ascending=False, kind="stable").index)
