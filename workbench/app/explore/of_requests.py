"""Where the time to the first token of one's own prompt goes, at any share of it that is cached or recomputed."""

from ipywidgets import VBox

from workbench.app.explore.given import Given, Model, loaded_of, reading_of
from workbench.app.explore.panels.latency import request_explorer


def latency(model: Model, prompt: Given, question: str = "", repeats: int = 3) -> VBox:
    """Explore the time to the first token of a prompt by stage.

    Under full attention, with its blocks cached in part or in whole, and with some of its tokens recomputed. Measured
    now, on the device of the model.
    """
    loaded = loaded_of(model)
    return request_explorer(loaded, reading_of(loaded, prompt, question).prompt, repeats)
