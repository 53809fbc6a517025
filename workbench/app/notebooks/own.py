"""A user's own policies from source text, and notes on models other than the lab models."""

import sys
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from types import ModuleType

from workbench import models
from workbench.app.notebooks import told
from workbench.core.errors import BadInput
from workbench.data import assets
from workbench.experiments.trials.trial import Trial
from workbench.methods.select import Select
from workbench.models import checkpoints, pretrained

LAB = "lab"  # the corpus of generated text; models trained on it are named after it


def is_lab(model: str) -> bool:
    """Return whether `model` is the name of a shipped model that was trained on the lab corpus."""
    return model.startswith(f"{LAB}-") and model in assets.models()


def tuned_version(model: str) -> str:
    """Name the shipped version of `model` after block fine-tuning, e.g. lab-block of lab-full; without one, `model`."""
    name = f"{model.removesuffix('-full')}-block"
    return name if name in assets.models() else model


def notice(model: str, data: str = "", tuned: str = "") -> None:
    """Show a note on `model` and its questions in the line of parameters; none for a lab model.

    `data` is the notebook's data, `tuned` the model after block fine-tuning, if the notebook has one.
    """
    if is_lab(model):
        return

    said = [models.note_of(model)]
    if data == LAB:
        said.append("The lab corpus is about invented people and places: the model has to read the passages.")
    if tuned == model:
        said.append("No block-fine-tuned version is given, so the model itself is used in its place.")
    told.add(remark=" ".join(filter(None, said)))


def from_source(source: str, name: str) -> type:
    """Return the policy of a file `name`.py with this text: its dataclass, named like the file.

    The text is executed, so it must be trusted. Raises BadInput if it is not Python, or has no dataclass of that name.
    """
    wanted = name.title().replace("_", "")
    if not name.isidentifier():
        raise BadInput(f"{name!r} is no name of a file of Python: allowed are letters, digits and underscores")
    module = ModuleType(f"own_{name}", source)
    sys.modules[module.__name__] = module  # dataclasses read annotations there
    try:
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    except SyntaxError as problem:
        raise BadInput(f"{name}.py, line {problem.lineno}: {problem.msg}") from None
    found = getattr(module, wanted, None)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise BadInput(f"{name}.py holds no dataclass {wanted}: a file's policy carries the name of the file")
    return found


def selector(source: str, name: str) -> Select:
    """Return a selector from its source text, with its defaults. Raises BadInput if the class is not a Select."""
    policy = from_source(source, name)
    if not issubclass(policy, Select):
        raise BadInput(f"{policy.__name__} is no selector: let it inherit from workbench.methods.select.Select")
    return policy()


def fetch_note(model: str) -> str:
    """Return a note on a model whose weights, or whose base's, must be fetched first; else ""."""
    base = checkpoints.base_name(model)
    if base not in pretrained.CATALOGUE:
        return ""
    try:
        pretrained.folder(base)
    except BadInput as problem:
        return f"{str(problem)[0].upper()}{str(problem)[1:]}. Until then, this notebook shows stored results only."
    return ""


def is_tuned(tuned: str, model: str) -> bool:
    """Return whether `tuned` is a shipped adapter over the same base as `model`, or over `model`."""
    base = checkpoints.base_name(tuned)
    return tuned != model and base != tuned and base == checkpoints.base_name(model)


def compared(base: Trial, neighbours: int, selectors: Sequence[str], ratio: float) -> list[Trial]:
    """Return full attention, three preprocessings, every selector over Full Reuse and the last over neighbours."""
    similar = f"with_neighbours(n={neighbours})"
    reuse = [replace(base, mode="block", prepare=each) for each in ("independent", "after_system", similar)]
    chosen = [replace(reuse[1], select=each, ratio=ratio) for each in selectors]
    return [base, *reuse, *chosen, *(replace(one, prepare=similar) for one in chosen[-1:])]
