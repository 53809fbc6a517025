"""Every option of every policy is what its annotation says, or one sentence names it."""

from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import Any, Literal, get_type_hints

import pytest
import torch

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.utils import annotations
from workbench.methods import modes, prepare, registry, select, sparse
from workbench.methods.config import MethodConfig
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse

BAD: list[Any] = [1.5, "a", None, [1], (1,), True, {}, -1, 0, float("nan"), float("inf"), 10**30, object(), b"x", ""]


def policies(package):
    for name in registry.names(package.__name__):
        yield registry._policy(import_module(f"{package.__name__}.{name}"), registry._class(name))


def options():
    for package in (modes, prepare, select, sparse):
        for policy in policies(package):
            needed = [field.name for field in fields(policy) if field.name == "corpus"]
            for field in fields(policy) if not needed else ():
                yield pytest.param(policy, field.name, id=f"{policy.__module__.split('.', 2)[2]}.{field.name}")


@pytest.mark.parametrize(("policy", "name"), list(options()))
def test_an_option_is_what_its_annotation_says_or_is_refused_by_name(policy, name):
    hint = get_type_hints(policy)[name]
    for value in BAD:
        try:
            policy(**{name: value})
        except BadInput as refused:
            assert len(str(refused)) < 400
        else:
            assert annotations.fits(value, hint), f"{name}={value!r} is accepted for {hint}"


SPECS = [f"superposition(paths={value})" for value in ("1.5", "a", "None", "[1]", "True", "0", "10**9")]
SPECS += ["superposition(prior=2)", "superposition(paths=2, paths=3)", "full(sees=1)", "full(sees=causal)"]
SPECS += ["full(sparse=1)", "full(chunk=1.5)", "full(chunk=a)", "full(x=1)"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_mode_with_a_wrong_option_is_refused_before_any_work(spec):
    with pytest.raises(BadInput) as refused:
        MethodConfig(mode=spec).check()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [1, "a", [1], object()])
@pytest.mark.parametrize("name", ["prepare", "select", "sparse"])
def test_choices_of_a_method_are_policies(name, value):
    with pytest.raises(BadInput, match=f"{name} is"):
        Reuse(**{name: value})
    with pytest.raises(BadInput, match="sees is 1: it must be a function or None"):
        Full(sees=1)


@pytest.mark.parametrize("name", sparse.names())
def test_whole_numbers_of_any_size_choose_tiles_or_are_refused(name):
    policy = next(each for each in policies(sparse) if each.__module__.endswith(f".{name}"))
    queries, keys, rows = torch.randn(4, 100, 16), torch.randn(2, 100, 16), torch.arange(100)
    whole = [field.name for field in fields(policy) if get_type_hints(policy)[field.name] is int]
    for option in whole:
        for value in (10**9, (1 << 31) - 1, 1 << 31, 1 << 62):
            try:
                method = policy(**{option: value})
                if not method.fitted:
                    method(queries, keys, rows, Site())
            except BadInput as refused:
                assert option in str(refused)


FITS = [
    (1, float, True),
    (True, float, False),
    (float("nan"), float, False),
    (torch.tensor(1), int, False),
    ("a", list[str], False),
    ([1, "a"], list[int], False),
    ((1, 2), tuple[int, ...], True),
    ((1, 2), tuple[int, int, int], False),
    ({"a": 1}, dict[str, int], True),
    ({"a": "b"}, dict[str, int], False),
    (None, int | None, True),
    (2, Literal[1, 2], True),
    (1.0, Literal[1, 2], False),
    (partial(int), int, False),
]


@pytest.mark.parametrize(("value", "annotation", "fits"), FITS)
def test_values_are_looked_at_in_full(value, annotation, fits):
    assert annotations.fits(value, annotation) is fits
