"""The engine: encode blocks, assemble a prompt from them, prefill the tokens of a plan, decode."""

from workbench.engine.assembly import Positions, assemble, empty
from workbench.engine.encoding import encode, encode_many
from workbench.engine.forward import PrefillOutput, PrefillRequest, prefill, prefill_many

__all__ = [
    "Positions",
    "PrefillOutput",
    "PrefillRequest",
    "assemble",
    "empty",
    "encode",
    "encode_many",
    "prefill",
    "prefill_many",
]
