"""Methods from text fields, with a check that the choices fit each other."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from workbench.core.errors import BadInput, meant
from workbench.core.plan import Plan
from workbench.data.retrieval_corpus import Corpus
from workbench.engine.chunked import check_chunk
from workbench.methods import Method, modes, registry
from workbench.methods import attend as rules
from workbench.methods import correct as corrections
from workbench.methods import prepare as preparations
from workbench.methods import select as selectors
from workbench.methods import sparse as sparse_methods
from workbench.methods.method_fields import MethodFields, check_choices
from workbench.methods.modes.reuse import Reuse, positions_named
from workbench.methods.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class MethodConfig(MethodFields):
    """A method by the fields of `MethodFields`."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse an unknown field, and suggest the nearest."""
        names = [each.name for each in fields(cls)]
        if odd := [name for name in given if name not in names]:
            fields_of = f"; give those of a method as **workbench.methods.presets.options({given[odd[0]]!r}, {{}})"
            hint = fields_of if odd[0] == "method" else meant(odd[0], names)
            raise BadInput(f"{cls.__name__} has no field {odd[0]!r}{hint}")
        return super().__new__(cls)

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults."""
        changed = ((each.name, getattr(self, each.name)) for each in fields(self))
        said = (f"{name}={value!r}" for name, value in changed if value != getattr(type(self), name, None))
        return f"{type(self).__name__}({', '.join(said)})"

    def check(self) -> None:
        """Raise BadInput for a choice that is not allowed; no model or data is loaded."""
        check_choices(vars(self))
        chooses = self.correct != "none" and corrections.named(self.correct).chooses
        if self.charged is not None and self.select == "none" and not chooses:
            raise BadInput(f"charged {self.charged} sets the ratio of a selector or correction: none has one here")
        registry.found(preparations.__name__, self.prepare, ("corpus",))
        registry.check_spec(preparations.__name__, self.prepare)
        reuse = Reuse(positions_named(self.positions), select=self._select(), ratio=self.ratio)
        self._sparse(replace(reuse, **self._changes()))
        if self.mode != "block":
            self.method()
        if self.chunk is not None:
            check_chunk(Plan(torch.arange(1), sparse=self.tiles()), self.chunk)

    def _select(self) -> selectors.Select | None:
        return None if self.select == "none" else selectors.named(self.select)

    def _changes(self) -> dict[str, Any]:
        """Return the policies that correct the cache and that change the mask rule."""
        named = {"correct": corrections.named, "attend": rules.named}
        return {name: make(spec) for name, make in named.items() if (spec := getattr(self, name)) != "none"}

    def method(self, corpus: Corpus | None = None, system: bool = True) -> Method:
        """Return the method; `corpus` is for preparations that look up neighbours.

        `system` False: prompts have no system block, and the first block is a passage too.
        """
        if self.mode != "block":
            return self._sparse(registry.made(modes.__name__, self.mode))
        prepared, changes = preparations.named(self.prepare, corpus=corpus), self._changes()
        changes |= {"select": chosen} if (chosen := self._select()) else {}
        if not system:
            prepared = preparations.with_system(prepared, 0)
            changes = {name: replace(each, system=0) for name, each in changes.items()}
        return self._sparse(Reuse(positions_named(self.positions), prepared, ratio=self.ratio, **changes))

    def _sparse(self, method: Any) -> Method:
        """Return the method with the requested sparse method and chunk size."""
        if self.sparse == "none" and self.chunk is None:
            return method
        if not hasattr(method, "sparse"):
            given = f"sparse {self.sparse!r} and chunk {self.chunk}"
            raise BadInput(f"{given} are for modes full and block, not {self.mode}")
        return replace(method, sparse=self.tiles(), chunk=self.chunk)

    def tiles(self) -> Sparse | None:
        """Return the sparse method, if any."""
        return None if self.sparse == "none" else sparse_methods.named(self.sparse)
