"""Checks of options before a command begins, without heavy imports."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

from workbench.app.console.text import importing, progress
from workbench.core.errors import BadInput, format_value
from workbench.core.utils.files import check_place, is_file
from workbench.methods import POLICIES

OUTPUTS = ("out", "html", "markdown", "untrained", "to", "figure")  # options for a file or folder to write
INPUTS = ("store", "prepared")  # options for a folder to read
NEEDED = {  # option: check of its value without slow imports
    "--model": "workbench.models.checkpoints.checkpoint_folder",
    "--data": "workbench.data.check_name",
    "--results": "workbench.data.assets.results_path",
    "--method": "workbench.methods.presets.check_name",
    "--methods": "workbench.methods.presets.check_name",
    "--positions": "workbench.methods.method_fields.check_positions",
    "--engine": "workbench.methods.method_fields.check_engine",
}
ASKING = ("trial", "sweep", "leaderboard", "serve-bench")  # commands whose --data must have questions
NAMES = NEEDED | {  # also for options that may be "none" in a list
    **{f"--{kind}": f"workbench.methods.{kind}" for kind in POLICIES},
    "--dtype": "workbench.models.model_names.check_dtype",
    "--layout": "workbench.data.layouts.check",
    "--prepared": "workbench.app.commands.store.existing_store",
    "--faithfulness": "workbench.models.model_names.check_judge",
}
LEAST = {"seed": 0, "chunk": 1}  # minimum of integer options
NEIGHBOURS = {"--n", "--neighbours", "--neighbors"}  # options of `prepare`, and names that users try


def check_given(command: Any, here: bool) -> None:
    """Make a command raise BadInput, before its own checks and imports, for unwritable outputs and unknown names.

    `here`: whether it computes on this machine.
    """
    for inner in getattr(command, "commands", {}).values():
        check_given(inner, here)
    for param in command.params:
        if param.name in OUTPUTS:
            param.callback = partial(_writable, param.callback)
        if param.opts[0] in NAMES:
            param.callback = partial(_known, param.callback)
        if param.opts[0] == "--device":
            param.callback = partial(_placed, here, param.callback)
        if param.name in LEAST and param.metavar != "LIST":
            param.callback = partial(_at_least, LEAST[param.name], param.callback)
        if param.name in INPUTS and param.metavar != "LIST":
            param.callback = partial(_named, param.callback)


def refuse_unfit(name: str, command: Any, args: Sequence[str]) -> None:
    """Raise BadInput for an output that is empty (typer would use the current folder) or also an input.

    Also for an option of `prepare` that belongs in `--prepare`.
    """
    named = {option for param in command.params for option in param.opts}
    if "--prepare" in named and (odd := {arg.partition("=")[0] for arg in args} & NEIGHBOURS - named):
        raise BadInput(f'{name} has no option {min(odd)}: --prepare "with_neighbours(n=3)" sets how many')
    values = [arg.partition("=")[2] if arg.startswith("--") else arg for arg in args]
    written: list[str] = []
    for word, value in pairwise([*args, "-"]):
        option, equals, given = word.partition("=")
        if not option.startswith("--") or option[2:] not in OUTPUTS:
            continue
        if not (place := given if equals else value):
            raise BadInput(f"{option} '': the name of a file or folder is needed")
        if is_file(place) and sum(is_file(other) and os.path.samefile(place, other) for other in values) > 1:
            raise BadInput(
                f"{option} {format_value(place)} is a file that this command reads or writes otherwise: name another"
            )
        if place.endswith(os.sep) and option != "--out":
            raise BadInput(f"{option} {format_value(place)} is the name of a folder: a file is needed")
        written.append(os.path.realpath(place))
    if twice := [place for place in written if written.count(place) > 1]:
        raise BadInput(f"{format_value(twice[0])} would be written twice: name two files")


def _known(own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    given = [value] if isinstance(value, str | os.PathLike) else value or []
    if param.metavar == "LIST":
        from workbench.core.spec_parser import split

        given = [name for name in split(value or "") if name]
    if param.name == "methods":  # a leaderboard also takes the user's policies by name; their files are loaded
        from workbench.methods import own as policies

        mine = {name for kind in policies.KINDS for name in policies.names(kind)}
        given = [name for name in given if name not in mine]
    if not ctx.params.get("results") or param.name == "results":  # results may be of models and data that are not here
        for name in map(str, given):
            check_named(param.opts[0], name, ctx.command.name in ASKING and param.name == "data")
    return own(ctx, param, value) if own else value


def check_named(option: str, name: str, asking: bool = False) -> None:
    """Raise BadInput for an unknown value of an option; `asking`: data must have questions."""
    if option not in NAMES or "://" in name or (name == "none" and option not in NEEDED):
        return
    module, _, check = NAMES[option].rpartition(".")
    if check in POLICIES:
        import_module("workbench.methods.unimported").check(f"{module}.{check}", name)
    else:
        getattr(import_module(module), "check_questions" if asking else check)(name)


def _placed(here: bool, own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    """Raise BadInput for an invalid or missing device; torch is imported for GPUs only."""
    from workbench.core.spec_parser import split
    from workbench.models.model_names import check_device, device_of

    for name in split(value) if value else ():
        check_device(name)
        if here and name.startswith("cuda"):
            with progress(f"device {name}"), importing():
                device_of(name)
    return own(ctx, param, value) if own else value


def _at_least(least: int, own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    if isinstance(value, int) and value < least:
        raise BadInput(f"{param.opts[0]} is {format_value(value)}: a whole number of at least {least} is needed")
    return own(ctx, param, value) if own else value


def _named(own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    if value is not None and str(value) in ("", "."):
        raise BadInput(f"{param.opts[0]} '': the name of a folder, or a URL, is needed")
    return own(ctx, param, value) if own else value


def _writable(own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    if value is not None and "://" not in str(value):
        check_place(f"--{param.name}", value)
    return own(ctx, param, value) if own else value
