"""Parse untrusted JSON: every failure becomes a one-line error."""

import json
import re
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.utils.files import is_file

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str) -> Any:
    """Return the value of a JSON text.

    Raises BadInput for invalid JSON, nesting that is too deep, integers with more digits than Python reads, and lone
    surrogates, which files and tokenizers reject.
    """
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        raise NotJson(f"not JSON ({problem.msg})", problem) from None
    except RecursionError:
        raise BadInput("its lists and objects are nested too deep") from None
    except UnicodeEncodeError:
        raise BadInput("it holds half a character (a lone surrogate, as \\ud800)") from None
    except ValueError:
        raise BadInput("it holds a whole number of too many digits") from None
    return value


class NotJson(BadInput):
    """A text that is not JSON, with the decoder's message and position."""

    def __init__(self, message: str, problem: json.JSONDecodeError) -> None:
        super().__init__(message)
        self.line = problem.lineno
        self.is_more = problem.msg.startswith("Extra data")


def read_json(path: Path, kind: type = dict, hint: str = "a JSON file is needed") -> Any:
    """Return the content of a JSON file: an object, or another `kind`. Raises BadInput that names the file."""
    if not is_file(path):
        raise BadInput(f"{path} is missing: {hint}")
    try:
        value = loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BadInput) as problem:
        raise BadInput(f"{path} is corrupt or half-written: {problem}") from None
    if not isinstance(value, kind):
        needed = "an object" if kind is dict else f"a {kind.__name__}"
        raise BadInput(f"{path} is corrupt: {needed} is needed, not {type(value).__name__}")
    return value
