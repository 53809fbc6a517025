"""Build methods from text fields, and check that the options are compatible."""

from dataclasses import dataclass, fields, replace
from inspect import Parameter, Signature, signature
from typing import Any, Self

import torch

from workbench.core.errors import BadInput, did_you_mean
from workbench.core.plan import Plan
from workbench.data.retrieval_corpus import Corpus
from workbench.engine.chunked import check_chunk
from workbench.methods import Method, modes, presets, registry
from workbench.methods import attend as rules
from workbench.methods import correct as corrections
from workbench.methods import prepare as preparations
from workbench.methods import select as selectors
from workbench.methods import sparse as sparse_methods
from workbench.methods.method_fields import REUSE, MethodFields, check_choices
from workbench.methods.modes.reuse import Reuse, positions_named
from workbench.methods.sparse import Sparse


class _ByName(type):
    """Metaclass that lets a published method give the fields which are not named."""

    def __call__(cls, *values: Any, method: str | None = None, **fields: Any) -> Any:
        """Build an instance; `method` is the name of a published method (`workbench.methods.presets`).

        Without `method` and `mode`, a field of mode block that is not at its default chooses this mode.
        """
        if method is not None:
            fields = presets.options(method, fields)
        elif "mode" not in fields:
            given = (name for name in (*REUSE, "store") if fields.get(name) is not None)
            if any(fields[name] != getattr(cls, name) for name in given):
                fields["mode"] = "block"
        return super().__call__(*values, **fields)

    @property
    def __signature__(cls) -> Signature:
        """The fields with their defaults, without annotations, so that `help` fits a screen."""
        _, *given = signature(vars(cls)["__init__"]).parameters.values()
        named = Parameter("method", Parameter.KEYWORD_ONLY, default=None)
        return Signature([*(each.replace(annotation=Parameter.empty) for each in given), named])


@dataclass(frozen=True, kw_only=True)
class MethodConfig(MethodFields, metaclass=_ByName):
    """A method described by the fields of `MethodFields`; `method` names a published one, whose fields are defaults."""

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Raise BadInput for an unknown field, with the nearest name as a suggestion."""
        names = [each.name for each in fields(cls)]
        if unknown := [name for name in values if name not in names]:
            raise BadInput(f"{cls.__name__} has no field {unknown[0]!r}{did_you_mean(unknown[0], names)}")
        return super().__new__(cls)

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
