"""Write a trained lab model as a folder in Hugging Face format, and copy it with smaller weights for shipping."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench import models
from workbench.core.errors import BadInput
from workbench.core.utils.files import folder_atomically
from workbench.data.layouts import LAB
from workbench.models.checkpoints import COMPACT
from workbench.models.weights import compact
from workbench.training import checkpoint
from workbench.training.checkpoint import curve_table, save_beside_weights, settings
from workbench.training.lab.config import INT8, STORAGES, PretrainConfig
from workbench.training.lab.train import PretrainProgress

ORDINARY = "`workbench models ordinary` writes it as a checkpoint that plain transformers loads."
TRAINING = "training.json"


def save(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: PretrainConfig,
    progress: PretrainProgress,
    facts: dict[str, Any],
) -> None:
    """Write weights (bf16), tokenizer, layout, training record and card; `folder` is created atomically."""
    steps = {"steps": progress.step, "last_steps": progress.spent}
    training = {"recipe": asdict(config), **steps, **facts, "curve": _thin(progress.curve)}
    with folder_atomically(folder) as partial:
        model.bfloat16().save_pretrained(partial)
        save_beside_weights(partial, tokenizer, LAB, TRAINING, training)
        write_card(partial, folder.name)


def _thin(curve: list[dict[str, Any]], points: int = 200) -> list[dict[str, Any]]:
    """Reduce the curve to about `points` rows, each the mean of the rows it replaces."""
    size = -(-len(curve) // points)
    reduced = []
    for at in range(0, len(curve), size):
        rows = curve[at : at + size]
        keys = [k for k in rows[-1] if k not in ("step", "stage")]
        means = {k: round(sum(r[k] for r in rows if k in r) / sum(k in r for r in rows), 4) for k in keys}
        reduced.append({"step": rows[-1]["step"], "stage": rows[-1]["stage"]} | means)
    return reduced


def write_card(folder: Path, name: str | None = None) -> None:
    """Write the model card; its numbers come from `training.json`."""
    training, model = (json.loads((folder / file).read_text(encoding="utf-8")) for file in (TRAINING, "config.json"))
    recipe = training["recipe"]
    about = (
        "A small language model that answers questions over passages about invented people, companies and places. It "
        "exists to show what reusing, moving and recomputing cached keys and values does to a real model, on any "
        "computer; it knows nothing else. Made with the cached-block attention workbench; Apache-2.0."
    )
    facts = [
        f"{training['parameters']:,} parameters, `{model['architectures'][0]}`: {model['num_hidden_layers']} layers, "
        f"width {model['hidden_size']}, {model['num_attention_heads']} query and {model['num_key_value_heads']} KV "
        f"heads of {model['head_dim']}, vocabulary {model['vocab_size']}, tied embeddings, context "
        f"{model['max_position_embeddings']}",
        f"Trained from nothing on the lab corpus with full attention: {training['steps']:,} steps in "
        f"{training['minutes']:.1f} minutes on {training['device']}, bf16 autocast, {training['stages']} curriculum "
        f"stages, {training['last_steps']:,} steps on the last",
        f"Recipe: {settings(recipe)}",
        f"Prompt: the layout in `workbench.json`. {_loading(folder)}",
    ]
    sections = curve_table(
        "Share of answers wholly right (teacher-forced, fresh data) while training.",
        training["curve"],
        {"step": "step", "stage": "stage", "loss": "loss", "answers right": "answers_right"},
    )
    checkpoint.write_card(folder, name or folder.name, about, facts, sections)


def _loading(folder: Path) -> str:
    if (folder / COMPACT).is_file():
        return f"Weights in 8 bits with a scale a row (`{COMPACT}`): loads with `workbench.models.load`. {ORDINARY}"
    return "Loads with plain `AutoModelForCausalLM.from_pretrained`."


BESIDE = (TRAINING, "workbench.json")


def ship(model: Path, out: Path, storage: str = "bfloat16") -> None:
    """Copy a trained lab model to `out`, with its weights in another storage format, and write its card.

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
