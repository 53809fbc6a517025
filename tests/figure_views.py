"""A small prompt to draw, and what a figure says."""

import plotly.graph_objects as go

from tests.random_models import prompt_of
from workbench.core.blocks import Prompt
from workbench.data.prompt_view import PromptView
from workbench.plots.marks.theme import TEMPLATE, WIDTH

PROMPT = prompt_of(3, 5, 4)


def view_of(prompt: Prompt = PROMPT, answers: tuple[str, ...] = ("Wilby",), supporting: tuple[int, ...] = (1,)):
    pieces = tuple(f"piece {i}" for i in range(len(prompt.blocks)))
    tokens = [f"t{i}" for i in range(len(prompt))]
    return PromptView(prompt, tokens, "sample 1 of lab", "Where is Ada?", answers, supporting, pieces)


def check(fig: go.Figure, said: dict[str, str], *, noticed: bool = True) -> str:
    """What every figure keeps: the template, a fixed size, its three texts, and JSON without 16-bit floats."""
    assert fig.layout.template == TEMPLATE and fig.data
    assert fig.layout.width == WIDTH and fig.layout.height > 100
    told = [note.text for note in fig.layout.annotations]
    assert any(text.startswith("<b>") for text in told)
    assert said["caption"] in told and (said["notice"] in told) == noticed
    text = fig.to_json()
    assert '"f2"' not in text
    return text


def texts(fig: go.Figure) -> str:
    """All texts around a figure, as one line."""
    return " ".join(note.text for note in fig.layout.annotations).replace("<br>", " ")


def rows(fig: go.Figure) -> list[tuple[str, ...]]:
    """The rows of a table."""
    return list(zip(*fig.data[0].cells["values"], strict=True))
