"""What committed results say of one policy: tables and a sentence for its page, on the lab model and on a real one.

The tables are read without importing the package's tensors, so that the documentation builds in seconds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from workbench.app.docs_text import table

RATIO = 0.15
REAL, ASKED = "smollm2", "nq"  # the model and the questions that most trials were made on
NOTHING = "*Not measured there.*"


@dataclass(frozen=True)
class Results:
    """Committed results in the folder `data/benchmarks`."""

    folder: Path

    @cached_property
    def lab(self) -> pd.DataFrame:
        """Trials of the lab model: a row a preparation, selector and ratio."""
        return pd.read_parquet(self.folder / "fusion.parquet").query("kind == 'all'")

    @cached_property
    def real(self) -> pd.DataFrame:
        """Trials of the real model on one set of questions."""
        read = pd.read_parquet(self.folder / "real.parquet")
        return read[(read.kind == "all") & (read.model == REAL) & (read.data == ASKED)]

    @cached_property
    def sparse(self) -> pd.DataFrame:
        """Sparse methods on the lab model: a row a threshold."""
        read = pd.read_parquet(self.folder / "sparse.parquet")
        return read[(read.kind == "all") & (read.data == "lab") & (read.group == "curve")]

    def of_selector(self, name: str) -> str:
        """Return tables of a selector by ratio, on passages cached behind the system prompt."""
        lab = self._chosen(self.lab, name).sort_values(["select", "ratio"])
        real = self._chosen(self.real, name).sort_values(["select", "ratio"])
        return _sections(
            [_said_of_lab(self.lab, lab), _lab_table(lab)], [_said_of_real(self.real, real), _real_table(real)]
        )

    def of_preparation(self, name: str) -> str:
        """Return tables of a preparation: blocks reused without recomputation, and with the best selectors."""
        lab, real = (t[(t["mode"] == "block") & (_name(t.prepare) == name)] for t in (self.lab, self.real))
        order = ["prepare", "select", "ratio"]
        fine = real[(real.positions == "re-encoded") & real.ratio.isin([RATIO]) | real.ratio.isna()]
        lab = lab[(lab["select"] == "none") | (lab.ratio == RATIO)]
        return _sections([_lab_table(lab.sort_values(order))], [_real_table(fine.sort_values(order))])

    def of_sparse(self, name: str) -> str:
        """Return the table of a sparse method by threshold, beside dense attention and random tiles."""
        found = self.sparse[(self.sparse.method == name) | self.sparse.method.str.startswith(f"{name} over")]
        dense = self.sparse[self.sparse.method == "dense"].iloc[0]
        rows = [
            (f"`{r.spec}`", f"{r.density:.0%}", _interval(r.em, r.em_low, r.em_high), f"{r.mass:.0%}", f"{r.kl:.3f}")
            for r in found.itertuples()
        ]
        head = ("spec", "tiles kept", "exact match", "attention kept", "KL from dense")
        said = (
            f"Dense attention answers {dense.em:.1%} (n = {int(dense.n)}, {int(dense.prompts)} prompts of about "
            f"{dense.tokens:,.0f} tokens)."
        )
        return _sections([said, table(head, rows) if rows else ""], [])

    def of_mode(self, name: str) -> str:
        """Return the table of a mode: full attention, or blocks reused as they are."""
        lab, real = (t[t["mode"] == name] for t in (self.lab, self.real))
        plain, real_plain = (t[t["select"] == "none"] for t in (lab, real))
        if name == "superposition":
            return _sections([self._superposition()], [])
        return _sections([_lab_table(plain.sort_values("prepare"))], [_real_table(real_plain.sort_values("prepare"))])

    def _superposition(self) -> str:
        methods = json.loads((self.folder / "block-attention.json").read_text())["methods"]
        names = ("full attention", "Superposition", "block, not fine-tuned")
        records = [(name, methods[name]["record"]) for name in names]
        rows = [(name, _interval(r["em"], r["em_low"], r["em_high"]), r["n"]) for name, r in records]
        return table(("method", "exact match (95%)", "n"), rows)

    def _chosen(self, rows: pd.DataFrame, name: str) -> pd.DataFrame:
        return rows[(rows["mode"] == "block") & (rows.prepare == "after_system") & (_name(rows["select"]) == name)]


def _name(specs: pd.Series) -> pd.Series:
    return specs.str.partition("(")[0]


def _sections(lab: Sequence[str], real: Sequence[str]) -> str:
    parts = []
    for heading, said in (("On the lab model", lab), (f"On {REAL}, a real model", real)):
        parts += [f"### {heading}", *(list(filter(None, said)) or [NOTHING])]
    return "\n\n".join(parts)


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.1%} ({low:.1%} to {high:.1%})"


def _choice(row: pd.Series) -> str:
    ratio = "its own share" if pd.isna(row.ratio) else f"{row.ratio:.0%}"
    return "nothing recomputed" if row["select"] == "none" else f"`{row['select']}` at {ratio}"


def _lab_table(rows: pd.DataFrame) -> str:
    """Exact match of trials on the lab model."""
    if rows.empty:
        return ""
    rows = rows.drop_duplicates(["mode", "prepare", "select", "ratio"])
    lines = [
        (f"`{r['prepare']}`" if r["mode"] == "block" else "–", _choice(r), _interval(r.em, r.em_low, r.em_high),
         f"{r.rows_computed:,.0f}", int(r.n))
        for _, r in rows.iterrows()
    ]  # fmt: skip
    return table(("passages cached", "recomputed", "exact match (95%)", "rows computed", "n"), lines)


def _real_table(rows: pd.DataFrame) -> str:
    """Return how far predictions of the real model move from full attention."""
    if rows.empty:
        return ""
    rows = rows.drop_duplicates(["mode", "positions", "prepare", "select", "ratio"])
    lines = [
        (f"`{r['prepare']}`" + (", naive" if r.positions == "naive" else "") if r["mode"] == "block" else "–",
         _choice(r), f"{r.kl:.3f} ({r.kl_low:.3f} to {r.kl_high:.3f})", f"{r.nll_extra:+.2f}", f"{r['agree']:.0%}",
         f"{r.rows:,.0f}", int(r.n))
        for _, r in rows.iterrows()
    ]  # fmt: skip
    head = ("passages cached", "recomputed", "KL from full attention, nats (95%)", "likelihood lost, nats")
    return table((*head, "same top token", "rows computed", "n"), lines)


def _said_of_lab(rows: pd.DataFrame, chosen: pd.DataFrame) -> str:
    """Return a sentence on a selector at 15%, beside full attention, no recomputation and random tokens."""
    ours = chosen[(chosen.ratio == RATIO) & (chosen["select"] != "none")].head(1)
    if ours.empty:
        return ""
    behind = rows[rows.prepare == "after_system"]
    none, random = (_first(behind[behind["select"] == name], "em") for name in ("none", "random"))
    full = _first(rows[rows["mode"] == "full"], "em")
    row = ours.iloc[0]
    return (
        f"At {RATIO:.0%}, exact match is {row.em:.1%}; full attention {full:.1%}, nothing recomputed {none:.1%}, "
        f"random tokens {random:.1%} (`data/benchmarks/fusion.parquet`)."
    )


def _said_of_real(rows: pd.DataFrame, chosen: pd.DataFrame) -> str:
    """Return a sentence on a selector at 15% of the real model, beside no recomputation and random tokens."""
    ours = chosen[(chosen.ratio == RATIO) & (chosen["select"] != "none")].head(1)
    if ours.empty:
        return ""
    behind = rows[rows.prepare == "after_system"]
    none, random = (_first(behind[behind["select"] == name], "kl") for name in ("none", "random"))
    return (
        f"At {RATIO:.0%}, predictions move {ours.iloc[0].kl:.3f} nats from full attention; nothing recomputed "
        f"{none:.3f}, random tokens {random:.3f} (`data/benchmarks/real.parquet`, {ASKED})."
    )


def _first(rows: pd.DataFrame, column: str) -> float:
    rows = rows[(rows.ratio == RATIO) | (rows["select"] == "none")]
    return float(rows[column].iloc[0]) if len(rows) else float("nan")
