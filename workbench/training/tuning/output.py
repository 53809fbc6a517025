"""The tuned model as a folder in Hugging Face format, with its prompt layout, its origin and its card."""

import json
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType

from workbench import models
from workbench.core.files import folder_atomically, write_text
from workbench.experiments.record import device_name, versions
from workbench.training import checkpoint
from workbench.training.checkpoint import curve_table, exact_match, save_beside_weights, table
from workbench.training.tuning.train import TuneProgress, TuneRun

TUNING, ADAPTER = "tuning.json", "adapter"
HOW = {
    "mixed": "every sample in both modes, once with full attention and once with block attention",
    "block": "every sample with block attention only",
    "full": "every sample with full attention only",
}


def save_model(run: TuneRun, progress: TuneProgress, folder: Path) -> None:
    """Write weights in the base checkpoint's number format, with LoRA merged in and beside.

    `folder` appears whole or not at all. The run is over after it: its model now has that number format.
    """
    sharded = run.accelerator.distributed_type == DistributedType.FSDP
    state = run.accelerator.get_state_dict(run.model) if sharded else None  # all processes take part
    if run.accelerator.is_main_process:
        with folder_atomically(folder) as partial:
            facts = _save_weights(run, partial, state)
            facts |= {"device": device_name(run.accelerator.device), "versions": versions()}
            facts |= {"curve": progress.curve, "scores": progress.scores}
            tuning = run.identity | {"steps": progress.step, "minutes": progress.seconds / 60} | facts
            save_beside_weights(partial, run.loaded.tokenizer, run.loaded.layout, TUNING, tuning)
            write_card(partial, run.out.name)
    run.accelerator.wait_for_everyone()


def _save_weights(run: TuneRun, folder: Path, state: dict[str, torch.Tensor] | None) -> dict[str, Any]:
    """Write the model in the number format of its base, with an adapter merged into it and written beside it.

    `state` has the weights of a sharded model. Returns the number of parameters.
    """
    base = json.loads((models.folder(run.base["name"]) / "config.json").read_text())
    number = models.DTYPES.get(base.get("dtype") or base.get("torch_dtype"), torch.bfloat16)
    model: Any = run.accelerator.unwrap_model(run.model)
    if run.config.lora_rank:
        model.save_pretrained(folder / ADAPTER)
        model = model.merge_and_unload()
    model.set_attn_implementation("sdpa")
    weights = list(model.parameters()) if state is None else list(state.values())
    if state is None:
        model.to(dtype=number).save_pretrained(folder)
    else:
        model.save_pretrained(folder, state_dict={name: x.to(number) for name, x in state.items()})
        config = json.loads((folder / "config.json").read_text())
        config["dtype"] = str(number).removeprefix("torch.")
        write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    return {"parameters": sum(x.numel() for x in weights)}


def write_card(folder: Path, name: str) -> None:
    """Write the model card from `tuning.json`; no number in it is typed by hand."""
    tuning = json.loads((folder / TUNING).read_text())
    recipe, base, data = tuning["recipe"], tuning["base"], tuning["data"]
    batch = recipe["batch"] * recipe["accumulate"] * tuning["processes"]
    lora = f", LoRA of rank {recipe['lora_rank']}, merged (adapter in `{ADAPTER}/`)" if recipe["lora_rank"] else ""
    about = (
        f"`{base['name']}` after block fine-tuning (Block-Attention, arXiv:2409.15355): it answers from passages whose "
        "keys and values were cached apart, and under full attention. Made with the cached-block attention workbench."
    )
    facts = [
        f"{tuning['parameters']:,} parameters; base model `{base['name']}`, fingerprint `{base['fingerprint'][:16]}`",
        f"Training: {HOW[recipe['mode']]}; {tuning['steps']:,} steps of {batch} samples in {tuning['minutes']:.1f} "
        f"minutes on {tuning['device']}; data {data['name']} ({data['identity']}), seed {recipe['seed']}",
        f"Positions of context blocks in block mode: {recipe['positions']}",
        f"Recipe: {recipe['optimizer']}, learning rate {recipe['lr']} (linear: {recipe['warmup']} warm-up steps, "
        f"then down to 0), weight decay {recipe['weight_decay']}, clip {recipe['clip']}, at most "
        f"{recipe['max_length']} tokens a sample{lora}; loss on answers only",
        "Prompt: the layout in `workbench.json`. Loads with plain `AutoModelForCausalLM.from_pretrained`; block mode "
        "is carried out by `workbench`.",
    ]
    sections = _score_table(tuning["scores"]) + curve_table(
        "Share of answers wholly right (teacher-forced, training stream).",
        tuning["curve"],
        {"step": "step", "loss": "loss", "full attention": "full", "block attention": "block"},
    )
    checkpoint.write_card(folder, name, about, facts, sections)


def _score_table(rows: list[dict]) -> list[str]:
    if not rows:
        return []
    about = f"{rows[0]['full']['n']:,} held-out questions, 95% interval."
    cells = ([f"{row['step']:,}", exact_match(row["full"]), exact_match(row["block"])] for row in rows)
    return table("Exact match while training", about, ["step", "full attention", "block attention"], cells)
