"""Re-encoding step by step: the channel pairs of one real key as rotating vectors."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.position_encoding import SCHEMES, KeyRotation
from workbench.plots.lines import rounding
from workbench.plots.masks import shown
from workbench.plots.theme import BLUE, FAINT, INK, MUTED, RED, RULE, finish, legend_over, panel_titles


def rotation(
    cached: np.ndarray, inv_freq: np.ndarray, distances: Sequence[int], moved: np.ndarray, *, pairs: Sequence[int],
    caption: str, notice: str, start: int = 0,
) -> go.Figure:  # fmt: skip
    """`cached` [P, 2] the chosen channel pairs of the key as cached; `moved` [N, P, 2] the same pairs computed in
    place at each
    of `distances` [N] (tokens); `inv_freq` [P] radians a token; `pairs` [P] their numbers; `start` index of the
    slider."""
    cached = cached / np.linalg.norm(cached, axis=-1, keepdims=True)
    moved = moved / np.linalg.norm(moved, axis=-1, keepdims=True)
    texts = [f"pair {p}: one turn per {2 * np.pi / w:,.0f} tokens" for p, w in zip(pairs, inv_freq, strict=True)]
    columns = min(3, len(pairs))
    lines = -(-len(pairs) // columns)
    fig = make_subplots(lines, columns, subplot_titles=texts, horizontal_spacing=0.05, vertical_spacing=0.1)
    spots = [(i // columns + 1, i % columns + 1) for i in range(len(pairs))]
    turning = []  # indices of the traces that a frame replaces
    for i, (row, col) in enumerate(spots):
        arc, arrow, ring = _moving(cached[i], inv_freq[i], distances[start], moved[start, i], first=i == 0)
        here = _arrow(cached[i], "as cached (what naive reuse keeps)", RED, i == 0)
        turning += [len(fig.data) + offset for offset in (1, 3, 4)]
        fig.add_traces([_circle(), arc, here, arrow, ring], rows=[row] * 5, cols=[col] * 5)
    fig.frames = [
        go.Frame(
            name=str(d), traces=turning,
            data=[t for i in range(len(pairs)) for t in _moving(cached[i], inv_freq[i], d, moved[n, i], first=i == 0)],
        )
        for n, d in enumerate(distances)
    ]  # fmt: skip
    side = {"range": [-1.12, 1.12], "showgrid": False, "showticklabels": False, "ticks": "", "showline": False}
    fig.update_xaxes(**side)
    fig.update_yaxes(**side)
    for end in range(len(pairs)):
        fig.update_layout({f"yaxis{end + 1 or ''}": {"scaleanchor": f"x{end + 1}"}})
    fig.update_layout(sliders=[_slider(distances, start)], legend=legend_over(270 * lines, 26, entrywidth=230))
    panel_titles(fig, 12)
    return finish(
        fig, title="A cached key turns to its place", notice=notice, caption=caption, height=270 * lines, above=66,
        below=104, left=24,
    )  # fmt: skip


def _circle() -> go.Scatter:
    angle = np.linspace(0, 2 * np.pi, 73)
    grey = {"color": RULE, "width": 1}
    return go.Scatter(x=np.cos(angle), y=np.sin(angle), mode="lines", line=grey, hoverinfo="skip", showlegend=False)


def _arrow(point: np.ndarray, name: str, colour: str, legend: bool, text: str = "") -> go.Scatter:
    angle = np.degrees(np.arctan2(point[1], point[0]))
    return go.Scatter(
        x=[0, point[0]], y=[0, point[1]], name=name, legendgroup=name, showlegend=legend, mode="lines+markers",
        line={"color": colour, "width": 3}, marker={"size": [0, 9], "opacity": 1},
        hovertemplate=f"<b>{name}</b><br>angle {angle:+.1f}°{text}<extra></extra>",
    )  # fmt: skip


def _moving(cached: np.ndarray, speed: float, distance: int, place: np.ndarray, first: bool) -> list[go.Scatter]:
    """The arc turned through, the re-encoded arrow, and the ring where the key computed in place lies."""
    angle = distance * speed
    begin = np.arctan2(cached[1], cached[0])
    sweep = begin + np.linspace(0, min(angle, 2 * np.pi), 60)
    end = np.array([np.cos(begin + angle), np.sin(begin + angle)])
    off = np.degrees(np.arccos(np.clip(end @ place, -1, 1)))
    turned = f"<br>turned {np.degrees(angle):,.1f}° = {distance} tokens × {np.degrees(speed):.4g}°"
    return [
        go.Scatter(x=0.55 * np.cos(sweep), y=0.55 * np.sin(sweep), mode="lines", line={"color": FAINT, "width": 10},
                   hoverinfo="skip", showlegend=False),
        _arrow(end, "moved: re-encoded", BLUE, first, turned),
        go.Scatter(
            x=[place[0]], y=[place[1]], mode="markers", name="computed in place", legendgroup="place", showlegend=first,
            marker={"size": 19, "symbol": "circle-open", "color": INK, "line": {"width": 2}},
            hovertemplate=f"<b>computed in place</b><br>{off:.2g}° from the moved key<extra></extra>",
        ),
    ]  # fmt: skip


def _slider(distances: Sequence[int], start: int) -> dict:
    play = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}, "transition": {"duration": 0}}
    return {
        "active": start, "x": 0.02, "len": 0.96, "y": 0, "yanchor": "top", "pad": {"t": 14, "b": 0},
        "currentvalue": {"prefix": "distance moved: ", "suffix": " tokens", "font": {"size": 13, "color": INK}},
        "font": {"size": 11, "color": MUTED}, "bordercolor": RULE, "bgcolor": FAINT, "tickcolor": RULE,
        "steps": [{"label": str(d), "method": "animate", "args": [[str(d)], play]} for d in distances],
    }  # fmt: skip


def rotating_key(rotated: KeyRotation, word: str, *, distance: int, about: str) -> go.Figure:
    """Draw the channel pairs of the key of the token `word`.

    The slider stands at the first distance of at least `distance` tokens.
    """
    later = [i for i, moved in enumerate(rotated.distances) if moved >= distance]
    return rotation(
        rotated.cached,
        rotated.inv_freq,
        rotated.distances,
        rotated.in_place,
        pairs=rotated.pairs,
        start=later[0] if later else len(rotated.distances) - 1,
        notice=f"{len(rotated.pairs)} channel pairs of the key of “{shown(word)}”. Move the slider: fast pairs spin, "
        "slow ones hardly move. The re-encoded key always lands in the ring where the model itself puts it.",
        caption=f"{about}. Red: encoded with its block at position 0. Ring: the model run with the block at that "
        "distance. Lengths normalised to 1, fp32.",
    )


def scheme_errors(records: Sequence[dict], at: Mapping[str, float], *, about: str) -> go.Figure:
    """Draw `metrics.position_encoding.shift_errors`; `at` quotes the error of every scheme at 1,024 tokens."""
    return rounding(
        records,
        SCHEMES,
        notice=f"One fp32 shift of a bf16 cache ({at['bf16 cache, fp32 shift']:.1e}) is about as exact as computing in "
        f"place in bf16 ({at['computed in place in bf16']:.1e}), at any distance. Chains of shifts add up. Keys that "
        "are not shifted are wrong by their own length.",
        caption=f"Relative L2 error against fp64 rotation over {about}. Every scheme hands bf16 keys on, but for the "
        "fp32 cache. Errors at 1,024 tokens are quoted. Hover explains the schemes.",
    )
