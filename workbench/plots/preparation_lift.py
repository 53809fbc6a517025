"""What preparation gives to reuse, and what it lacks: interventions of data/benchmarks/preparations.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.experiments.preparation_results import Kept, gains, kept
from workbench.plots.elements import interval
from workbench.plots.findings import joined
from workbench.plots.theme import BLUE, INK, RED, finish, panel_titles

LOOKS = {"all": (BLUE, "circle", "all questions"), "continuation": (RED, "diamond", "on continued passages")}
DOCUMENT = "behind_document"
__all__ = ["gains", "kept", "lift", "said"]


def lift(one: Kept) -> go.Figure:
    """Draw what every preparation adds to exact match, a panel a corpus."""
    rows = gains(one)
    corpora = list(dict.fromkeys(row["data"] for row in rows))
    fig = make_subplots(1, len(corpora), shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=corpora)
    for col, corpus in enumerate(corpora, 1):
        for kind, (colour, symbol, name) in LOOKS.items():
            own = [row for row in rows if (row["data"], row["kind"]) == (corpus, kind)]
            middle, low, high = ([100 * row[key] for row in own] for key in ("gain", "gain_low", "gain_high"))
            fig.add_scatter(
                x=middle,
                y=[row["name"] for row in own],
                error_x={**interval(middle, low, high), "color": INK},
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 9},
                name=name,
                showlegend=col == 1,
                customdata=[[row["n"], _found(row)] for row in own],
                hovertemplate="%{y}: %{x:+.1f} points, n = %{customdata[0]}<br>%{customdata[1]}<extra>"
                + name
                + "</extra>",
                row=1,
                col=col,
            )
        fig.add_vline(0, line={"color": INK, "width": 1, "dash": "dot"}, row=1, col=col)
    fig.update_xaxes(title_text="points of exact match")
    fig.update_yaxes(autorange="reversed")
    panel_titles(fig, 11)
    return finish(
        fig,
        title=f"What a preparation adds to reuse: {one['model']}",
        notice=said(one),
        caption=f"{one['samples']} questions over {one['passages']} passages a corpus, seed {one['seed']}, nothing "
        "recomputed; differences to blocks that saw the system prompt alone, question by question, with 95% bootstrap "
        f"intervals{_seeds(one)}. Corpora: switches of the lab; hints=0: second titles say nothing of the subject, "
        "titles=kept: all passages of a document bear its title. data/benchmarks/preparations.py.",
        height=34 * len({row["name"] for row in rows}) + 40,
        above=60,
        left=190,
        legend=26,
    )


def _seeds(one: Kept) -> str:
    seeds = one.get("training_seeds", 1)
    return f" over {seeds} training seeds and questions" if seeds > 1 else ""


def _found(row: Mapping[str, Any]) -> str:
    hits, count = row["found"]
    return f"the antecedent is among the passages before it for {hits} of {count}"


def said(one: Kept) -> str:
    """Say on the first corpus what similarity and the true antecedent give and why, and in short on the others."""
    rows = {(row["data"], row["prepare"]): row for row in gains(one) if row["kind"] == "all"}
    first, *others = ([row for (data, _), row in rows.items() if data == corpus] for corpus in _corpora(rows))
    parts = [f"{row['name']} {_points(row)}, antecedent before {row['found'][0]} of {row['found'][1]}" for row in first]
    return " ".join([f"{first[0]['data']}: {'; '.join(parts)}.", why(first), *map(in_short, others)])


def _corpora(rows: Mapping[tuple[str, str], Any]) -> list[str]:
    return list(dict.fromkeys(corpus for corpus, _ in rows))


def in_short(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say of one corpus what the embedder that finds most antecedents gives, and what the true document gives."""
    similar = [row for row in rows if row["prepare"] != DOCUMENT]
    best = max(similar, key=lambda row: row["found"][0], default=None)
    parts = [f"{best['name']} (antecedent of {_share(best):.0%}) {_points(best)}"] if best else []
    parts += [f"{row['name']} {_points(row)}" for row in rows if row["prepare"] == DOCUMENT]
    return f"{rows[0]['data']}: {', '.join(parts)}."


def _share(row: Mapping[str, Any]) -> float:
    return float(row["found"][0] / max(1, row["found"][1]))


def _points(row: Mapping[str, Any]) -> str:
    low, high = (100 * row[key] for key in ("gain_low", "gain_high"))
    return f"{100 * row['gain']:+z.1f} points [{low:+z.1f}, {high:+z.1f}]"


def why(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say why preparation behind similar passages lifts reuse in the lab, or why it does not."""
    document = next((row for row in rows if row["prepare"] == DOCUMENT), None)
    similar = [row for row in rows if row["prepare"] != DOCUMENT]
    if document is None or not similar:
        return "One of the preparations is not measured."
    lifting = [row["name"] for row in similar if row["gain_low"] > 0]
    if lifting:
        return f"{joined(lifting)} lift reuse here, as FusionRAG says."
    if document["gain_low"] <= 0:
        return "The true antecedent lifts nothing either: what reuse loses here lies elsewhere."
    most = max(map(_share, similar))
    if most < 0.5:
        return (
            "Preparation lifts where it holds what a passage lacks, and similarity finds that for "
            f"{most:.0%} of them at most: this is why the lab contradicts FusionRAG's figure 16."
        )
    return f"Similarity finds the antecedent of up to {most:.0%}, and yet lifts nothing: other passages weigh more."
