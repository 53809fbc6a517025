"""Write the files of a trained model in Hugging Face format, except its weights; and its model card."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from workbench.core.utils.files import write_text
from workbench.data.layouts import Layout

CARD = "README.md"


def save_beside_weights(
    folder: Path, tokenizer: PreTrainedTokenizerBase, layout: Layout, name: str, training: dict[str, Any]
) -> None:
    """Write tokenizer and prompt layout, and to `name` how the model was trained (JSON values)."""
    tokenizer.save_pretrained(folder)
    write_text(folder / "workbench.json", json.dumps({"layout": layout.to_json()}, indent=1) + "\n")
    write_text(folder / name, json.dumps(training) + "\n")


def write_card(folder: Path, name: str, about: str, facts: Iterable[str], sections: Iterable[str]) -> None:
    """Write the model card; `sections` are lines of Markdown below a list of `facts`."""
    lines = [f"# {name}", "", about, "", *(f"- {fact}" for fact in facts), "", *sections]
    write_text(folder / CARD, "\n".join(lines))


def table(heading: str, about: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown section with a table, as lines."""
    lines = [f"## {heading}", "", about, "", f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def curve_table(about: str, curve: list[dict[str, Any]], columns: Mapping[str, str]) -> list[str]:
    """Return a section with about 24 steps of the training curve; `columns` maps headings to keys of its rows."""
    rows = curve[:: max(1, len(curve) // 24)]
    cells = ([_number(row.get(key, "")) for key in columns.values()] for row in rows)
    return table("Training curve", about, list(columns), cells)


def settings(record: Mapping[str, Any]) -> str:
    """Format the settings of a record on one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in record.items())


def format_score(score: Mapping[str, Any], name: str) -> str:
    """Format a score with its 95% interval, as a table cell."""
    return f"{score[name]:.3f} [{score[f'{name}_low']:.3f}, {score[f'{name}_high']:.3f}]"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
