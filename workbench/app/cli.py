"""The `workbench` command. Bad input is one line `error: …` on stderr and exit code 2, with nothing written.

A subcommand is imported when it is called, so `workbench --help` does not wait for torch.
"""

import atexit
import errno
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer

from workbench.app.console.text import importing, note, progress
from workbench.core.errors import BadInput, brief, not_allowed, printable, shown
from workbench.core.utils.files import check_place, is_file
from workbench.core.utils.versions import versions

COMMANDS = {  # name: module with a Typer `app`, what `workbench --help` says of it
    "trial": (".trial", "Answer questions with one method and report quality, time to first token and cost."),
    "sweep": (".sweep", "Try every combination of lists of options; run again to go on after an interruption."),
    "compare": (".compare", "Set runs, trials or models side by side: paired differences, and what changed."),
    "leaderboard": (
        "workbench.app.leaderboard.command",
        "Rank methods on the same questions within a charged budget: quality, what they cost, which are told apart.",
    ),
    "claims": (".claims", "Judge what the papers claim on any results: what holds, what fails, what to measure."),
    "prepare": (".prepare", "Cache the passages of a data set beforehand, with one preparation."),
    "store": (
        ".store",
        "Stores of cached blocks: encode a corpus, verify, repair, explain misses, gc, export, import.",
    ),
    "verify": (".verify", "One page of verdicts on a model: rotation, recomputation, noise floor, first reuse."),
    "serve-bench": (".serve_bench", "Serve many questions through the scheduler: TTFT, throughput and idle share."),
    "trace": (".trace", "Write the events of a run in Chrome's trace format, which Perfetto opens."),
    "tune": (".tune", "Block fine-tuning of a model, for full and block attention."),
    "sparse": (".sparse", "Fit sparse attention to a model: a learned gate, thresholds of heads."),
    "bench": (".bench", "Time the kernels beside their baselines on this GPU, or check them."),
    "report": (".report", "Run the notebooks and write a website of figures, metrics and tables."),
    "models": (".models", "List the models that are shipped or fetched; fetch or convert one."),
    "data": (".data", "Look at a data set and the prompts that a model reads, or write samples of it to a file."),
    "lab": ("workbench.training.lab.commands", "The lab model: train one, copy it as it ships."),
}
PANELS = {  # of `workbench --help`
    "Ask questions and compare": "trial sweep compare leaderboard claims",
    "Cached blocks": "prepare store serve-bench trace",
    "Models and data": "models data verify tune sparse lab",
    "Pages and kernels": "report bench",
}
OUTPUTS = ("out", "html", "markdown", "untrained", "to", "figure")  # options that name a file or folder to write
INPUTS = ("store", "prepared")  # options that name a folder to read
NEIGHBOURS = {"--n", "--neighbours", "--neighbors"}  # options that prepare has, or somebody would expect
NEEDED = {  # option: what refuses an unknown value, before anything heavy is imported
    "--model": "workbench.models.checkpoints.named",
    "--data": "workbench.data.check_name",
    "--results": "workbench.data.assets.results_path",
    "--method": "workbench.methods.presets.check_name",
    "--methods": "workbench.methods.presets.check_name",
    "--positions": "workbench.methods.method_fields.check_positions",
    "--engine": "workbench.methods.method_fields.check_engine",
}
ASKING = ("trial", "sweep", "leaderboard", "serve-bench")  # commands whose --data are questions
POLICIES = ("prepare", "select", "correct", "attend", "sparse")
NAMES = NEEDED | {  # the same of options that may be "none" in a list
    **{f"--{kind}": f"workbench.methods.{kind}" for kind in POLICIES},
    "--dtype": "workbench.models.model_names.check_dtype",
    "--layout": "workbench.data.layouts.check",
    "--prepared": "workbench.app.commands.store.there",
    "--faithfulness": "workbench.models.model_names.check_judge",
}
LEAST = {"seed": 0, "chunk": 1}  # of options that are whole numbers
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
SPINS = (
    "4000"  # of a thread of libgomp before it sleeps: as fast as longer on idle cores, and twice as fast on busy ones
)


