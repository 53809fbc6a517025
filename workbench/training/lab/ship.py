"""A finished lab model as it lies in the repository: the same files, its weights in few bits."""

import shutil
from pathlib import Path

from workbench import models
from workbench.core.errors import BadInput
from workbench.core.utils.files import folder_atomically
from workbench.models.weights import compact
from workbench.training.lab.checkpoint import CHOICE, SCORES, TRAINING, write_card
from workbench.training.lab.config import INT8, STORAGES

BESIDE = (TRAINING, SCORES, CHOICE, "workbench.json")


def ship(model: Path, out: Path, storage: str = "bfloat16") -> None:
    """Copy a finished lab model to `out` with its weights in another storage, and write its card.

    Raises BadInput for an unknown storage, and for a folder that `workbench lab train` did not write.
    """
    if storage not in STORAGES:
        raise BadInput(f"storage is {storage!r}: allowed are {', '.join(STORAGES)}")
    if not (model / TRAINING).is_file():
        raise BadInput(f"{model} has no {TRAINING}: only models of `workbench lab train` are shipped")
    weights = models.load(model, dtype=None if storage == INT8 else storage).model
    with folder_atomically(out) as partial:
        for file in model.iterdir():
            if file.name in BESIDE or file.name.startswith("tokenizer"):
                shutil.copy2(file, partial / file.name)
        if storage == INT8:
            compact.save(weights, partial)
        else:
            weights.save_pretrained(partial)
        write_card(partial, out.name)
