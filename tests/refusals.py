"""What bad input must end in: one sentence."""

from collections.abc import Callable
from typing import Any

import pytest

from workbench.core.errors import BadInput


def refused(words: str, call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Call with what cannot be: BadInput on one line, in which the pattern `words` is found; return the line."""
    with pytest.raises(BadInput, match=words) as problem:
        call(*given, **named)
    assert "\n" not in str(problem.value)
    return str(problem.value)
