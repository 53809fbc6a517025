"""Read the headers of GGUF files and check whether they can be converted; weights are not read."""

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import error as StructError
from typing import Any

import numpy as np

from workbench.core.errors import BadInput
from workbench.models.gguf.pretokenizers import SPLITTINGS

VERSION = 1  # version of the conversion; cached folders of other versions are converted again
# Architectures that transformers can read, verified against the original models.
ARCHITECTURES = ("gemma3", "llama", "mistral", "phi3", "qwen2", "qwen3")
TOKENIZERS = ("gpt2", "llama")  # byte-level, SentencePiece
FLOATS = ("F32", "F16", "BF16")
LLAMA3_ROPE = "rope_freqs.weight"
MAGIC = b"GGUF"
DAMAGED = (ValueError, KeyError, IndexError, OverflowError, MemoryError, OSError, StructError)


@dataclass(frozen=True)
class Header:
    """Metadata and tensor sizes of a GGUF file, from `read_header`."""

    file: Path
    values: dict[str, Any]  #: metadata by name, without arrays
    types: dict[str, str]  #: {tensor: storage type, such as "Q4_1"}
    sizes: dict[str, int]  #: {tensor: number of elements}
    rope_factors: np.ndarray | None  #: [R/2] divisors of the rotary frequencies, if any

    @property
    def architecture(self) -> str:
        return self.values["general.architecture"]

    @property
    def splitting(self) -> str | None:
        """Name of the pretokenizer of a byte-level vocabulary; None for SentencePiece."""
        if self.values["tokenizer.ggml.model"] != "gpt2":
            return None
        return self.values.get("tokenizer.ggml.pre", "default")

    @property
    def parameters(self) -> int:
        return sum(self.sizes.values())

    @property
    def quantisation(self) -> str:
        """Storage type of most weights, such as "Q4_1"."""
        weights: Counter[str] = Counter()
        for name, kind in self.types.items():
            weights[kind] += self.sizes[name]
        return weights.most_common(1)[0][0]

    @property
    def note(self) -> str:
        """Note on quantised weights, shown with results of the converted model; "" if they are not quantised."""
        kind = self.quantisation
        if kind in FLOATS:
            return "" if kind == "BF16" else f"{kind} weights rounded to bf16."
        return f"{_bits(kind)}-bit weights ({kind}) dequantised to bf16: its numbers are those of the quantised model."


def _bits(kind: str) -> str:
    """Return the bits per weight of type `kind`, without scales: "4" for "Q4_1"."""
    return next(iter(re.findall(r"\d+", kind)), kind)


def read_header(file: str | Path) -> Header:
    """Read the header of a GGUF file.

    Raises BadInput for another kind of file, a damaged or truncated file, and one that cannot be converted.
    """
    path = Path(file)
    if not path.is_file():
        raise BadInput(f"there is no file {path}: a GGUF file is needed")
    with path.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise BadInput(f"{path} is no GGUF file: it does not begin with GGUF")
    from gguf import GGUFReader  # optional: only needed for conversion

    try:
        header = _header(path, GGUFReader(path))
    except DAMAGED as problem:
        raise BadInput(f"{path} is damaged or cut short: {problem}") from None
    if reason := _why_not(header):
        raise BadInput(f"{path} cannot be converted: {reason}")
    return header


def _header(path: Path, reader: Any) -> Header:
    scalars = {key: field.contents() for key, field in reader.fields.items() if len(field.types) == 1}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    factors = tensors[LLAMA3_ROPE].data if LLAMA3_ROPE in tensors else None
    return Header(
        path,
        scalars,
        {name: tensor.tensor_type.name for name, tensor in tensors.items()},
        {name: prod(int(size) for size in tensor.shape) for name, tensor in tensors.items()},
        None if factors is None else np.array(factors, dtype=np.float64),
    )


def _why_not(header: Header) -> str | None:
    """Return why a file cannot be converted, or None."""
    values = header.values
    architecture = values.get("general.architecture")
    if architecture not in ARCHITECTURES:
        return f"its architecture is {architecture!r}, supported are {', '.join(ARCHITECTURES)}"
    if not header.types:
        return "it holds no weights"
    if values.get("split.count", 1) > 1:
        return f"it is one of {values['split.count']} parts, one whole file is needed"
    if values.get("tokenizer.ggml.model") not in TOKENIZERS:
        return f"its tokenizer is {values.get('tokenizer.ggml.model')!r}, supported are {', '.join(TOKENIZERS)}"
    if header.splitting is not None and header.splitting not in SPLITTINGS:
        known = ", ".join(sorted(SPLITTINGS))
        return f"its vocabulary splits text by the rule {header.splitting!r}, known are {known}"
    scaling = values.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or any(name.startswith("rope_factors") for name in header.types):
        return f"its RoPE is scaled ({scaling}), which the file does not describe in full: use its safetensors"
    return None
