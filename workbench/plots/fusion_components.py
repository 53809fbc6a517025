"""FusionRAG's figure 18 on many questions: what every component adds, in F1, rows and time, beside what is printed."""

import pandas as pd
import plotly.graph_objects as go

from workbench.experiments import recompute_reports, results
from workbench.experiments.chunk_reports import ratio, timed
from workbench.metrics.answers import bootstrap, normalised
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.sweep_records import PREPARE, RATIO
from workbench.plots.table import table

DENSE = "flashinfer, dense"  # of the operator's report: the same rows under attention that computes everything
COMPONENTS = {  # name → (mode, prepared behind neighbours, selector, printed F1)
    "Full Reuse": ("block", False, "none", "reuse"),
    "+ preparation behind neighbours": ("block", True, "none", ""),
    "+ question-guided rows": ("block", False, "query_guided", "query-guided"),
    "+ both: FusionRAG": ("block", True, "query_guided", "both"),
    "full attention": ("full", False, "", "full"),
}


def trial_of(swept: pd.DataFrame, mode: str, prepare: str, select: str) -> pd.Series:
    """Return the row of a component over all kinds of question."""
    rows = swept[(swept.kind == "all") & (swept["mode"] == mode)]
    if mode == "full":
        return rows.iloc[0]
    mine = rows[(rows.prepare == prepare) & (rows["select"] == select)]
    return mine.iloc[0] if select == "none" else mine[(mine.ratio - RATIO).abs() < 1e-9].iloc[0]


def printed(name: str) -> str:
    """Return the F1 that figure 18 prints; of both components it follows from the share that it says they win back."""
    f1 = FUSION_RAG["f1"]
    both = f1["reuse"] + FUSION_RAG["recovered_by_component"]["and prepared"] * (f1["full"] - f1["reuse"])
    return "" if not name else f"{both:.3f}, from its share" if name == "both" else f"{f1[name]:.3f}"


def operator() -> tuple[str, float] | None:
    """Return the milliseconds of attention over 15% of the rows and how many times as long all rows take."""
    works = results.read("q_sparse_attention")["workloads"] if "q_sparse_attention" in results.names() else []
    work = next((work for work in works if work["shape"].get("share") == RATIO), None)
    candidates = timed(work) if work else {}
    if "ours" not in candidates or DENSE not in candidates:
        return None
    return f"{candidates['ours']['ms']:.2f} ms", ratio(candidates[DENSE], candidates["ours"])["mean"]


def components(swept: pd.DataFrame, answers: pd.DataFrame, similar: str) -> go.Figure:
    """Tabulate the components; `similar`: the preparation behind neighbours, `answers`: a row a question."""
    rows, shares = [], {}
    found = {
        name: trial_of(swept, mode, similar if behind else PREPARE, select)
        for name, (mode, behind, select, _) in COMPONENTS.items()
    }
    f1 = {name: list(answers[f"f1 {row.trial}"].astype(float)) for name, row in found.items()}
    names = list(COMPONENTS)
    for name, row in found.items():
        low, high = bootstrap(f1[name])
        won = normalised(f1[name], f1[names[0]], f1[names[-1]])
        shares[name] = won
        ends = "" if name in (names[0], names[-1]) else f"{won[0]:.0%} [{won[1]:.0%}, {won[2]:.0%}]"
        mean = sum(f1[name]) / len(f1[name])
        numbers = [f"{mean:.3f}", f"{low:.3f} to {high:.3f}", ends, printed(COMPONENTS[name][3])]
        rows.append([name, *numbers, f"{row.rows_computed:,.0f}"])
    kernel, whole = operator(), {row["way"]: row for row in recompute_reports.by_share() if row["at"] == RATIO}
    if kernel:
        rows.append(["attention operator, 15% of 32K rows", kernel[0], "", f"{kernel[1]:.1f} times", "", ""])
    if request := whole.get("ours") or whole.get("ours, random rows, no choice"):
        reduced = f"{1 - 1 / request['mean']:.1%} less"
        rows.append([f"request: {request['name']}", f"{request['ms']:,.0f} ms", "", reduced, _printed_reduction(), ""])
    return table(
        ["component", "F1", "95% interval", "of the gap won back", "printed", "rows computed"],
        rows,
        widths=[2.7, 0.8, 1.3, 1.5, 1.5, 1],
        title="What each component adds, on many questions (FusionRAG, figure 18)",
        notice=said(shares),
        caption=f"{found[names[0]].model} on {found[names[0]].data}, n = {len(answers):,}, seed "
        f"{int(found[names[0]].seed)}, {RATIO:.0%} of the document tokens recomputed, {similar}. Operator and request: "
        f"{recompute_reports.report()['card']}, over dense attention and over stock full prefill. Printed: "
        f"{FUSION_RAG['source']}. The asynchronous scheduler is shown where blocks are loaded.",
    )


def _printed_reduction() -> str:
    return f"{FUSION_RAG['ttft_reduced_by_kernel']:.1%} less"


def said(shares: dict[str, tuple[float, float, float]]) -> str:
    """Say what preparation and the selector win back, alone and together, beside the printed shares."""
    prepared, guided, both = (shares[name] for name in list(COMPONENTS)[1:4])
    printed_alone, printed_both = FUSION_RAG["recovered_by_component"].values()
    adds = both[1] > guided[0]
    word = "adds to" if adds else "adds nothing that shows to" if both[2] >= guided[0] else "takes from"
    return (
        f"Of what reuse loses in F1, preparation wins back {prepared[0]:.0%}, question-guided rows {guided[0]:.0%} "
        f"(printed: {printed_alone:.0%}), both {both[0]:.0%} (printed: {printed_both:.0%}): preparation {word} the "
        "choice."
    )
