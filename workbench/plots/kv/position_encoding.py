"""Position encoding of cached blocks: a key that rotates to its place, and how exact shifted blocks are.

And how far reused keys and values drift from full attention, with re-encoded and with naive positions.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.kv.position_encoding import SCHEMES, TOLERANCE, KeyRotation
from workbench.plots.attention.masks import shown
from workbench.plots.marks.bars import Column, dots
from workbench.plots.marks.elements import frame_slider, frames
from workbench.plots.marks.lines import Panel, Series, line_chart, rounding
from workbench.plots.marks.styles import MODES, Look
from workbench.plots.marks.table import table
from workbench.plots.marks.theme import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    ORANGE,
    RED,
    RULE,
    Notes,
    Texts,
    finish,
    legend_over,
    panel_titles,
)


def rotation(
    cached: np.ndarray,
    inv_freq: np.ndarray,
    distances: Sequence[int],
    moved: np.ndarray,
    *,
    pairs: Sequence[int],
    start: int = 0,
    **notes: Unpack[Notes],
) -> go.Figure:
    """Draw re-encoding step by step: the channel pairs of one real key as rotating vectors.

    cached      [P, 2] the chosen channel pairs of the key as cached
    inv_freq    [P] radians a token
    distances   [N] tokens, the steps of a slider that begins at number `start`
    moved       [N, P, 2] the same pairs computed in place at each distance
    pairs       [P] numbers of the channel pairs
    """
    cached = cached / np.linalg.norm(cached, axis=-1, keepdims=True)
    moved = moved / np.linalg.norm(moved, axis=-1, keepdims=True)
    texts = [f"pair {p}: one turn per {2 * np.pi / w:,.0f} tokens" for p, w in zip(pairs, inv_freq, strict=True)]
    columns = min(3, len(pairs))
    lines = -(-len(pairs) // columns)
    fig = make_subplots(lines, columns, subplot_titles=texts, horizontal_spacing=0.05, vertical_spacing=0.1)
    angle = np.linspace(0, 2 * np.pi, 73)
    grey = {"mode": "lines", "line": {"color": RULE, "width": 1}, "hoverinfo": "skip", "showlegend": False}
    circle = go.Scatter(x=np.cos(angle), y=np.sin(angle), **grey)
    replaced = []  # indices of the traces that a frame replaces
    for i in range(len(pairs)):
        arc, arrow, ring = _at_distance(cached[i], inv_freq[i], distances[start], moved[start, i], first=i == 0)
        here = _arrow(cached[i], "as cached (what naive reuse keeps)", RED, i == 0)
        replaced += [len(fig.data) + offset for offset in (1, 3, 4)]
        place = {"rows": [i // columns + 1] * 5, "cols": [i % columns + 1] * 5}
        fig.add_traces([circle, arc, here, arrow, ring], **place)
    pictures = {}
    for n, d in enumerate(distances):
        steps = [_at_distance(cached[i], inv_freq[i], d, moved[n, i], first=i == 0) for i in range(len(pairs))]
        pictures[str(d)] = [trace for step in steps for trace in step]
    fig.frames = frames(pictures, replaced)
    side = {"range": [-1.12, 1.12], "showgrid": False, "showticklabels": False, "ticks": "", "showline": False}
    fig.update_xaxes(**side)
    fig.update_yaxes(**side)
    for end in range(len(pairs)):
        fig.update_layout({f"yaxis{end + 1 or ''}": {"scaleanchor": f"x{end + 1}"}})
    value = {"prefix": "shifted by ", "suffix": " tokens", "font": {"size": 13, "color": INK}}
    slider = frame_slider([str(d) for d in distances], start, pad=14, x=0.02, len=0.96, currentvalue=value)
    fig.update_layout(sliders=[slider], legend=legend_over(270 * lines, 26, entrywidth=230))
    panel_titles(fig, 12)
    title = "A cached key rotates to its place"
    return finish(fig, title=title, height=270 * lines, above=66, below=104, left=24, **notes)


def _arrow(point: np.ndarray, name: str, colour: str, legend: bool, text: str = "") -> go.Scatter:
    angle = np.degrees(np.arctan2(point[1], point[0]))
    hover = f"<b>{name}</b><br>angle {angle:+z.1f}°{text}<extra></extra>"
    look = {"line": {"color": colour, "width": 3}, "marker": {"size": [0, 9], "opacity": 1}, "mode": "lines+markers"}
    ends = {"x": [0, point[0]], "y": [0, point[1]]}
    return go.Scatter(**ends, **look, name=name, legendgroup=name, showlegend=legend, hovertemplate=hover)


def _at_distance(cached: np.ndarray, speed: float, distance: int, place: np.ndarray, first: bool) -> list[go.Scatter]:
    """Return the arc rotated through, the re-encoded arrow, and the ring where the key computed in place lies."""
    angle = distance * speed
    begin = np.arctan2(cached[1], cached[0])
    sweep = begin + np.linspace(0, min(angle, 2 * np.pi), 60)
    end = np.array([np.cos(begin + angle), np.sin(begin + angle)])
    off = np.degrees(np.arccos(np.clip(end @ place, -1, 1)))
    text = f"<br>rotated by {np.degrees(angle):,.1f}° = {distance} tokens × {np.degrees(speed):.4g}°"
    look = {"mode": "lines", "line": {"color": FAINT, "width": 10}, "hoverinfo": "skip", "showlegend": False}
    ring = {"size": 19, "symbol": "circle-open", "color": INK, "line": {"width": 2}}
    name = "computed in place"
    hover = f"<b>{name}</b><br>{off:.2g}° from the moved key<extra></extra>"
    computed = go.Scatter(x=[place[0]], y=[place[1]], mode="markers", name=name, marker=ring, hovertemplate=hover)
    return [
        go.Scatter(x=0.55 * np.cos(sweep), y=0.55 * np.sin(sweep), **look),
        _arrow(end, "shifted: re-encoded", BLUE, first, text),
        computed.update(legendgroup="place", showlegend=first),
    ]


def rotation_of(rotated: KeyRotation, *, start: int = 0, **notes: Unpack[Notes]) -> go.Figure:
    """Draw a measured rotation; the slider begins at distance number `start`."""
    cached, in_place = rotated.cached, rotated.in_place
    return rotation(cached, rotated.inv_freq, rotated.distances, in_place, pairs=rotated.pairs, start=start, **notes)


def rotating_key(rotated: KeyRotation, word: str, *, distance: int, about: str) -> go.Figure:
    """Draw channel pairs of the key of the token `word`; the slider stands at the first of at least `distance`."""
    later = [i for i, moved in enumerate(rotated.distances) if moved >= distance]
    return rotation_of(
        rotated,
        start=later[0] if later else len(rotated.distances) - 1,
        caption=f"{len(rotated.pairs)} channel pairs of the key of “{shown(word)}”; the slider moves it. {about}. As "
        "cached: encoded with its block at position 0. Ring: the model run with the block at that distance. Lengths "
        "normalised to 1, fp32.",
    )


def scheme_errors(records: Sequence[dict[str, Any]], *, about: str) -> go.Figure:
    """Draw `metrics.kv.position_encoding.shift_errors`."""
    return rounding(
        records,
        SCHEMES,
        caption=f"Relative L2 error against fp64 rotation over {about}. Every scheme hands bf16 keys on, but for the "
        "fp32 cache. Hover explains the schemes.",
    )


DIFFERENCES = {
    "keys": Look(BLUE, name="largest difference in keys"),
    "values": Look(ORANGE, "square", name="in values"),
    "logits": Look(INK, "diamond", name="in the question's logits"),
    "naive": Look(RED, "x", name="in the logits with naive positions"),
}


def exactness(records: Sequence[dict[str, Any]], tolerance: float, **notes: Unpack[Notes]) -> go.Figure:
    """Draw cached and moved blocks against blocks computed in place, for every supported family.

    `records`: {family, keys, values, logits (largest absolute differences), naive (same for the logits, keys not
    moved)}; an exact zero is drawn at 1e-9, the tolerance as a dotted line.
    """
    shown = [(r["family"], key, max(r[key], 1e-9)) for r in records for key in DIFFERENCES]
    rows = [{"name": name, "series": key, "mean": x, "low": x, "high": x} for name, key, x in shown]
    column = Column("", "largest absolute difference (fp32)", rows, log=True)
    texts: Texts = {**notes, "title": "Moved blocks beside blocks computed in place"}
    fig = dots([column], DIFFERENCES, **texts)
    return fig.add_vline(tolerance, line={"color": MUTED, "dash": "dot", "width": 1})


def family_differences(records: Sequence[dict[str, Any]], *, seed: int, device: str) -> go.Figure:
    """Draw `metrics.kv.position_encoding.exactness` of every family against the tolerance of the tests."""
    return exactness(
        records,
        TOLERANCE,
        caption="Random models of the real architectures in miniature (3 layers, 64 wide), 8 blocks of 12 tokens and a "
        f"question of 12, shifted by up to {records[0]['distance']} tokens; fp32, seed {seed}, {device}. Dotted: the "
        f"tolerance of the tests, {TOLERANCE:.0e}.",
    )


def family_table(records: Sequence[dict[str, Any]]) -> go.Figure:
    """Draw the same differences as a table; the last columns are of naive positions."""
    fields = ("keys", "values", "logits", "naive")
    return table(
        ["family", "keys", "values", "logits", "logits, naive", "naive / shifted"],
        [
            [r["family"], *(f"{r[field]:.1e}" for field in fields), f"{r['naive'] / max(r['logits'], 1e-9):,.0f} ×"]
            for r in records
        ],
        widths=[1.6, 1, 1, 1, 1.1, 1],
        title="Largest absolute differences",
        caption="Shifted against computed in place; the last columns leave the keys where they were cached. The "
        f"tolerance of the tests is {TOLERANCE:.0e}.",
    )


POSITIONS = {"block": "re-encoded", "naive": "naive"}  # of keys, by mode


def positions_drift(records: Sequence[dict[str, Any]], logits: Sequence[dict[str, Any]], *, about: str) -> go.Figure:
    """Draw the drift of the question's own keys and values by layer, and of its next-token distribution.

    `records`: {mode, layer, error: relative L2 distance to full attention per sample}; `logits`: {mode, kl (nats per
    sample), agree (share of samples whose first token is the one of full attention), low, high (95% interval of
    agree)}.
    """
    drift, kl, same = list[Series](), list[Series](), list[Series]()
    for mode in dict.fromkeys(r["mode"] for r in records):
        look, rows = MODES[mode], [r for r in records if r["mode"] == mode]
        errors = np.array([r["error"] for r in rows])
        mean, low, high = (each.tolist() for each in (errors.mean(1), *np.quantile(errors, [0.25, 0.75], axis=1)))
        hover = "layer %{x}: %{y:.3f} of the norm"
        drift.append(Series(look.name, [r["layer"] for r in rows], mean, low, high, hover, look=look))
    for r in logits:
        look, x = MODES[r["mode"]], POSITIONS[r["mode"]]
        dots: dict[str, Any] = {"look": look, "mode": "markers"}
        kl.append(
            Series(look.name, [x] * len(r["kl"]), np.maximum(r["kl"], 1e-6).tolist(), hover="%{y:.3g} nats", **dots)
        )
        ends = [r["agree"]], [r["low"]], [r["high"]]
        same.append(Series(look.name, [x], *ends, "%{y:.1%} of samples", size=11, **dots))
    powers = {"type": "log", "exponentformat": "power", "dtick": 1}
    across = {"range": [-0.6, 1.6]}
    return line_chart(
        [
            Panel("drift of keys and values", drift, {"title_text": "layer", "dtick": 1}, {"rangemode": "tozero"}),
            Panel("KL from full attention (nats)", kl, across, powers),
            Panel("same first token", same, across, {"tickformat": ".0%", "range": [-0.04, 1.04]}),
        ],
        bars=True,
        title="What naive positions do to the question",
        caption=f"{about}. Left: mean and quartiles over prompts of the relative L2 distance of the question's keys "
        "and values to full attention's. Middle: a mark a prompt. Right: 95% Wilson intervals. fp32.",
    )
