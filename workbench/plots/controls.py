"""Controls that work without a kernel: a slider over the layers, a menu over the heads."""

from collections.abc import Sequence

import numpy as np

from workbench.plots.theme import FAINT, INK, MUTED, RULE


def layer_slider(layers: int, active: int) -> dict:
    """A slider whose steps are frames named by layer."""
    play = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    return {
        "active": active, "x": 0, "len": 1, "y": 0, "yanchor": "top", "pad": {"t": 42, "b": 0},
        "currentvalue": {"prefix": "layer ", "font": {"size": 13, "color": INK}}, "font": {"size": 11, "color": MUTED},
        "bordercolor": RULE, "bgcolor": FAINT, "tickcolor": RULE,
        "steps": [{"label": str(at), "method": "animate", "args": [[str(at)], play]} for at in range(layers)],
    }  # fmt: skip


def head_menu(heads: int, traces: int, height: int, layouts: Sequence[dict] = (), active: int = 0) -> dict:
    """A menu that shows the traces of one head; traces lie head by head, the mean over heads first;
    `layouts` is what else changes in the layout, per choice."""
    steps = [
        {
            "label": "mean over heads" if head == 0 else f"head {head - 1}",
            "method": "update",
            "args": [
                {"visible": [at // traces == head for at in range((heads + 1) * traces)]},
                layouts[head] if layouts else {},
            ],
        }
        for head in range(heads + 1)
    ]
    return {
        "buttons": steps, "active": active, "x": 1, "xanchor": "right", "y": 1 + 24 / height, "yanchor": "bottom",
        "bgcolor": "#ffffff", "bordercolor": RULE, "font": {"size": 12}, "pad": {"t": 0, "b": 0},
    }  # fmt: skip


def of_head(mass: np.ndarray, layer: int, head: int) -> np.ndarray:
    """[T] float32; head 0 is the mean over heads, head h is head h - 1."""
    return (mass[layer].mean(0) if head == 0 else mass[layer, head - 1]).astype(np.float32)
