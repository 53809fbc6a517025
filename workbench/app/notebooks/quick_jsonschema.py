"""Import jsonschema without its IRI grammars, which take a second or more to build.

nbformat imports jsonschema, and plotly imports nbformat for its first figure: every report process and kernel would
build unused grammars. Import this module before nbformat.
"""

import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import cast

GRAMMARS = "rfc3987_syntax"  # imported by jsonschema if installed

if GRAMMARS not in sys.modules:
    sys.modules[GRAMMARS] = cast(ModuleType, None)  # makes its import fail
    try:
        with suppress(ModuleNotFoundError):  # installations without notebooks
            import_module("jsonschema")
    finally:
        del sys.modules[GRAMMARS]
