"""The `workbench` command. Bad input is one line `error: …` on stderr and exit code 2, with nothing written.

A subcommand is imported when it is called, so `workbench --help` does not wait for torch.
"""

import atexit
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer

from workbench.app.console import at_once
from workbench.app.console.option_checks import check_given, refuse_unfit
from workbench.app.console.text import note
from workbench.core.errors import BadInput, not_allowed, printable, shorten
from workbench.core.utils.stages import NOTHING
from workbench.core.utils.versions import versions

COMMANDS = {  # name: module with a Typer `app`, line in `workbench --help`
    "trial": (".trial", "Answer questions with one method and report quality, time to first token and cost."),
    "sweep": (".sweep", "Run every combination of lists of options; rerun to resume after an interruption."),
    "compare": (".compare", "Compare runs, trials or models: paired differences and changed settings."),
    "leaderboard": (
        "workbench.app.leaderboard.command",
        "Rank methods on the same questions within a compute budget: quality, cost and significant differences.",
    ),
    "claims": (".claims", "Judge the papers' claims on any results: confirmed, contradicted, or still to be measured."),
    "prepare": (".prepare", "Cache the passages of a data set in advance, with one preprocessing method."),
    "store": (
        ".store",
        "Manage stores of cached blocks: encode, verify, repair, stats, gc, export, import, explain misses.",
    ),
    "verify": (
        ".verify",
        "Check whether a model's blocks can be reused: rotation, recomputation, noise floor, first reuse.",
    ),
    "serve-bench": (".serve_bench", "Benchmark serving through the scheduler: TTFT, throughput and idle share."),
    "trace": (".trace", "Export the events of a run in Chrome trace format, for Perfetto."),
    "tune": ("workbench.app.training.tune", "Fine-tune a model for block attention, keeping full attention."),
    "sparse": (".sparse", "Fit sparse attention to a model: a learned gate or per-head thresholds."),
    "bench": (".bench", "Time the kernels and their baselines on this GPU, or check their results."),
    "report": (".report", "Run the notebooks and write a website with figures, metrics and tables."),
    "models": (".models", "List shipped and fetched models; fetch or convert a model."),
    "data": (".data", "Inspect a data set and the prompts a model reads, or write samples to a file."),
    "lab": ("workbench.app.training.lab", "Train a lab model, or convert one to its shipped form."),
}
PANELS = {  # of `workbench --help`
    "Ask questions and compare": "trial sweep compare leaderboard claims",
    "Cached blocks": "prepare store serve-bench trace",
    "Models and data": "models data verify tune sparse lab",
    "Pages and kernels": "report bench",
}
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
SPINS = "4000"  # spins of a libgomp thread before it sleeps: twice as fast as the default on busy cores


class Commands(typer.core.TyperGroup):
    """Imports a subcommand on call. Exit codes: 2 for BadInput, 130 for Ctrl-C, 1 for other errors."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in PANELS.values() for name in names.split()]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        panel = next(panel for panel, names in PANELS.items() if name in names.split())
        return typer.core.TyperCommand(name, help=COMMANDS[name][1], rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise _inside(args[0]) or not_allowed("command", args[0], COMMANDS)
        name, command, rest = super().resolve_command(ctx, args)
        try:
            os.getcwd()
        except OSError:
            raise BadInput("the working directory no longer exists: change to another") from None
        if name in COMMANDS:
            command = typer.main.get_command(import_module(COMMANDS[name][0], "workbench.app.commands").app)
            logging = sys.modules.get("transformers.utils.logging")
            if logging and not sys.stderr.isatty():
                logging.disable_progress_bar()  # while loading weights, unless the session is interactive
            inner = getattr(command, "commands", None)
            if inner and rest and not rest[0].startswith("-") and rest[0] not in inner:
                raise not_allowed(f"command of {name}", rest[0], inner)
            check_given(command, not any(arg.startswith("--cluster") for arg in rest))
            refuse_unfit(name, command, rest)
        at_once.disarm()
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
            where = f"{shorten(problem.filename)}: " if problem.filename else ""
            typer.echo(f"error: {where}{problem.strerror}; nothing half-written is left of it", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stop:  # `core.utils.stages.keeps` says what is kept
            at_once.end()
            typer.echo(f"stopped: {printable(str(stop)) or NOTHING}", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None


def _inside(name: str) -> BadInput | None:
    """Return an error that names the group of a command typed without it, such as `encode`."""
    for group in ("store", "models"):  # which import little
        commands = typer.main.get_command(import_module(COMMANDS[group][0], "workbench.app.commands").app)
        if name in getattr(commands, "commands", {}):
            return BadInput(f"unknown command {name!r}: did you mean '{group} {name}'?")
    return None


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
    """Make `app` a group although it has no default command."""


def main() -> None:
    """Run the `workbench` command, then exit without Python's slow teardown of torch.

    Unless `GOMP_SPINCOUNT` or `OMP_WAIT_POLICY` is set, waiting torch threads spin for microseconds instead of
    milliseconds: longer spins occupy cores that other threads need on a busy machine.
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
    finally:
        at_once.end()


def _leave(ended: Sequence[int]) -> None:
    """Exit with the recorded code; without one, leave it to Python."""
    with suppress(OSError, ValueError):  # a closed pipe, which Python reports
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
