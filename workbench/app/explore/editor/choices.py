"""The user's choices in the prompt editor: the blocks, and the method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.methods import prepare, select, sparse
from workbench.methods.modes.reuse import Reuse, positions_named
from workbench.methods.presets import METHODS
from workbench.methods.registry import is_whole
from workbench.methods.sparse._small import for_tile_size
from workbench.plots.marks.styles import REUSE_NAMES, SELECTORS, SPARSE_METHODS

PREPARED = {"after_system": "after the system block", "independent": "independently"}  # without a corpus
POSITIONS = {"re-encoded": "re-encoded for the new position", "naive": "as cached (naive)"}
KINDS = ("system", "passage", "question")
MOST_BLOCKS, MOST_CHARACTERS, MOST_COLUMNS = 512, 1_000_000, 12
LONG = 4096  # tokens from which on sparse methods have their published settings
Menu = list[dict[str, Any]]


@dataclass(frozen=True)
class PromptPiece:
    """One block as text. `id` is stable across moves and edits; `kind` is one of KINDS."""

    id: str
    text: str
    kind: str = "passage"


@dataclass(frozen=True)
class EditorRequest:
    """A prompt and the method that the user chose. `revision` counts the edits.

    beside  further methods to compare, each with this method's fields
    place   how many of them are shown left of this one
    """

    pieces: tuple[PromptPiece, ...]
    prepare: str = "after_system"
    select: str = "none"
    ratio: float = 0.15
    positions: str = "re-encoded"
    sparse: str = "none"
    revision: int = 0
    beside: tuple[Mapping[str, Any], ...] = ()
    place: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "EditorRequest":
        """Parse the browser's message. Raises BadInput for an invalid prompt or method."""
        pieces = tuple(_piece(one) for one in _list("blocks", values.get("blocks")))
        if not 2 <= len(pieces) <= MOST_BLOCKS:
            raise BadInput(f"{len(pieces)} blocks: a prompt here has 2 to {MOST_BLOCKS}, the question last")
        if len({piece.id for piece in pieces}) < len(pieces):
            raise BadInput("two blocks have the same id")
        if [piece.kind for piece in pieces].index("question") != len(pieces) - 1:
            raise BadInput("the question is the last block of a prompt")
        if sum(len(piece.text) for piece in pieces) > MOST_CHARACTERS:
            raise BadInput(f"the prompt is longer than {MOST_CHARACTERS:,} characters")
        beside = tuple(_fields(one) for one in _list("beside", values.get("beside", ())))
        if len(beside) >= MOST_COLUMNS:
            raise BadInput(f"{len(beside) + 1} methods: {MOST_COLUMNS} stand side by side at most")
        place, revision = values.get("place", 0), values.get("revision", 0)
        if not is_whole(revision):
            raise BadInput(f"revision is {revision!r}: it is a whole number")
        if not is_whole(place) or not 0 <= place <= len(beside):
            raise BadInput(f"place is {place!r}: it is a whole number from 0 to {len(beside)}")
        wanted = cls(pieces, **_fields(values), revision=revision, beside=beside, place=place)
        for column in wanted.columns:
            column.method()
        return wanted

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; `of` parses them."""
        blocks = [{"id": piece.id, "text": piece.text, "kind": piece.kind} for piece in self.pieces]
        beside = [dict(fields) for fields in self.beside]
        return {"revision": self.revision, "blocks": blocks, **self.fields, "beside": beside, "place": self.place}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that name the method."""
        return {name: getattr(self, name) for name in (*FIELDS, "ratio")}

    @property
    def columns(self) -> tuple["EditorRequest", ...]:
        """The prompt under every method: this one, then the compared ones."""
        return (self, *(replace(self, **fields, beside=(), place=0) for fields in self.beside))

    @property
    def names(self) -> list[str]:
        """The names of `columns`."""
        return [column.name for column in self.columns]

    @property
    def name(self) -> str:
        """The method's name, as `nameOf` in columns.js forms it."""
        if self.select == "none":
            parts = [f"plain reuse ({REUSE_NAMES[self.prepare]})"]
        else:
            parts = [
                "all recomputed" if self.select == "all" else f"{SELECTORS.name_of(self.select)}, {self.ratio:.0%}"
            ]
        parts += ["naive positions"] if self.positions == "naive" else []
        return ", ".join(parts + ([] if self.sparse == "none" else [SPARSE_METHODS.name_of(self.sparse)]))

    @property
    def system(self) -> int:
        """The number of leading blocks that are not passages."""
        return int(self.pieces[0].kind == "system")

    def method(self, length: int = 0) -> Reuse:
        """Return the method for a prompt of `length` tokens. Raises BadInput for an unknown name or ratio."""
        if self.prepare not in PREPARED:
            raise BadInput(f"prepare is {self.prepare!r}: here it is {' or '.join(PREPARED)}")
        tiles = None if self.sparse == "none" else sparse.from_spec(settings(self.sparse, length))
        prepared = prepare.with_system(prepare.from_spec(self.prepare), self.system)
        chooser = None
        if self.select.partition("(")[0] != "none":
            chooser = replace(select.from_spec(self.select), system=self.system)
        return Reuse(positions_named(self.positions), prepared, chooser, self.ratio, tiles)


