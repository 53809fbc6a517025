"""The folder of a training: which run it holds, the state to go on from, and the model in Hugging Face format."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from workbench.core.errors import BadInput
from workbench.core.utils import json_text
from workbench.core.utils.files import check_folder, earlier, write_text
from workbench.data.layouts import Layout

CARD = "README.md"


def save_beside_weights(
    folder: Path, tokenizer: PreTrainedTokenizerBase, layout: Layout, name: str, training: dict[str, Any]
) -> None:
    """Write tokenizer, prompt layout and, as `name`, how the model was trained (JSON values)."""
    tokenizer.save_pretrained(folder)
    write_text(folder / "workbench.json", json.dumps({"layout": layout.to_json()}, indent=1) + "\n")
    write_text(folder / name, json.dumps(training) + "\n")


def write_card(folder: Path, name: str, about: str, facts: Iterable[str], sections: Iterable[str]) -> None:
    """Write the model card; `sections` are lines of Markdown below a list of `facts`."""
    lines = [f"# {name}", "", about, "", *(f"- {fact}" for fact in facts), "", *sections]
    write_text(folder / CARD, "\n".join(lines))


def table(heading: str, about: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a section of a table, as lines of Markdown."""
    lines = [f"## {heading}", "", about, "", f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def curve_table(about: str, curve: list[dict[str, Any]], columns: Mapping[str, str]) -> list[str]:
    """Return a section of the training curve at about 24 steps; `columns` maps headings to keys of its rows."""
    rows = curve[:: max(1, len(curve) // 24)]
    cells = ([_number(row.get(key, "")) for key in columns.values()] for row in rows)
    return table("Training curve", about, list(columns), cells)


def exact_match(score: Mapping[str, Any]) -> str:
    """Return a table cell: exact match with its 95% interval."""
    return f"{score['em']:.3f} [{score['em_low']:.3f}, {score['em_high']:.3f}]"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


RECORD = "progress.json"
BEGUN = ("state", "state.new", "seconds", "curve.json", "own_answers.json")  # what a run writes before its first state


def saved_record(out: Path) -> dict[str, Any] | None:
    """Return the record of the state in `out`, None where there is none."""
    state = state_folder(out)
    return json_text.read(state / RECORD) if state else None


def check_run_folder(out: Path) -> None:
    """Raise BadInput for a place that cannot be the folder of a run, and for a folder that holds anything else."""
    check_folder("--out", out)
    if not out.is_dir() or state_folder(out):
        return
    others = sorted(path.name for path in out.iterdir() if path.name not in BEGUN and not path.name.startswith("."))
    if others:
        raise BadInput(
            f"--out {str(out)!r} holds {others[0]!r} and no run to go on with: choose an empty or new folder"
        )


def check_same(out: Path, settings: dict[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raise BadInput, naming the settings that differ, where `out` holds a training with other `settings`.

    `defaults` stand in for settings that an earlier version did not have.
    """
    saved, settings = saved_record(out), json.loads(json.dumps(settings))
    if saved is None:
        return
    recipe = {**defaults, **saved.get("recipe", {})}
    if changed := [name for name in settings if recipe.get(name) != settings[name]]:
        raise BadInput(f"{out} holds a run of another recipe (different: {', '.join(changed)}); choose another folder")


def state_folder(out: Path) -> Path | None:
    """Find the folder of the last whole state; earlier versions set one aside as `state.old`."""
    places = (out / "state", earlier(out / "state"), out / "state.old")
    return next((path for path in places if (path / RECORD).is_file()), None)


def check_minutes(minutes: float) -> None:
    """Refuse a time to stop after that is negative or no number."""
    if not minutes >= 0:
        raise BadInput(f"minutes is {minutes}: a number of at least 0 is needed")
