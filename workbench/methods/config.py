"""Build methods from text fields, and check that the options are compatible."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from workbench.core.errors import BadInput, did_you_mean
from workbench.core.plan import Plan
from workbench.data.retrieval_corpus import Corpus
from workbench.engine.chunked import check_chunk
from workbench.methods import Method, modes, registry
from workbench.methods import attend as rules
from workbench.methods import correct as corrections
from workbench.methods import prepare as preparations
from workbench.methods import select as selectors
from workbench.methods import sparse as sparse_methods
from workbench.methods.method_fields import REUSE, MethodFields, check_choices
from workbench.methods.modes.reuse import Reuse, positions_named
from workbench.methods.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class MethodConfig(MethodFields):
    """A method described by the fields of `MethodFields`."""

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Raise BadInput for an unknown field, with the nearest name as a suggestion.

        A field of mode block chooses it, unless a mode is given (`_choose_mode`).
        """
        names = [each.name for each in fields(cls)]
        if unknown := [name for name in values if name not in names]:
            presets = f"; give those of a method as **workbench.methods.presets.options({values[unknown[0]]!r}, {{}})"
            hint = presets if unknown[0] == "method" else did_you_mean(unknown[0], names)
            raise BadInput(f"{cls.__name__} has no field {unknown[0]!r}{hint}")
        made = super().__new__(cls)
        if "mode" not in values and any(values.get(name) is not None for name in (*REUSE, "store")):
            object.__setattr__(made, "_without_mode", True)  # until `__init__` has run
        return made

    def __post_init__(self) -> None:
        if vars(self).pop("_without_mode", False) and self._changed():
            object.__setattr__(self, "mode", "block")

    def _changed(self) -> bool:
        """Return whether a field of mode block is not at its default."""
        names = [each.name for each in fields(self) if each.name in (*REUSE, "store")]
        return any(getattr(self, name) != getattr(type(self), name) for name in names)

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults."""
        changed = ((each.name, getattr(self, each.name)) for each in fields(self))
        listed = (f"{name}={value!r}" for name, value in changed if value != getattr(type(self), name, None))
        return f"{type(self).__name__}({', '.join(listed)})"

    def check(self) -> None:
        """Raise BadInput for an invalid option, without loading a model or data."""
        check_choices(vars(self))
        chooses = self.correct != "none" and corrections.from_spec(self.correct).chooses
        if self.charged is not None and self.select == "none" and not chooses:
            raise BadInput(f"charged {self.charged} sets the ratio of a selector or correction: none has one here")
        registry.find_policy(preparations.__name__, self.prepare, ("corpus",))
        registry.check_spec(preparations.__name__, self.prepare)
        reuse = Reuse(positions_named(self.positions), select=self._select(), ratio=self.ratio)
        self._sparse(replace(reuse, **self._changes()))
        if self.mode != "block":
            self.method()
        if self.chunk is not None:
            check_chunk(Plan(torch.arange(1), sparse=self.tiles()), self.chunk)

    def _select(self) -> selectors.Select | None:
        return None if self.select == "none" else selectors.from_spec(self.select)

    def _changes(self) -> dict[str, Any]:
        """Return the correction and the attention rule, if any, by field name of `Reuse`."""
        named = {"correct": corrections.from_spec, "attend": rules.from_spec}
        return {name: make(spec) for name, make in named.items() if (spec := getattr(self, name)) != "none"}

    def method(self, corpus: Corpus | None = None, system: bool = True) -> Method:
        """Return the method; `corpus` is for preprocessing with neighbours.

        `system` False: prompts have no system block, so the first block is a passage.
        """
        if self.mode != "block":
            return self._sparse(registry.make_policy(modes.__name__, self.mode))
        prepared, changes = preparations.from_spec(self.prepare, corpus=corpus), self._changes()
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
        return None if self.sparse == "none" else sparse_methods.from_spec(self.sparse)
