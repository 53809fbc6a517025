"""Block mode against full attention, before and after fine-tuning: trials to draw, and a finding."""

import pandas as pd

from workbench.methods.presets import METHODS
from workbench.plots.marks.method_names import with_method_names
from workbench.results import scores

ASKED = ["source", "data", "seed", "passages"]  # columns that identify a set of questions
NOTHING = ("", "none")
TITLES = {"full": "full attention", "Full attention": "full attention", "block, naive positions": "PromptCache"}
UNTUNED = "block, not fine-tuned"
RUN = [*ASKED, "model", "method", "kind", "training_seed", "ratio"]  # equal in repeated trials


def trials(counts: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial and kind of question, of methods without a selector, with published names.

    Of repeated trials (e.g. on another device) the first is kept. A model without fine-tuning has one name in block
    mode, whatever its trials are called.
    """
    table = with_method_names(scores(counts))
    titles = {name: method.title for name, method in METHODS.items()} | TITLES
    table = table.assign(method=table.method.replace(titles))
    untuned = table.model.isin(table.model[table.method == UNTUNED])
    table = table.assign(method=table.method.mask(untuned & (table.method == "independent blocks"), UNTUNED))
    plain = table["select"].isin(NOTHING) & table["sparse"].isin(NOTHING) & table.prepare.isin(["", "independent"])
    return table[plain].drop_duplicates(RUN)


def finding(rows: pd.DataFrame, model: str, tuned: str) -> str:
    """Return a sentence on both modes before and after fine-tuning, with block mode's intervals; "" if one is missing.

    It covers the first questions that both models answered in both modes.
    """
    alike = rows[["correct", "attend", "sparse", "select"]].isin(NOTHING).all(axis=1) & (rows.positions != "naive")
    modes = rows[alike & (rows.kind == "all") & rows["mode"].isin(["full", "block"]) & rows.em.notna()]
    for (_, data, *_), asked in modes.groupby(ASKED, sort=False, dropna=False):
        each = asked.drop_duplicates(["model", "mode"]).set_index(["model", "mode"])
        if all((name, mode) in each.index for name in (model, tuned) for mode in ("full", "block")):
            before, after = (_said(each.loc[(name, "block")]) for name in (model, tuned))
            full = f"full attention {each.em[(model, 'full')]:.1%} before and {each.em[(tuned, 'full')]:.1%} after"
            about = f"exact match, {model} and {tuned} on {data}, n = {each.n.max():,.0f}, 95% intervals"
            return f"Block mode scores {before} before fine-tuning and {after} after; {full} ({about})."
    return ""


def _said(row: pd.Series) -> str:
    return f"{row.em:.1%} ({row.em_low:.1%} to {row.em_high:.1%})"
