"""A method as text and numbers, as a person writes it down, and the object that it names.

Where a field's type is `Annotated`, its text is the help of the command-line option.
"""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Annotated, Any

import torch

from workbench.core.errors import BadInput, not_allowed
from workbench.core.plan import Plan
from workbench.data.retrieval_corpus import Corpus
from workbench.engine.chunked import check_chunk
from workbench.methods import Method, modes, registry
from workbench.methods import prepare as preparations
from workbench.methods import select as selectors
from workbench.methods import sparse as sparse_methods
from workbench.methods.modes.reuse import Reuse, positions_named
from workbench.methods.sparse import Sparse

ModelName = Annotated[str, "Checkpoint folder or name (see `workbench models`)"]
DataName = Annotated[str, "`lab`, `lab-hard`, `needles`, `manuals`, a shipped name or a file: JSON, JSON lines, .gz"]
DeviceName = Annotated[str, "cpu, cuda or cuda:N"]
LayoutName = Annotated[
    str | None, "Prompt layout: lab, released, chat (by the tokenizer's template) or a JSON file; else the model's own"
]


def _names(package: ModuleType) -> str:
    """Return the names of all policies of a package, for a text of help."""
    return ", ".join(registry.names(package.__name__))


MODES = ("full", "block", "superposition")
REUSE = ("positions", "prepare", "select", "ratio", "prepared")  # fields that are for mode block


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Which method, and its choices.

    Modes and policies stand alone or with options: `superposition(paths=2)`, `query_guided(layers=all)`. Policies are
    files of `methods.prepare`, `methods.select` and `methods.sparse`. What the folder `prepared` lacks is computed. A
    `ratio` or `chunk` of None stands for as many tokens as the selector wants, and for all rows at once.
    """

    mode: Annotated[
        str, "full: ordinary prefill (default); block: every passage cached apart and reused; superposition"
    ] = "full"
    positions: Annotated[
        str, "Positions of reused keys: re-encoded for their new place (default), or naive, as cached"
    ] = "re-encoded"
    prepare: Annotated[
        str,
        f"What a passage sees before it is cached: {_names(preparations)}; options in brackets, as "
        "with_neighbours(n=10). Default: independent",
    ] = "independent"
    select: Annotated[
        str, f"Which cached tokens are recomputed: {_names(selectors)}; as kv_deviation(part=v). Default: none"
    ] = "none"
    ratio: Annotated[
        float | None, "Recompute this share of the tokens of all passages, as 0.15; own: as many as the selector wants"
    ] = 0.15
    prepared: Annotated[str | None, "Take cached passages from this folder of `workbench prepare`"] = None
    sparse: Annotated[
        str,
        f"Which key tiles are attended to: {_names(sparse_methods)}; as flash_prefill(alpha=0.1). "
        "Default: none, every tile",
    ] = "none"
    chunk: Annotated[int | None, "Rows of one pass of the prefill"] = None

    def check(self) -> None:
        """Raise BadInput for a choice that is not allowed; loads nothing."""
        name, _ = registry.parse(self.mode)
        if name not in MODES:
            raise not_allowed("mode", self.mode, MODES)
        odd = [key for key in REUSE if getattr(self, key) != getattr(MethodConfig, key)]
        if self.mode != "block" and odd:
            given = f"{odd[0]} {getattr(self, odd[0])!r}"
            raise BadInput(f"{given} is for mode block: mode {name} reuses no cached blocks")
        registry.found(preparations.__name__, self.prepare, ("corpus",))
        reuse = Reuse(positions_named(self.positions), select=self._select(), ratio=self.ratio)
        self._sparse(reuse)
        if self.mode != "block":
            self.method()
        if self.chunk is not None:
            check_chunk(Plan(torch.arange(1), sparse=self.tiles()), self.chunk)

    def _select(self) -> selectors.Select | None:
        return None if self.select == "none" else selectors.named(self.select)

    def method(self, corpus: Corpus | None = None, system: bool = True) -> Method:
        """Return the method itself; preparations that look for neighbours look in `corpus`.

        Without a `system` block in the layout, the first block of a prompt is a passage like the others.
        """
        if self.mode != "block":
            return self._sparse(registry.made(modes.__name__, self.mode))
        prepared, chosen = preparations.named(self.prepare, corpus=corpus), self._select()
        if not system:
            prepared = preparations.with_system(prepared, 0)
            chosen = replace(chosen, system=0) if chosen else None
        return self._sparse(Reuse(positions_named(self.positions), prepared, chosen, self.ratio))

    def _sparse(self, method: Any) -> Method:
        """Return the method with its key tiles chosen, and in chunks, where that is asked for."""
        if self.sparse == "none" and self.chunk is None:
            return method
        if not hasattr(method, "sparse"):
            given = f"sparse {self.sparse!r} and chunk {self.chunk}"
            raise BadInput(f"{given} are for modes full and block, not {self.mode}")
        return replace(method, sparse=self.tiles(), chunk=self.chunk)

    def tiles(self) -> Sparse | None:
        """Return the sparse method, if any."""
        return None if self.sparse == "none" else sparse_methods.named(self.sparse)