class Commands(typer.core.TyperGroup):
    """Imports a subcommand when it is called, and ends it with exit code 2 on BadInput, 1 on any other exception."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in PANELS.values() for name in names.split()]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        panel = next(panel for panel, names in PANELS.items() if name in names.split())
        return typer.core.TyperCommand(name, help=COMMANDS[name][1], rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise not_allowed("command", args[0], COMMANDS)
        name, command, rest = super().resolve_command(ctx, args)
        try:
            os.getcwd()
        except OSError:
            raise BadInput("the folder that this command runs in is not there any more: go to another") from None
        if name in COMMANDS:
            command = typer.main.get_command(import_module(COMMANDS[name][0], "workbench.app.commands").app)
            logging = sys.modules.get("transformers.utils.logging")
            if logging and not sys.stderr.isatty():
                logging.disable_progress_bar()  # of weights that are loaded, unless a person watches
            inner = getattr(command, "commands", None)
            if inner and rest and not rest[0].startswith("-") and rest[0] not in inner:
                raise not_allowed(f"command of {name}", rest[0], inner)
            _check_given(command, not any(arg.startswith("--cluster") for arg in rest))
            named = {option for param in command.params for option in param.opts}
            if "--prepare" in named and (odd := {arg.partition("=")[0] for arg in rest} & NEIGHBOURS - named):
                raise BadInput(f'{name} has no option {min(odd)}: --prepare "with_neighbours(n=3)" sets how many')
            _refuse_unfit(rest)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BadInput as problem:
            typer.echo(f"error: {printable(str(problem))}", err=True)
            raise typer.Exit(2) from None
        except OSError as problem:
            if problem.errno not in REFUSED:
                raise
            where = f"{brief(problem.filename)}: " if problem.filename else ""
            typer.echo(f"error: {where}{problem.strerror}; nothing half-written is left of it", err=True)
            raise typer.Exit(2) from None


def _check_given(command: Any, here: bool) -> None:
    """Let a command refuse, before its own checks and imports, outputs that cannot be written and unknown names.

    `here`: it computes on this machine.
    """
    for inner in getattr(command, "commands", {}).values():
        _check_given(inner, here)
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


def _refuse_unfit(args: Sequence[str]) -> None:
    """Refuse an output without a name, which typer would take for the folder at hand, and one that is also read."""
    values = [arg.partition("=")[2] if arg.startswith("--") else arg for arg in args]
    written: list[str] = []
    for option, value in pairwise([*args, "-"]):
        name, equals, given = option.partition("=")
        if not name.startswith("--") or name[2:] not in OUTPUTS:
            continue
        if not (place := given if equals else value):
            raise BadInput(f"{name} '': the name of a file or folder is needed")
        if is_file(place) and sum(is_file(other) and os.path.samefile(place, other) for other in values) > 1:
            raise BadInput(f"{name} {shown(place)} is a file that this command reads or writes otherwise: name another")
        if place.endswith(os.sep) and name != "--out":
            raise BadInput(f"{name} {shown(place)} is the name of a folder: a file is needed")
        written.append(os.path.realpath(place))
    if twice := [place for place in written if written.count(place) > 1]:
        raise BadInput(f"{shown(twice[0])} would be written twice: name two files")


def _known(own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    given = [value] if isinstance(value, str | os.PathLike) else value or []
    if param.metavar == "LIST":
        from workbench.core.spec_parser import split

        given = [name for name in split(value or "") if name]
    if not ctx.params.get("results") or param.name == "results":  # results may be of what is not here
        module, _, check = NAMES[param.opts[0]].rpartition(".")
        for name in map(str, given):
            if "://" in name or (name == "none" and param.opts[0] not in NEEDED):
                continue
            if check == "check_name" and ctx.command.name in ASKING and param.name == "data":
                check = "check_questions"
            if check in POLICIES:
                import_module("workbench.methods.registry").check_name(f"{module}.{check}", name)
            else:
                getattr(import_module(module), check)(name)
    return own(ctx, param, value) if own else value


def _placed(here: bool, own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    """Refuse a device that is none, and one that is not there: torch is asked for GPUs alone."""
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
        raise BadInput(f"{param.opts[0]} is {shown(value)}: a whole number of at least {least} is needed")
    return own(ctx, param, value) if own else value


def _named(own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    if value is not None and str(value) in ("", "."):
        raise BadInput(f"{param.opts[0]} '': the name of a folder, or a URL, is needed")
    return own(ctx, param, value) if own else value


def _writable(own: Callable[..., Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    if value is not None and "://" not in str(value):
        check_place(f"--{param.name}", value)
    return own(ctx, param, value) if own else value


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Cached-block attention on real language models: reuse, shift and recompute the keys and values of a prompt.",
    epilog="Begin with: workbench trial --model lab-full --mode block --samples 40",
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(", ".join(f"{package} {version}" for package, version in versions().items()))
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """Make `app` a group although it has no command of its own."""


def main() -> None:
    """Run the `workbench` command, then end the process at once.

    Python would take torch and transformers apart object by object, for a second; the system frees them in no time.
    Threads of torch that wait for one another spin for some microseconds, then sleep, unless `GOMP_SPINCOUNT` or
    `OMP_WAIT_POLICY` says otherwise: by default they spin for milliseconds, on the very core that the others wait for
    where a machine has more to do.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is imported
    ended: list[int] = []
    atexit.register(_leave, ended)  # registered first, so it is called last
    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int):
            ended.append(end.code)
        raise


def _leave(ended: Sequence[int]) -> None:
    """End the process with the code that it ended with; what ended otherwise is left to Python."""
    with suppress(OSError, ValueError):  # a closed pipe: Python says so
        sys.stdout.flush()
        sys.stderr.flush()
        for code in ended:
            os._exit(code)


def run() -> None:
    """Run the `workbench` command within this process.

    A character that the terminal's encoding lacks is shown as a question mark.
    """
    if not os.environ.get("COLUMNS", "80").isdigit() or int(os.environ.get("COLUMNS", "80")) < 1:
        del os.environ["COLUMNS"]  # no width at all: nothing would be printed
    warnings.formatwarning = note
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app()


if __name__ == "__main__":
    main()
