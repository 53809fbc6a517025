"""Answer quality by kind of question, with 95% intervals."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from workbench.experiments.record import Record
from workbench.plots.theme import MODE_NAMES, MODE_SYMBOLS, MODES, MUTED, RULE, finish, legend_over, with_title

SCORES = {"em": "exact match", "f1": "F1"}
ORDER = ("all", "single-hop", "continuation", "two-hop", "comparison", "order")  # other kinds follow


def quality(records: Sequence[dict], *, caption: str, notice: str) -> go.Figure:
    """`records`: {mode, kind, n, em, em_low, em_high, f1, f1_low, f1_high}; a menu switches between the two scores."""
    found = {r["kind"]: None for r in records}
    kinds = [kind for kind in ORDER if kind in found] + [kind for kind in found if kind not in ORDER]
    modes = list(dict.fromkeys(r["mode"] for r in records))
    counts = {r["kind"]: r["n"] for r in records}
    fig = go.Figure()
    for score in SCORES:
        for index, mode in enumerate(modes):
            rows = [r for kind in kinds for r in records if (r["mode"], r["kind"]) == (mode, kind)]
            fig.add_scatter(
                x=[kinds.index(r["kind"]) + (index - (len(modes) - 1) / 2) * 0.2 for r in rows],
                y=[r[score] for r in rows],
                error_y={
                    "array": [r[f"{score}_high"] - r[score] for r in rows],
                    "thickness": 2,
                    "width": 5,
                    "arrayminus": [r[score] - r[f"{score}_low"] for r in rows],
                },
                name=MODE_NAMES[mode],
                mode="markers",
                visible=score == "em",
                marker={"color": MODES[mode], "symbol": MODE_SYMBOLS[mode], "size": 11},
                customdata=[[r["kind"], r["n"], r[f"{score}_low"], r[f"{score}_high"]] for r in rows],
                hovertemplate="<b>%{customdata[0]}</b>: "
                + SCORES[score]
                + " %{y:.1%}<br>95% interval %{customdata[2]:.1%} to "
                "%{customdata[3]:.1%}, n = %{customdata[1]}<extra>" + MODE_NAMES[mode] + "</extra>",
            )
    for edge in range(len(kinds) - 1):
        fig.add_vline(edge + 0.5, line={"color": RULE, "width": 0.7})
    fig.update_xaxes(
        tickvals=list(range(len(kinds))),
        ticktext=[f"{kind}<br>n = {counts[kind]}" for kind in kinds],
        showgrid=False,
        range=[-0.5, len(kinds) - 0.5],
        ticks="",
        tickfont={"size": 12},
    )
    fig.update_yaxes(with_title("exact match", tickformat=".0%", range=[-0.03, 1.03], dtick=0.2))
    buttons = [
        {"label": label, "method": "update",
         "args": [{"visible": [s == score for s in SCORES for _ in modes]}, {"yaxis.title.text": label}]}
        for score, label in SCORES.items()
    ]  # fmt: skip
    menu = {
        "type": "buttons",
        "direction": "right",
        "buttons": buttons,
        "x": 1,
        "xanchor": "right",
        "y": 1 + 6 / 340,
        "yanchor": "bottom",
        "bgcolor": "#ffffff",
        "bordercolor": RULE,
        "font": {"color": MUTED},
        "pad": {"t": 0, "b": 0},
    }
    fig.update_layout(updatemenus=[menu], legend=legend_over(340, 8))
    return finish(
        fig, title="How well the model answers", notice=notice, caption=caption, height=340, above=48, below=56,
    )  # fmt: skip


def reuse_quality(records: Mapping[str, Record], *, about: str) -> go.Figure:
    """Draw the scores of trials with full attention, blocks and naive positions ("full", "block", "naive")."""
    return quality(
        [row for record in records.values() for row in record.rows()],
        notice=f"Reuse without fine-tuning answers {records['block'].em:.0%} where full attention answers "
        f"{records['full'].em:.0%}; naive positions leave {records['naive'].em:.0%}. Compare the kinds that lean on "
        "more than one passage.",
        caption=f"{about}, greedy decoding. Exact match and F1 after SQuAD's normalisation, best over aliases. Bars "
        f"are 95% intervals (Wilson's for exact match, bootstrap for F1). {records['full'].device}.",
    )
