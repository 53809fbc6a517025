"""Write the tuned model as a folder in Hugging Face format, with prompt layout, provenance and model card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file, save_file

from workbench import models
from workbench.core.utils.files import folder_atomically, write_text
from workbench.experiments.trials.record import device_name, versions
from workbench.models.checkpoints import DIFFERENCE
from workbench.models.weights import adapters, soft_tokens
from workbench.training import checkpoint
from workbench.training.checkpoint import curve_table, format_score, save_beside_weights, settings, table
from workbench.training.tuning.start import TuneProgress, TuneRun

TUNING, ADAPTER = "tuning.json", "adapter"
SOFT = "`prepare=packet` puts them there, in block mode; links are recomputed by `select=first_k(k=N, last=True)`"
LOSSES = {
    "gold": "Loss: cross-entropy of the answers' tokens",
    "self": "Loss: KL divergence from the base model's own full attention (no labels), on answers and questions",
}


def save_model(run: TuneRun, progress: TuneProgress, folder: Path) -> None:
    """Write weights in the base checkpoint's dtype, with LoRA merged in and also saved separately.

    `folder` is created atomically. The run cannot continue: its model now has that dtype.
    """
    sharded = run.accelerator.distributed_type == DistributedType.FSDP
    state = run.accelerator.get_state_dict(run.model) if sharded else None  # collective: all processes must call it
    if run.accelerator.is_main_process:
        with folder_atomically(folder) as partial:
            facts = _save_weights(run, partial, state)
            tuning = _tuning(run, progress, facts)
            save_beside_weights(partial, run.loaded.tokenizer, run.loaded.layout, TUNING, tuning)
            write_card(partial, run.out.name)
    run.accelerator.wait_for_everyone()


def _save_weights(run: TuneRun, folder: Path, state: dict[str, torch.Tensor] | None) -> dict[str, Any]:
    """Write the model in its base's dtype, with an adapter merged in and also saved separately.

    `state` has the weights of a sharded model. Returns the number of parameters.
    """
    base = json.loads((models.base_folder(models.folder(run.base["name"])) / "config.json").read_text(encoding="utf-8"))
    dtype = models.DTYPES.get(base.get("dtype") or base.get("torch_dtype"), torch.bfloat16)
    model: Any = run.accelerator.unwrap_model(run.model)
    if run.config.lora_rank:
        model.save_pretrained(folder / ADAPTER)
        model = model.merge_and_unload()
    model.set_attn_implementation("sdpa")
    weights = list(model.parameters()) if state is None else list(state.values())
    if state is None:
        model.to(dtype=dtype).save_pretrained(folder)
    else:
        model.save_pretrained(folder, state_dict={name: x.to(dtype) for name, x in state.items()})
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["dtype"] = str(dtype).removeprefix("torch.")
        write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    return {"parameters": sum(x.numel() for x in weights)}


def save_adapter(run: TuneRun, progress: TuneProgress, folder: Path, base: str | None = None) -> None:
    """Write LoRA (bf16) and soft tokens as a folder that `models.load` joins to its base model.

    base   name of the base model in the folder; None: the name that was given to the run

    `folder` is created atomically; the run can continue.
    """
    if not run.accelerator.is_main_process:
        return
    name = base or run.base["name"]
    model: Any = run.accelerator.unwrap_model(run.model)
    with folder_atomically(folder) as partial:
        count = 0
        if run.config.lora_rank:
            count += _save_lora(model, partial, name)
        if any(run.config.soft):
            count += soft_tokens.save(run.loaded.model, partial)
        declared = {"layout": run.loaded.layout.to_json(), "note": models.note_of(run.base["name"])}
        declared["adapter"] = {"base": name, "weights": run.base["weights"]}
        write_text(partial / "workbench.json", json.dumps(declared, indent=1) + "\n")
        tuning = _tuning(run, progress, {"parameters": count})
        tuning["base"] = tuning["base"] | {"name": name}
        write_text(partial / TUNING, json.dumps(tuning) + "\n")
        write_card(partial, run.out.name, merged=False)


def _save_lora(model: Any, folder: Path, base: str) -> int:
    """Write the adapter of a PEFT model of `base`, and return its number of parameters."""
    model.save_pretrained(folder)
    weights = {key: x.bfloat16() for key, x in load_file(folder / adapters.WEIGHTS).items() if ".lora_" in key}
    save_file(weights, folder / adapters.WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / adapters.CONFIG).read_text(encoding="utf-8")) | {"base_model_name_or_path": base}
    write_text(folder / adapters.CONFIG, json.dumps(config, indent=1) + "\n")
    return sum(x.numel() for x in weights.values())


def _tuning(run: TuneRun, progress: TuneProgress, facts: dict[str, Any]) -> dict[str, Any]:
    """Return how the model was tuned, for `tuning.json`."""
    facts |= {"device": device_name(run.accelerator.device), "versions": versions()}
    facts |= {"curve": progress.curve, "scores": progress.scores}
    return run.identity | {"steps": progress.step, "minutes": progress.seconds / 60} | facts


def write_card(folder: Path, name: str, merged: bool = True) -> None:
    """Write the model card; its numbers come from `tuning.json`.

    merged   the folder holds a whole model, else an adapter
    """
    tuning = json.loads((folder / TUNING).read_text(encoding="utf-8"))
    recipe, base, data = tuning["recipe"], tuning["base"], tuning["data"]
    what = (
        "fine-tuned to answer from passages under full attention"
        if recipe["mode"] == "full"
        else "after block fine-tuning (Block-Attention, arXiv:2409.15355): it answers from passages whose keys and "
        "values were cached apart, and under full attention"
    )
    about = f"`{base['name']}` {what}. Made with the cached-block attention workbench."
    facts = [
        f"{tuning['parameters']:,} parameters; base model `{base['name']}`, fingerprint `{base['fingerprint'][:16]}`",
        f"Training: {tuning['steps']:,} steps in {tuning['minutes']:.1f} minutes on {tuning['device']} "
        f"(processes: {tuning['processes']}); data {data['name']} ({data['identity']})",
        f"Recipe: {settings(recipe)}",
        LOSSES[recipe.get("teacher", "gold")],
        f"Prompt: the layout in `workbench.json`. {_loading(folder, base, merged)}",
    ]
    if any(recipe.get(name) for name in soft_tokens.PARTS):
        facts.append(f"Soft tokens around each passage: {SOFT}")
    if overlap := tuning.get("overlap"):
        counts = {name: value for name, value in overlap.items() if name not in ("scored", "digest")}
        facts.append(f"Overlap with the text it is scored on, {len(overlap['scored'])} files: {settings(counts)}")
    keys = [name for name in ("step", "loss", "full", "block", "kl_full", "kl_block") if name in tuning["curve"][-1]]
    curve = curve_table("Answers right (teacher-forced, training stream).", tuning["curve"], {key: key for key in keys})
    checkpoint.write_card(folder, name, about, facts, _score_table(tuning["scores"]) + curve)


def _loading(folder: Path, base: Mapping[str, Any], merged: bool) -> str:
    """Return a sentence on how to load the folder."""
    if (folder / DIFFERENCE).is_file():
        return (
            f"Weights kept as the exact difference from `{base['name']}` (`{DIFFERENCE}`): loads with "
            "`workbench.models.load`, every bit as it was trained. `workbench models ordinary` writes it as one "
            "that plain transformers loads."
        )
    if merged:
        return "Loads with plain `AutoModelForCausalLM.from_pretrained`; block mode is carried out by `workbench`."
    return (
        f"`workbench.models.load` merges it into `{base['name']}` (weights {base.get('weights', '')[:16]}); with "
        "`peft` it loads as any adapter."
    )


def _score_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return exact match, or distances of both modes from the teacher, at each evaluated step."""
    if not rows:
        return []
    measures = [(mode, name) for name in ("em", "kl", "nll_gap") for mode in ("full", "block") if name in rows[0][mode]]
    columns = ["step", *(f"{name}, {mode}" for mode, name in measures)]
    cells = ([f"{row['step']:,}", *(format_score(row[mode], name) for mode, name in measures)] for row in rows)
    about = f"{rows[0].get('n') or rows[0]['full']['n']:,} held-out questions, 95% interval; kl and nll_gap in nats."
    return table("Held-out text while training", about, columns, cells)
