"""The finished lab model as a folder in Hugging Face format, with its prompt layout and its model card."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from workbench.core.files import folder_atomically
from workbench.data.layouts import LAB
from workbench.experiments.record import write
from workbench.training.lab.recipe import PretrainConfig
from workbench.training.lab.train import Progress

TRAINING, SCORES, CARD = "training.json", "scores.json", "README.md"


def save(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    recipe: PretrainConfig,
    progress: Progress,
    facts: dict,
) -> None:
    """Weights (bf16), config, tokenizer, layout, training record and card; `folder` appears whole or not at all."""
    steps = {"steps": progress.step, "last_steps": progress.spent}
    training = {"recipe": asdict(recipe), **steps, **facts, "curve": _thin(progress.curve)}
    with folder_atomically(folder) as partial:
        model.bfloat16().save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / "workbench.json").write_text(json.dumps({"layout": LAB.to_json()}, indent=1) + "\n")
        (partial / TRAINING).write_text(json.dumps(training) + "\n")
        write_card(partial, folder.name)


def _thin(curve: list[dict], points: int = 200) -> list[dict]:
    """The curve at about `points` steps, means of the rows between."""
    size = -(-len(curve) // points)
    thin = []
    for at in range(0, len(curve), size):
        rows = curve[at : at + size]
        keys = [k for k in rows[-1] if k not in ("step", "stage")]
        means = {k: round(sum(r[k] for r in rows if k in r) / sum(k in r for r in rows), 4) for k in keys}
        thin.append({"step": rows[-1]["step"], "stage": rows[-1]["stage"]} | means)
    return thin


def write_card(folder: Path, name: str | None = None) -> None:
    """The model card, from `training.json` and, once there is one, `scores.json`; no number in it is typed by hand."""
    training = json.loads((folder / TRAINING).read_text())
    scores = json.loads((folder / SCORES).read_text()) if (folder / SCORES).is_file() else None
    config = json.loads((folder / "config.json").read_text())
    recipe = training["recipe"]
    shape = (
        f"{config['num_hidden_layers']} layers, width {config['hidden_size']}, {config['num_attention_heads']} query "
        f"and {config['num_key_value_heads']} KV heads of {config['head_dim']}, vocabulary {config['vocab_size']}, "
        f"tied embeddings, context {config['max_position_embeddings']}"
    )
    lines = [
        f"# {name or folder.name}",
        "",
        "A small language model that answers questions over passages about invented people, companies and places. It "
        "exists to show what reusing, moving and recomputing cached keys and values does to a real model, on any "
        "computer; it knows nothing else. Made with the cached-block attention workbench; Apache-2.0.",
        "",
        f"- {training['parameters']:,} parameters, `{config['architectures'][0]}`: {shape}",
        f"- Trained from nothing on the lab corpus with full attention: {training['steps']:,} steps in "
        f"{training['minutes']:.1f} minutes on {training['device']}, seed {recipe['seed']}",
        f"- Recipe: {recipe['optimizer']}, learning rate {recipe['lr']}, weight decay {recipe['weight_decay']}, clip "
        f"{recipe['clip']}, {recipe['warmup']} warm-up steps, bf16 autocast; {training['stages']} curriculum stages, "
        f"{training['last_steps']:,} of {recipe['last']:,} planned steps on the last, where the rate falls linearly to "
        f"zero over the second {recipe['decay']:.0%} of the plan; loss on answers plus {recipe['rest_weight']} times "
        "the loss on all other text",
        *([f"- Provenance: {training['provenance']}"] if "provenance" in training else []),
        "- Prompt: the layout in `workbench.json`. Loads with plain `AutoModelForCausalLM.from_pretrained`.",
        "",
    ]
    if scores:
        lines += _score_table(scores)
    lines += _curve_table(training["curve"])
    write("\n".join(lines), folder / CARD)


def _score_table(scores: dict[str, Any]) -> list[str]:
    rows = {name: part for name, part in scores.items() if isinstance(part, dict) and "all" in part}
    kinds = list(dict.fromkeys(kind for part in rows.values() for kind in part))
    lines = [
        "## Scores",
        "",
        f"Exact match on worlds never trained on: {scores['samples']:,} questions a row, seed {scores['seed']}, 95% "
        f"interval in brackets; {scores['device']}.",
        "",
        "| attention, context | " + " | ".join(kinds) + " |",
        "| --- |" + " --- |" * len(kinds),
    ]
    for name, part in rows.items():
        cells = [_cell(part[kind]) if kind in part else "" for kind in kinds]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    again = scores["recompute_all"]
    lines += [
        "",
        "Recomputing every token of a cached context gives logits bit-identical to full attention in "
        f"{again['bit_identical']} of {again['samples']} prompts (largest difference {again['max_difference']:.2g}).",
        "",
    ]
    return lines


def _cell(score: dict[str, Any]) -> str:
    low, high = score["em_low"], score["em_high"]
    return f"{score['em']:.3f} [{low:.3f}, {high:.3f}]"


def _curve_table(curve: list[dict]) -> list[str]:
    lines = ["## Training curve", "", "Share of answers wholly right (teacher-forced, fresh data) while training.", ""]
    lines += ["| step | stage | loss | answers right |", "| --- | --- | --- | --- |"]
    for row in curve[:: max(1, len(curve) // 24)]:
        lines.append(f"| {row['step']:,} | {row['stage']} | {row['loss']:.3f} | {row['answers_right']:.3f} |")
    return [*lines, ""]
