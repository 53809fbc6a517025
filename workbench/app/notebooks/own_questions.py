"""What a notebook asks a model here and now: whether the model is at hand, and the methods that are compared."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from workbench import models
from workbench.core.errors import BadInput
from workbench.data.layouts import Layout
from workbench.data.retrieval_corpus import Corpus
from workbench.methods import Method
from workbench.methods.config import MethodConfig
from workbench.models import checkpoints, pretrained
from workbench.models.weights import adapters
from workbench.plots.marks.method_names import named


def absent(model: str) -> str:
    """Return what to say of a model that can be fetched and is not there yet; "" for any other."""
    if model not in pretrained.CATALOGUE:
        return ""
    try:
        pretrained.folder(model)
    except BadInput as problem:
        return f"{str(problem)[0].upper()}{str(problem)[1:]}. Until then this notebook shows results that were read."
    return ""


def is_tuned(tuned: str, model: str) -> bool:
    """Return whether `tuned` is a shipped adapter of `model`."""
    path = models.folder(tuned) if tuned in models.names() else None
    return path is not None and adapters.is_adapter(path) and checkpoints.adapter_of(path).base == model


def compared(corpus: Corpus, neighbours: int, selectors: Sequence[str], ratio: float) -> dict[str, MethodConfig]:
    """Return full attention, three preparations, every selector over Full Reuse and the last over neighbours."""
    similar = f"with_neighbours(n={min(neighbours, len(corpus) - 1)})"
    configs = [MethodConfig()]
    configs += [MethodConfig(mode="block", prepare=prepare) for prepare in ("independent", "after_system", similar)]
    configs += [MethodConfig(mode="block", prepare="after_system", select=each, ratio=ratio) for each in selectors]
    configs += [MethodConfig(mode="block", prepare=similar, select=each, ratio=ratio) for each in selectors[-1:]]
    return dict(zip(named(pd.DataFrame(map(asdict, configs))).name, configs, strict=True))


def ready(configs: dict[str, MethodConfig], corpus: Corpus, layout: Layout) -> dict[str, Method]:
    """Return the methods themselves, over one corpus."""
    return {name: config.method(corpus, system=bool(layout.system)) for name, config in configs.items()}
