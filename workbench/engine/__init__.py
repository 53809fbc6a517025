"""One forward pass: encode blocks, assemble a prompt from them, prefill what a plan asks for, decode."""

from workbench.engine.forward import (
    Positions,
    PrefillOutput,
    PrefillRequest,
    assemble,
    empty,
    encode,
    encode_many,
    prefill,
    prefill_many,
)
from workbench.engine.support import prepare_model

__all__ = [
    "Positions", "PrefillOutput", "PrefillRequest",
    "assemble", "empty", "encode", "encode_many", "prefill", "prefill_many", "prepare_model",
]  # fmt: skip
