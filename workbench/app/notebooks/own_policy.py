"""A selector, preparation or sparse method from its source text, before it has a file of its own."""

import sys
from dataclasses import is_dataclass
from types import ModuleType

from workbench.core.errors import BadInput
from workbench.methods.select import Select


def from_source(source: str, name: str) -> type:
    """Return the policy that a file `name`.py with this text would hold: its dataclass, named like the file.

    The text is run as it stands, so it is for text of one's own. Raises BadInput where it is no Python, or holds no
    dataclass of that name.
    """
    wanted = name.title().replace("_", "")
    if not name.isidentifier():
        raise BadInput(f"{name!r} is no name of a file of Python: allowed are letters, digits and underscores")
    module = ModuleType(f"own_{name}", source)
    sys.modules[module.__name__] = module  # dataclasses look there for annotations
    try:
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    except SyntaxError as problem:
        raise BadInput(f"{name}.py, line {problem.lineno}: {problem.msg}") from None
    found = getattr(module, wanted, None)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise BadInput(f"{name}.py holds no dataclass {wanted}: a file's policy carries the name of the file")
    return found


def selector(source: str, name: str) -> Select:
    """Return a selector from its source text, with its defaults. Raises BadInput where the class is no Select."""
    policy = from_source(source, name)
    if not issubclass(policy, Select):
        raise BadInput(f"{policy.__name__} is no selector: let it inherit from workbench.methods.select.Select")
    return policy()
