"""Position encoding of cached blocks: how a key is rotated to its new position."""

from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.kv.position_encoding import KeyRotation
from workbench.plots.marks.elements import frame_slider, frames
from workbench.plots.marks.theme import BLUE, INK, RED, RULE, FigureTexts, finish, legend_over, panel_titles


def rotation(rotated: KeyRotation, *, start: int = 0, **notes: Unpack[FigureTexts]) -> go.Figure:
    """Draw re-encoding: channel pairs of one real key as rotating vectors, one slider step per distance.

    The slider starts at distance index `start`.
    """
    pairs, inv_freq, distances = rotated.pairs, rotated.inv_freq, rotated.distances
    cached, moved = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (rotated.cached, rotated.in_place))
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
        here = _arrow(cached[i], "as cached (used by naive reuse)", RED, i == 0)
        replaced += [len(fig.data) + offset for offset in (1, 3, 4)]
        place = {"rows": [i // columns + 1] * 5, "cols": [i % columns + 1] * 5}
        fig.add_traces([circle, arc, here, arrow, ring], **place)
    pictures = {}
    for n, d in enumerate(distances):
        steps = [_at_distance(cached[i], inv_freq[i], d, moved[n, i], first=i == 0) for i in range(len(pairs))]
        pictures[str(d)] = [trace for step in steps for trace in step]
    fig.frames = frames(pictures, replaced)
    side = {"range": [-1.2, 1.2], "showgrid": False, "showticklabels": False, "ticks": "", "showline": False}
    fig.update_xaxes(**side)
    fig.update_yaxes(**side)
    for end in range(len(pairs)):
        fig.update_layout({f"yaxis{end + 1 or ''}": {"scaleanchor": f"x{end + 1}"}})
    value = {"prefix": "shifted by ", "suffix": " tokens", "font": {"size": 13, "color": INK}}
    height = (270 if lines == 1 else 180) * lines
    slider = frame_slider([str(d) for d in distances], start, pad=14, x=0.02, len=0.96, currentvalue=value)
    fig.update_layout(sliders=[slider], legend=legend_over(height, 26, entrywidth=200))
    panel_titles(fig, 12)
    title = "Rotation of a cached key to its new position"
    return finish(fig, title=title, height=height, above=66, below=104, left=24, **notes)


def _arrow(point: np.ndarray, name: str, colour: str, legend: bool, text: str = "") -> go.Scatter:
    angle = np.degrees(np.arctan2(point[1], point[0]))
    hover = f"<b>{name}</b><br>angle {angle:+z.1f}°{text}<extra></extra>"
    look = {"line": {"color": colour, "width": 3}, "marker": {"size": [0, 9], "opacity": 1}, "mode": "lines+markers"}
    ends = {"x": [0, point[0]], "y": [0, point[1]]}
    return go.Scatter(**ends, **look, name=name, legendgroup=name, showlegend=legend, hovertemplate=hover)


def _at_distance(cached: np.ndarray, speed: float, distance: int, place: np.ndarray, first: bool) -> list[go.Scatter]:
    """Return the arc rotated through, the re-encoded arrow, and the ring at the key computed in place."""
    angle = distance * speed
    begin = np.arctan2(cached[1], cached[0])
    sweep = begin + np.linspace(0, min(angle, 2 * np.pi), 60)
    end = np.array([np.cos(begin + angle), np.sin(begin + angle)])
    off = np.degrees(np.arccos(np.clip(end @ place, -1, 1)))
    text = f"<br>rotated by {np.degrees(angle):,.1f}° = {distance} tokens × {np.degrees(speed):.4g}°"
    look: dict[str, Any] = {"mode": "lines", "line": {"color": RULE, "width": 10, "simplify": False}}
    look |= {"hoverinfo": "skip", "name": "rotation by the shift", "legendgroup": "arc", "showlegend": first}
    ring = {"size": 19, "symbol": "circle-open", "color": INK, "line": {"width": 2}}
    name = "computed in place"
    hover = f"<b>{name}</b><br>{off:.2g}° from the shifted key<extra></extra>"
    computed = go.Scatter(x=[place[0]], y=[place[1]], mode="markers", name=name, marker=ring, hovertemplate=hover)
    return [
        go.Scatter(x=0.55 * np.cos(sweep), y=0.55 * np.sin(sweep), **look),
        _arrow(end, "shifted: re-encoded", BLUE, first, text),
        computed.update(legendgroup="place", showlegend=first),
    ]
