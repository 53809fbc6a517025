"""Commands of the workbench, run in this process: what they print, or the one line that bad input ends in."""

from typer.testing import CliRunner

from workbench.app import cli


def told(*words: object) -> str:
    """Run a command that ends well; return what it prints."""
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == 0, f"{words}\n{done.output}\n{done.exception!r}"
    return done.stdout


def refused_command(*words: object) -> str:
    """Run a command with what cannot be: it ends with code 2 and one line, which is returned."""
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == 2, done.output
    *before, line = done.stderr.splitlines()
    assert line.startswith("error: ") and all(", after " in each for each in before)  # on a slow machine
    return line
