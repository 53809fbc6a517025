"""How a prompt gets its keys and values: what of it is computed, and what comes from cached blocks.

A method is a frozen dataclass. `begin` makes requests of a batch of prompts, ready for the forward pass that gives
their first token. `Full`, `Reuse` and `Superposition` are the methods; what differs between the published systems
that reuse blocks are the preparation, the selection and the positions that `Reuse` is given.
"""

from typing import TYPE_CHECKING

from workbench.core import renamed

if TYPE_CHECKING:
    from workbench.methods.method import Method as Method
    from workbench.methods.method import ReadyRequest as ReadyRequest
    from workbench.methods.method import finish as finish

# Imported when they are asked for: names of methods are known, as for `--help`, without torch.
renamed.elsewhere(__name__, **dict.fromkeys(("Method", "ReadyRequest", "finish"), "workbench.methods.method"))
