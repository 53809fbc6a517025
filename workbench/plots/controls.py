"""Controls that work without a kernel: a slider over the layers, a menu over the heads."""

from collections.abc import Sequence

import numpy as np

from workbench.plots.theme import FAINT, INK, MUTED, PAPER, RULE


def layer_slider(layers: int | Sequence[int], active: int) -> dict:
    """A slider whose steps are frames named by layer; `active` counts the steps."""
    return frame_slider([str(at) for at in (range(layers) if isinstance(layers, int) else layers)], active, "layer ")


def frame_slider(labels: Sequence[str], active: int, prefix: str = "", spoken: bool = False, pad: int = 42) -> dict:
    """A slider whose steps are frames: named by their labels, or, where labels are sentences (`spoken`, only that of
    the current frame is shown), by their number."""
    play = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    font = {"size": 1, "color": PAPER} if spoken else {"size": 11, "color": MUTED}
    return {
        "active": active, "x": 0, "len": 1, "y": 0, "yanchor": "top", "pad": {"t": pad, "b": 0},
        "currentvalue": {"prefix": prefix, "font": {"size": 13, "color": INK}}, "font": font,
        "bordercolor": RULE, "bgcolor": FAINT, "tickcolor": RULE,
        "steps": [
            {"label": label, "method": "animate", "args": [[str(at) if spoken else label], play]}
            for at, label in enumerate(labels)
        ],
    }  # fmt: skip


def head_menu(heads: int, traces: int, height: int, layouts: Sequence[dict] = (), active: int = 0) -> dict:
    """A menu that shows the traces of one head; traces lie head by head, the mean over heads first;
    `layouts` is what else changes in the layout, per choice."""
    return choice_menu(["mean over heads", *(f"head {h}" for h in range(heads))], traces, height, layouts, active)


def choice_menu(
    labels: Sequence[str], traces: int, height: int, layouts: Sequence[dict] = (), active: int = 0, always: int = 0
) -> dict:
    """A menu that shows the traces of one choice; they lie choice by choice, and `always` more at the end stay."""
    steps = [
        {
            "label": label,
            "method": "update",
            "args": [
                {"visible": [at // traces == number for at in range(len(labels) * traces)] + [True] * always},
                layouts[number] if layouts else {},
            ],
        }
        for number, label in enumerate(labels)
    ]
    return {
        "buttons": steps, "active": active, "x": 1, "xanchor": "right", "y": 1 + 24 / height, "yanchor": "bottom",
        "bgcolor": PAPER, "bordercolor": RULE, "font": {"size": 12}, "pad": {"t": 0, "b": 0},
    }  # fmt: skip


def some(items: Sequence[int], wanted: int, most: int = 8) -> list[int]:
    """At most `most` of `items`, evenly spread, `wanted` among them: a figure carries a picture of each."""
    if len(items) <= most:
        return list(items)
    others = [items[round(i * (len(items) - 1) / (most - 2))] for i in range(most - 1)]
    return sorted({*others, wanted})


def of_head(mass: np.ndarray, layer: int, head: int) -> np.ndarray:
    """[T] float32; head 0 is the mean over heads, head h is head h - 1."""
    return (mass[layer].mean(0) if head == 0 else mass[layer, head - 1]).astype(np.float32)
