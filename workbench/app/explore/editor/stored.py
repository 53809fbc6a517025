"""A prompt's answers over a grid, in stored form: a page without a kernel, or a notebook's output.

Values that several answers share are stored once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from workbench.app.explore.editor.choices import EditorRequest, PromptPiece
from workbench.app.explore.editor.html import MIME, page, summary
from workbench.core.errors import BadInput
from workbench.core.utils.files import check_file, write_text

OTHERS = ("prepare", "positions", "sparse")  # equal in all choices of a page
RESULTS = ("text", "answers", "bill", "heat")


@dataclass(frozen=True)
class PromptPage:
    """Answers of one prompt over a grid, as plain JSON values; a notebook shows it without a kernel."""

    data: dict[str, Any]

    @property
    def answer_count(self) -> int:
        """The number of combinations of order, selector and ratio."""
        return sum(len(choices) for choices in self.data["results"].values())

    def result(self, wanted: EditorRequest) -> dict[str, Any]:
        """Return {text, answers, bill, heat} of one combination. Raises BadInput if the page lacks it."""
        found = self.data["results"].get(order_of(wanted.pieces), {}).get(choice_of(wanted))
        if found is None:
            raise BadInput("this combination of order, selector and ratio is not on the page")
        return {name: self._built(found[name]) for name in RESULTS}

    def records(self) -> list[dict[str, Any]]:
        """Return one record per combination: order, select, ratio, both answers, their distance, and the cost.

        They cover the first view's method and plain reuse (dense if the page has it), with the first view's
        preprocessing and positions.
        """
        plain = {**self.data["wanted"], "select": "none", "sparse": "none"}
        dense = choice_of_fields(plain) in next(iter(self.data["results"].values()))
        records = []
        for order, choices in self.data["results"].items():
            for choice, index in choices.items():
                spec, ratio, *others = choice.split("\t")
                shown = plain if dense and spec == "none" else self.data["wanted"]
                if others != [shown[name] for name in OTHERS]:
                    continue
                answers, bill = self._built(index["answers"]), self._built(index["bill"])
                said = {"answer": answers["method"]["text"], "full": answers["full"]["text"]}
                said |= {"right": answers["method"]["right"], "right_full": answers["full"]["right"]}
                said |= {"kl": answers["kl"], "agree": answers["agree"], "rows": bill["computed"]}
                took = {"flops": bill["flops"]["method"], "flops_full": bill["flops"]["full"], "tokens": bill["length"]}
                records.append({"order": order, "select": spec, "ratio": float(ratio), **said, **took})
        return records

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the page as one HTML file."""
        check_file("path", path)
        path = Path(path)
        if not path.parent.is_dir():
            raise BadInput(f"{path.parent} is no folder: the page cannot be written there")
        write_text(path, page(self.data))
        return path

    def _built(self, index: Any) -> Any:
        if not isinstance(index, list):
            return self.data["values"][index]
        names = self.data["fields"][index[0]]
        return {name: self._built(each) for name, each in zip(names, index[1:], strict=True)}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        wanted = EditorRequest.of(self.data["wanted"])
        shown, *beside = [self.result(column) for column in wanted.columns]
        for name in ("answers", "bill"):
            shown[name] = shown[name] | {"beside": [one[name] for one in beside]}
        return {
            MIME: self.data,
            "text/html": summary(shown, wanted.names),
            "text/plain": f"a prompt, {self.answer_count} answers",
        }


class GridPool:
    """JSON values by index, each stored once; an object is the index of its field names and those of its values."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.fields: list[tuple[str, ...]] = []
        self._known: dict[str, int] = {}

    def add_values(self, value: dict[str, Any]) -> list[int]:
        """Store an object's values, and return its indices."""
        names = tuple(value)
        if names not in self.fields:
            self.fields.append(names)
        return [self.fields.index(names), *(self._number(each) for each in value.values())]

    def _number(self, value: Any) -> int:
        text = json.dumps(value)
        if text not in self._known:
            self._known[text] = len(self.values)
            self.values.append(value)
        return self._known[text]


def has_ratio(spec: str) -> bool:
    """Return whether a selector takes a ratio."""
    return spec.partition("(")[0] not in ("none", "all")


def order_of(pieces: Sequence[PromptPiece]) -> str:
    """Name an order of blocks."""
    return " ".join(piece.id for piece in pieces)


def choice_of(wanted: EditorRequest) -> str:
    """Name a method."""
    return choice_of_fields(wanted.fields)


def choice_of_fields(fields: Mapping[str, Any]) -> str:
    """Name a method by its fields."""
    ratio = fields["ratio"] if has_ratio(fields["select"]) else 0
    return "\t".join((fields["select"], f"{ratio:g}", *(fields[name] for name in OTHERS)))