FIELDS = {"prepare": "after_system", "select": "none", "positions": "re-encoded", "sparse": "none"}


def settings(spec: str, length: int) -> str:
    """Return the spec of a sparse method; on short prompts a bare name gets settings that suit `length` tokens."""
    return for_tile_size(spec, 16 if length < 1024 else 32) if length < LONG else spec


def menus(model: PreTrainedModel, selectors: Sequence[str] = (), only: Sequence[str] = ()) -> dict[str, Menu]:
    """Return the menus {field of `EditorRequest`: entries} that this model supports.

    selectors  entries of the selector menu; none: all
    only       fields whose menu is reduced to its first entry, if a page holds no other
    """
    chosen = selectors or ["none", *(name for name in select.names() if name != "none")]
    listed: dict[str, Menu] = {
        "select": [entry(spec, SELECTORS.name_of(spec)) for spec in chosen],
        "prepare": [{**entry(name, title), "reuse": REUSE_NAMES[name]} for name, title in PREPARED.items()],
        "positions": [entry(name, title) for name, title in POSITIONS.items()],
        "sparse": [
            entry("none", "none (all blocks)"),
            *(entry(name, SPARSE_METHODS.name_of(name)) for name in usable_sparse_methods(model)),
        ],
    }
    return {name: menu[:1] if name in only else menu for name, menu in listed.items()}


def published(listed: Mapping[str, Menu]) -> Menu:
    """Return the published methods that the menus can express, with the fields that each sets."""
    found = []
    for method in METHODS.values():
        fields = {**FIELDS, "prepare": "independent", **method.fields}
        if fields.pop("mode") != "block" or fields.get("ratio", 0) is None:
            continue
        known = {name: {one["value"] for one in menu} for name, menu in listed.items()}
        if all(fields[name] in known[name] for name in FIELDS):
            found.append({"title": method.title, "source": method.source, "fields": fields})
    return found


def usable_sparse_methods(model: PreTrainedModel) -> list[str]:
    """Return the sparse methods that need nothing fitted to this model."""
    names = []
    for name in sparse.names():
        try:
            sparse.from_spec(for_tile_size(name)).for_model(model)
        except BadInput:
            continue
        names += [] if name == "dense" else [name]
    return names


def entry(value: str, title: str) -> dict[str, Any]:
    """Make an entry of a menu."""
    return {"value": value, "title": title}


def _piece(one: Any) -> PromptPiece:
    if not isinstance(one, Mapping) or not all(isinstance(one.get(name), str) for name in ("id", "text", "kind")):
        raise BadInput("a block is {id, text, kind}, all of them texts")
    if one["kind"] not in KINDS:
        raise BadInput(f"kind of a block is {one['kind']!r}: it is {', '.join(KINDS)}")
    whole = one["text"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no lone surrogates
    if not whole.strip():
        raise BadInput("a block is empty: write something, or remove it")
    return PromptPiece(one["id"], whole, one["kind"])


def _fields(values: Any) -> dict[str, Any]:
    """Return the fields that define a method."""
    if not isinstance(values, Mapping):
        raise BadInput("a method beside is {" + ", ".join((*FIELDS, "ratio")) + "}")
    ratio = values.get("ratio", 0.15)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float):
        raise BadInput(f"ratio is {ratio!r}: it is a number from 0 to 1")
    chosen: dict[str, Any] = {name: _word(name, values.get(name, default)) for name, default in FIELDS.items()}
    chosen["sparse"] = "none" if chosen["sparse"] == "dense" else chosen["sparse"]  # its name in menus
    return chosen | {"ratio": float(ratio)}


def _list(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise BadInput(f"{name} is {type(value).__name__}: it is a list")
    return value


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{name} is {value!r}: it is a text")
    return value
