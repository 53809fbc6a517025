"""What a notebook says and chooses when its model is another than the lab models."""

from collections.abc import Sequence

from IPython.display import Markdown

from workbench.data import assets

LAB = "lab"  # the corpus of generated text; models trained on it are named after it


def is_lab(model: str) -> bool:
    """Return whether `model` is the name of a shipped model that was trained on the lab corpus."""
    return model.startswith(f"{LAB}-") and model in assets.models()


def tuned_version(model: str) -> str:
    """Name the shipped version of `model` after block fine-tuning, e.g. lab-block of lab-full; without one, `model`."""
    name = f"{model.removesuffix('-full')}-block"
    return name if name in assets.models() else model


def notice(model: str, data: str = "", measured: Sequence[str] = (), tuned: str = "") -> Markdown | None:
    """Say what a reader has to know of `model` and of the questions it is asked; None of a lab model.

    `data` is what the notebook asks about, `measured` the sections that show what was measured once on the lab models,
    and `tuned` the model after block fine-tuning, where the notebook has one.
    """
    if is_lab(model):
        return None
    from workbench import models  # waits for torch

    said = [f"**{model}** is the model here. {models.note_of(model)}".rstrip()]
    if data == LAB:
        said.append("It is asked about people and places of the lab corpus, which are made up: it has to read them.")
    if measured:
        said.append(f"Measured once on the lab models, and not on this one: {_listed(measured)}.")
    if tuned == model:
        said.append("No version of it after block fine-tuning is given: it stands in that place itself.")
    return Markdown(" ".join(said))


def _listed(names: Sequence[str]) -> str:
    return "; ".join(f"*{name}*" for name in names)
