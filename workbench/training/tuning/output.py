"""The tuned model as a folder in Hugging Face format, with its prompt layout, what it was made from, and its card."""

import json
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from transformers import PreTrainedModel

from workbench import models
from workbench.core.files import folder_atomically
from workbench.experiments.record import device_name, versions, write
from workbench.training.tuning.train import Progress, Run

TUNING, CARD, ADAPTER = "tuning.json", "README.md", "adapter"
HOW = {
    "mixed": "every sample in both modes, once with full attention and once with block attention",
    "block": "every sample with block attention only",
    "full": "every sample with full attention only",
}


def save_model(run: Run, progress: Progress, folder: Path) -> None:
    """Weights in the base checkpoint's number format, LoRA merged in and beside; `folder` appears whole or not at all.

    The run is over after it: its model now has that number format.
    """
    number = _number(models.folder(run.base["name"]))
    sharded = run.accelerator.distributed_type == DistributedType.FSDP
    state = run.accelerator.get_state_dict(run.model) if sharded else None  # all processes take part
    if run.accelerator.is_main_process:
        with folder_atomically(folder) as partial:
            _fill(run, progress, partial, state, number)
    run.accelerator.wait_for_everyone()


def _fill(
    run: Run, progress: Progress, folder: Path, state: dict[str, torch.Tensor] | None, number: torch.dtype
) -> None:
    """Write every file of the tuned model; `state` holds its weights where no process has them all."""
    _, tokenizer, layout = run.loaded
    model = _whole(run, folder)
    size = sum(p.numel() for p in model.parameters()) if state is None else sum(x.numel() for x in state.values())
    if state is None:
        model.to(dtype=number).save_pretrained(folder)  # type: ignore[call-arg]
    else:
        model.save_pretrained(folder, state_dict={name: x.to(number) for name, x in state.items()})
        _say_number(folder, number)
    tokenizer.save_pretrained(folder)
    (folder / "workbench.json").write_text(json.dumps({"layout": layout.to_json()}, indent=1) + "\n")
    facts = {"parameters": size, "device": device_name(run.accelerator.device), "versions": versions()}
    record = run.identity | {"steps": progress.step, "minutes": progress.seconds / 60} | facts
    record |= {"curve": progress.curve, "scores": progress.scores}
    (folder / TUNING).write_text(json.dumps(record) + "\n")
    write_card(folder, run.out.name)


def _whole(run: Run, folder: Path) -> PreTrainedModel:
    """The plain model; an adapter is written to `folder` and merged."""
    model: Any = run.accelerator.unwrap_model(run.model)
    if run.recipe.lora_rank:
        model.save_pretrained(folder / ADAPTER)
        model = model.merge_and_unload()
    model.set_attn_implementation("sdpa")
    return model


def _number(base: Path) -> torch.dtype:
    """The number format that the base checkpoint declares."""
    config = json.loads((base / "config.json").read_text())
    return models.DTYPES.get(config.get("dtype") or config.get("torch_dtype"), torch.bfloat16)


def _say_number(folder: Path, number: torch.dtype) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = str(number).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_card(folder: Path, name: str) -> None:
    """The model card, from `tuning.json`; no number in it is typed by hand."""
    tuning = json.loads((folder / TUNING).read_text())
    recipe, base, data = tuning["recipe"], tuning["base"], tuning["data"]
    batch = recipe["batch"] * recipe["accumulate"] * tuning["processes"]
    lora = f", LoRA of rank {recipe['lora_rank']}, merged (adapter in `{ADAPTER}/`)" if recipe["lora_rank"] else ""
    lines = [
        f"# {name}",
        "",
        f"`{base['name']}` after block fine-tuning (Block-Attention, arXiv:2409.15355): it answers from passages whose "
        "keys and values were cached apart, and under full attention. Made with the cached-block attention workbench.",
        "",
        f"- {tuning['parameters']:,} parameters; base model `{base['name']}`, fingerprint `{base['fingerprint'][:16]}`",
        f"- Training: {HOW[recipe['mode']]}; {tuning['steps']:,} steps of {batch} samples in {tuning['minutes']:.1f} "
        f"minutes on {tuning['device']}; data {data['name']} ({data['identity']}), seed {recipe['seed']}",
        f"- Positions of context blocks in block mode: {recipe['positions']}",
        f"- Recipe: {recipe['optimizer']}, learning rate {recipe['lr']} (linear: {recipe['warmup']} warm-up steps, "
        f"then down to 0), weight decay {recipe['weight_decay']}, clip {recipe['clip']}, at most "
        f"{recipe['max_length']} tokens a sample{lora}; loss on answers only",
        "- Prompt: the layout in `workbench.json`. Loads with plain `AutoModelForCausalLM.from_pretrained`; block mode "
        "is carried out by `workbench`.",
        "",
        *_score_table(tuning["scores"]),
        *_curve_table(tuning["curve"]),
    ]
    write("\n".join(lines), folder / CARD)


def _score_table(rows: list[dict]) -> list[str]:
    if not rows:
        return []
    lines = ["## Exact match while training", "", f"{rows[0]['full']['n']:,} held-out questions, 95% interval.", ""]
    lines += ["| step | full attention | block attention |", "| --- | --- | --- |"]
    for row in rows:
        cells = (f"{x['em']:.3f} [{x['em_low']:.3f}, {x['em_high']:.3f}]" for x in (row["full"], row["block"]))
        lines.append(f"| {row['step']:,} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _curve_table(curve: list[dict]) -> list[str]:
    lines = ["## Training curve", "", "Share of answers wholly right (teacher-forced, training stream).", ""]
    lines += ["| step | loss | full attention | block attention |", "| --- | --- | --- | --- |"]
    for row in curve[:: max(1, len(curve) // 24)]:
        cells = (f"{row[mode]:.3f}" if mode in row else "" for mode in ("full", "block"))
        lines.append(f"| {row['step']:,} | {row['loss']:.3f} | " + " | ".join(cells) + " |")
    return [*lines, ""]
