"""Export a model for plain transformers; shipped models may be stored in int8, or as a difference from a base."""

import shutil
from pathlib import Path

from workbench.core.errors import BadInput
from workbench.core.utils.files import folder_atomically
from workbench.models.checkpoints import COMPACT, DIFFERENCE, base_folder
from workbench.models.loading import load
from workbench.models.model_names import folder

LEFT_OUT = (COMPACT, DIFFERENCE, "model.safetensors", "adapter_model.safetensors", "adapter_config.json")


def write(name_or_path: str | Path, out: Path) -> Path:
    """Write a model to the new folder `out` as bf16 safetensors, with tokenizer, layout and card, and return `out`.

    Raises BadInput for an existing folder, and for a model that cannot be loaded.
    """
    if out.exists():
        raise BadInput(f"{out} is there already: a new folder is needed")
    source, model = folder(name_or_path), load(name_or_path, dtype="bfloat16").model
    files = {file.name: file for of in (base_folder(source), source) for file in of.iterdir() if file.is_file()}
    with folder_atomically(out) as partial:
        for name, file in files.items():
            if name not in LEFT_OUT and not name.endswith((".safetensors", ".index.json")):
                shutil.copy2(file, partial / name)
        model.save_pretrained(partial)
    return out
