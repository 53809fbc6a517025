"""Convert GGUF files to Hugging Face checkpoints: bf16 safetensors, config, tokenizer, model card.

transformers reads and dequantises the weights. This module adds two things that transformers drops: the pretokenizer of
a byte-level vocabulary (`gguf.pretokenizers`), and Llama 3's RoPE scaling.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers import logging as transformers_logging
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from workbench.core.errors import BadInput
from workbench.core.utils.files import digest, folder_atomically, need_room
from workbench.models import families
from workbench.models.gguf.header import VERSION, Header, read_header
from workbench.models.gguf.pretokenizers import SPLITTINGS

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXT = 8192  # Llama 3's context in tokens before its frequencies were scaled
BYTES = 2  # size of a bf16 number


def convert(file: str | Path, folder: str | Path) -> Path:
    """Convert a GGUF file to a new checkpoint folder, atomically, and return its path.

    Raises BadInput for an existing folder, a file that is damaged or of an unsupported family, and a disk without
    enough space, before anything is written.
    """
    if Path(folder).exists():
        raise BadInput(f"{folder} is there already: a new folder is needed")
    return write(read_header(file), Path(folder))


def write(header: Header, path: Path, note: str | None = None, origin: Mapping[str, str] | None = None) -> Path:
    """Convert as `convert` does; a folder at `path` is replaced.

    `note` is shown with every result of the model; None: a note on the file's quantisation. `origin` are lines of the
    model card: {"Licence": "Apache-2.0", …}.
    """
    need_room(path, BYTES * header.parameters)
    note = header.note if note is None else note
    with _quiet():
        config = _config(header)
        model, tokenizer = _model(header, config), _tokenizer(header)
    with _quiet(), folder_atomically(path) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        source = {"file": header.file.name, "sha256": digest(header.file), "conversion": VERSION}
        declared = json.dumps({"note": note, "source": source}, indent=1)
        (partial / "workbench.json").write_text(declared + "\n", encoding="utf-8")
        card = _card(path.name, note, source, header, config, origin or _origin(header))
        (partial / "README.md").write_text(card, encoding="utf-8")
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' messages about quantised files, but keep its progress bars on a terminal."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with redirect_stderr(sys.stderr if sys.stderr.isatty() else StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(before)


def _read(header: Header, auto: Any, what: str, **options: Any) -> Any:
    """Read a part of the file with transformers."""
    try:
        return auto.from_pretrained(header.file.parent, gguf_file=header.file.name, **options)
    except Exception as problem:  # of any type: the parser validates little
        raise BadInput(
            f"{header.file} cannot be converted: transformers cannot read its {what}: {problem}"
        ) from problem


def _config(header: Header) -> PreTrainedConfig:
    """Return the configuration. Raises Unsupported for a model that cannot be used."""
    config = _read(header, AutoConfig, "configuration")
    config.name_or_path = header.file.name
    if header.rope_factors is not None:
        _scale_as_llama3(header.file, config, header.rope_factors)
    families.check(config)
    return config


def _scale_as_llama3(file: Path, config: PreTrainedConfig, factors: np.ndarray) -> None:
    """Set Llama 3's RoPE scaling from the file's `factors` [R/2]. Raises BadInput for other factors."""
    plain = config.rope_parameters
    scale = {"factor": float(factors.max()), "original_max_position_embeddings": LLAMA3_CONTEXT}
    config.rope_parameters = plain | LLAMA3 | scale
    inv_freq = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].double().numpy()
    unscaled = plain["rope_theta"] ** -(np.arange(len(inv_freq)) / len(inv_freq))
    if inv_freq.shape != factors.shape or not np.allclose(unscaled / inv_freq, factors, rtol=1e-3):
        raise BadInput(f"{file} cannot be converted: its RoPE factors are not those of Llama 3")


def _model(header: Header, config: PreTrainedConfig) -> PreTrainedModel:
    """Return the dequantised model in bf16, without the quantisation mark that `save_pretrained` would reject."""
    options = {"dtype": torch.bfloat16, "output_loading_info": True}
    loaded, report = _read(header, AutoModelForCausalLM, "weights", **options)
    if lacking := sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"]):
        raise BadInput(f"{header.file} is not whole: {len(lacking)} weights are missing, first {lacking[0]}")
    config = _clean(config)
    model = type(loaded)(config).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = loaded.generation_config
    if spoilt := [name for name, weight in model.named_parameters() if not weight.isfinite().all()]:
        raise BadInput(f"{header.file} is damaged: {spoilt[0]} holds numbers that are not finite")
    return model.eval()


def _clean(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration without transformers' references to the GGUF file."""
    for name in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, name):
            delattr(config, name)
    config.dtype = torch.bfloat16
    return config


def _tokenizer(header: Header) -> Any:
    tokenizer = _read(header, AutoTokenizer, "tokenizer")
    if header.splitting is not None:
        SPLITTINGS[header.splitting].apply(tokenizer.backend_tokenizer)
    return tokenizer


def _origin(header: Header) -> dict[str, str]:
    keys = {"Model": "name", "By": "organization", "Licence": "license", "Address": "url"}
    given = {label: header.values.get(f"general.{key}") for label, key in keys.items()}
    return {label: str(value) for label, value in given.items() if value} | {"File": header.file.name}


def _card(
    name: str, note: str, source: Mapping[str, Any], header: Header, config: PreTrainedConfig, origin: Mapping[str, str]
) -> str:
    decoder = families.decoder_config(config)
    lines = [f"{label}: {value}" for label, value in origin.items()]
    lines.append(f"SHA-256 of the GGUF file: `{source['sha256']}`")
    lines.append(
        f"{header.parameters:,} parameters stored as {header.quantisation}, `{config.model_type}`: "
        f"{decoder.num_hidden_layers} layers, width {decoder.hidden_size}, {decoder.num_attention_heads} query and "
        f"{decoder.num_key_value_heads} KV heads, vocabulary {decoder.vocab_size}, "
        f"context {decoder.max_position_embeddings}"
    )
    lines.append("Converted once to bf16 safetensors by the cached-block attention workbench (`workbench models`).")
    head = f"# {name}\n\n" + (f"{note} Say so on figures.\n\n" if note else "")
    return head + "\n".join(f"- {line}" for line in lines) + "\n"
