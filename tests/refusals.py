"""What bad input must end in: one sentence."""

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from workbench.app import cli
from workbench.core.errors import BadInput


def refused(words: str, call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Call with what cannot be: BadInput on one line, in which the pattern `words` is found; return the line."""
    with pytest.raises(BadInput, match=words) as problem:
        call(*given, **named)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def refused_command(*words: object) -> str:
    """Run a command with what cannot be: it ends with code 2 and one line, which is returned."""
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == 2, done.output
    *before, line = done.stderr.splitlines()
    assert line.startswith("error: ") and all(", after " in each for each in before)  # on a slow machine
    return line
