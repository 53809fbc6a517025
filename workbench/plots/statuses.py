"""What became of every block of a prompt that follows another: colours, names and hover texts."""

from collections.abc import Mapping
from typing import Any

from workbench.plots.theme import BLUE, GREEN, INK, RED, pale

REUSE_STATUSES = {"kept": pale(BLUE, 0.22), "moved": pale(BLUE, 0.6), "recalled": GREEN, "encoded": RED}
NAMES = {
    "kept": "kept in place",
    "moved": "moved: keys turned",
    "recalled": "recalled from an earlier prompt",
    "encoded": "encoded now",
}
QUESTION_NAME, QUESTION_COLOUR = "question", INK


def hovers(record: Mapping[str, Any]) -> list[str]:
    """One text a context block of a record of `turnover.follow`."""
    return [
        f"<b>block {at}, {size} tokens: {NAMES[status]}{f' by {move:+d}' if status == 'moved' else ''}</b><br>"
        + label.replace("<", "&lt;")
        for at, (status, move, size, label) in enumerate(
            zip(record["fates"], record["moves"], record["sizes"], record["labels"], strict=True)
        )
    ]
