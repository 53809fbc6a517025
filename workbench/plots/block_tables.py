"""Block-Attention's printed tables beside ours: its first version, general and in-context tasks, states of a game."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import beyond_rag
from workbench.metrics.answers import Records
from workbench.metrics.published_numbers import BLOCK_V1_TABLE_1, BLOCK_V2_GENERAL, BLOCK_V2_TEXT
from workbench.plots.findings import compared, joined
from workbench.plots.table import table

NO_FILE = "Not measured yet: python data/benchmarks/beyond_rag.py"
STATES = {"game": "a card game", "frames": "a lab world"}


def first_version(measured: Mapping[str, Any]) -> go.Figure:
    """Tabulate table 1 of the first version beside the scores of the results file `block-attention`."""
    ours = {name: f"{entry['record']['em'] * 100:.1f}" for name, entry in measured["methods"].items()}
    rows: list[list[str]] = []
    groups: list[int] = []
    losses: dict[str, tuple[float, float]] = {}
    for model, methods in BLOCK_V1_TABLE_1["accuracy"].items():
        groups.append(len(rows))
        rows.append([model, *[""] * (1 + len(BLOCK_V1_TABLE_1["data"]))])
        rows += [[name, ours.get(name, "–"), *(f"{x:.1f}" for x in values)] for name, values in methods.items()]
        full, without, tuned = (values[-1] for values in methods.values())
        losses[model] = (without - full, tuned - full)
    said = [f"{name} {before:+z.1f} untuned, {after:+z.1f} tuned" for name, (before, after) in losses.items()]
    return table(
        ["method", "lab (ours)", *BLOCK_V1_TABLE_1["data"]],
        rows,
        groups=groups,
        widths=[2.2, 1, 1, 1.5, 1.5, 1, 0.9],
        title="The first version's table 1, and ours",
        notice=f"Against full attention, averages in points: {joined(said)}; {own_losses(measured)}.",
        caption=f"Published: {BLOCK_V1_TABLE_1['source']}; averages over questions. Ours: exact match in percent, "
        f"n = {measured['samples']:,}, of the small lab model on invented facts.",
    )


def own_losses(measured: Mapping[str, Any]) -> str:
    """Say our points against full attention, untuned and tuned."""
    em = {name: 100 * entry["record"]["em"] for name, entry in measured["methods"].items()}
    full, names = em["full attention"], ("block, not fine-tuned", "block fine-tuned")
    before, after = (em[name] - full for name in names)
    return f"the lab {before:+z.1f} untuned, {after:+z.1f} tuned"


def general_tasks() -> go.Figure:
    """Tabulate the printed general and in-context tasks beside in-context answers to lab questions."""
    data, shots = BLOCK_V2_GENERAL["data"], BLOCK_V2_GENERAL["shots"]
    own = beyond_rag.rows("demonstrations")
    lab = next((row for row in own if row["model"] == "lab-block"), None)
    ours = {"full attention": f"{lab['full']:.1%}", "block fine-tuned": f"{lab['block']:.1%}"} if lab else {}
    rows = [
        [name, ours.get(name, "–"), *(f"{x:.1f}" for x in values)]
        for name, values in BLOCK_V2_GENERAL["accuracy"].items()
    ]
    heads = [f"{name}, {count} shots" if count else name for name, count in zip(data, shots, strict=True)]
    return table(
        ["method", "lab, 4 shots (ours)", *heads],
        rows,
        widths=[2.2, 1.2, *[1.05] * len(data)],
        title="General and in-context tasks (Block-Attention, table 2)",
        notice=said(own, "in-context learning") if own else NO_FILE,
        caption=f"Published: {BLOCK_V2_GENERAL['source']}. Ours: a question behind demonstrations, each a block of a "
        "passage, its question and its answer, under full attention of the tuned model and over blocks; exact match. "
        "The printed benchmarks ask for an instruction-tuned model of billions of parameters. "
        "data/benchmarks/beyond_rag.py.",
    )


def game_equality() -> go.Figure | None:
    """Tabulate answers about states of a game and of a lab world in both modes; None where none were measured."""
    by_task = {states: beyond_rag.rows(task) for task, states in STATES.items()}
    if not any(by_task.values()):
        return None
    texts = BLOCK_V2_TEXT
    cells = [
        [row["model"], states, f"{row['n']:,}", *(f"{row[x]:.1%}" for x in ("full", "block", "equal"))]
        for states, rows in by_task.items()
        for row in rows
    ]
    return table(
        ["model", "states of", "n", "full attention", "blocks", "same tokens in both"],
        cells,
        widths=[1.6, 1.4, 0.7, 1.2, 1, 1.5],
        title="Answers about states of a game (Block-Attention, appendix A)",
        notice=" ".join(said(rows, f"states of {states}") for states, rows in by_task.items() if rows),
        caption="Right answers about successive states of one table of cards, every leaf group a block, and of lab "
        "worlds in which one fact changes from state to state, every passage a block; no model was tuned on either. "
        f"{texts['source']}: the same accuracy as full attention, printed without a number. "
        "data/benchmarks/beyond_rag.py.",
    )


def said(rows: Records, what: str) -> str:
    """Say for every model how blocks compare with full attention, or that it answers too few for that."""
    texts = []
    for row in rows:
        if row["tells"]:
            difference = compared("blocks", "full attention", row["gap"], (row["low"], row["high"]))
            texts.append(f"{row['model']}: {difference}, {row['equal']:.0%} of the answers the same.")
        else:
            texts.append(
                f"{row['model']} answers {row['full']:.0%} under full attention, too few to compare; "
                f"{row['equal']:.0%} of its answers are the same over blocks."
            )
    return f"{what.capitalize()}. {' '.join(texts)}"
