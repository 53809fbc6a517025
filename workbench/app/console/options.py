"""Command-line options from the fields of a dataclass; a field's help is in its type: `Annotated[int, "help"]`."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer

from workbench.core.errors import BadInput
from workbench.core.utils import json_text

OUTPUT = "Output"  # panel of `--help`
AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout")]
LITERALS = {"None": None, "True": True, "False": False}
Command = TypeVar("Command", bound=Callable[..., None])


def option(
    name: str, kind: Any, default: Any, help: str, panel: str | None = None, metavar: str | None = None
) -> Parameter:
    """Return a command's keyword argument for the option `--name`; with `default` None it is optional.

    Flags that are off by default have no `--no-name`.
    """
    names = [f"--{name.replace('_', '-')}"] if kind is bool and default is False else []
    about = typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)
    kind = kind | None if default is None else kind
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about])


def of_fields(
    cls: Any, defaults: Mapping[str, Any], panels: Mapping[str, str] | None = None, text: Collection[str] = ()
) -> list[Parameter]:
    """Return an option for every field of the dataclass `cls` that has a help text.

    `defaults` override the fields' defaults; `text` names fields whose option stays text.
    """
    options = []
    for field in fields(cls):
        if get_origin(field.type) is not Annotated:
            continue
        kind, help = get_args(field.type)
        default = defaults.get(field.name, Parameter.empty if field.default is MISSING else field.default)
        kind = str if field.name in text else kind
        options.append(option(field.name, kind, default, help, (panels or {}).get(field.name)))
    return options


def with_options(options: Iterable[Parameter]) -> Callable[[Command], Command]:
    """Replace a command's `**keywords` by `options`, before its keyword-only arguments."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command).parameters.values()
        first = [each for each in own if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)]
        last = [each for each in own if each.kind is each.KEYWORD_ONLY]
        vars(command)["__signature__"] = inspect.Signature([*first, *options, *last])  # read by typer
        return command

    return decorate


def parse(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` texts; a value is JSON, None, True, False, or else text."""
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (equals and name.isidentifier()):
            raise BadInput(f"parameter {assignment!r}: allowed is NAME=VALUE")
        try:
            parameters[name] = LITERALS[value] if value in LITERALS else json_text.loads(value)
        except json_text.NotJson:
            parameters[name] = value
        except BadInput as problem:
            raise BadInput(f"parameter {name} cannot be read: {problem}") from None
    return parameters
