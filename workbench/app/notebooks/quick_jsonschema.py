"""Import jsonschema without its check of internationalised addresses, which builds grammars for a second or more.

nbformat imports jsonschema, and plotly imports nbformat when it shows its first figure: each process of a report and
each kernel would wait for grammars that nothing here asks for. Import this module before nbformat.
"""

import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import cast

GRAMMARS = "rfc3987_syntax"  # imported by jsonschema where it is installed

if GRAMMARS not in sys.modules:
    sys.modules[GRAMMARS] = cast(ModuleType, None)  # importing it fails
    try:
        with suppress(ModuleNotFoundError):  # where notebooks are neither run nor shown
            import_module("jsonschema")
    finally:
        del sys.modules[GRAMMARS]
