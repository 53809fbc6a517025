"""Int8 weights, half the size of bf16, for shipped models; and the memory layout of weights on a CPU.

A matrix is stored as int8 with one scale per row, its largest magnitude over 127; other weights as bf16. The file name
is not a standard one, so only `models.load` reads it; `from_pretrained` finds no weights.

`Linear` multiplies by the transpose of its weight [out, in]. If the weight is stored by input channel, torch's fp32
product is faster for the rows of a question, and not slower for one row. Shape, values and `state_dict` are unchanged;
copies and files of the weights have the usual layout.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workbench.models.checkpoints import COMPACT, SCALE

LARGEST = 127


@torch.no_grad()
def by_input_channel(model: PreTrainedModel) -> None:
    """Store the fp32 weights of a decoder's projections by input channel, in place."""
    for module in model.get_decoder().modules():
        if type(module) is nn.Linear and module.weight.dtype == torch.float32 and module.weight.is_contiguous():
            module.weight.data = module.weight.data.t().contiguous().t()


def as_loaded(x: torch.Tensor) -> torch.Tensor:
    """Return a weight in transformers' memory layout: itself, or a copy if it is stored by input channel."""
    return x if x.is_contiguous() else nn.Parameter(x.detach().contiguous(), requires_grad=x.requires_grad)


def pack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Round matrices to int8 with one scale per row, and other weights to bf16."""
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() != 2:
            packed[name] = weight.bfloat16()
            continue
        exact = weight.float()
        scale = (exact.abs().amax(1, keepdim=True) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        packed[name], packed[name + SCALE] = (exact / scale).round().to(torch.int8), scale
    return packed


def unpack(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of `pack` in fp32; the error of a matrix element is at most half the scale of its row."""
    names = [name for name in packed if not name.endswith(SCALE)]
    exact = {name: packed[name].float() for name in names}
    return {name: x * packed[name + SCALE] if name + SCALE in packed else x for name, x in exact.items()}


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write config and int8 weights to a folder; tied weights are written once."""
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    once = {weight.data_ptr(): name for name, weight in reversed(model.state_dict().items())}
    weights = {name: weight for name, weight in model.state_dict().items() if name in once.values()}
    save_file({name: weight.contiguous() for name, weight in pack(weights).items()}, folder / COMPACT)


def load(folder: Path, dtype: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a folder's model with its int8 weights, and the report of `load_compact`."""
    return load_compact(folder, unpack(load_file(folder / COMPACT)), dtype)


def load_compact(folder: Path, weights: dict[str, Tensor], dtype: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a folder's model with these weights, and a report of missing or misshapen weights.

    The report has the form of `from_pretrained`'s loading info. `dtype` "auto" is that of the config.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype if dtype == "auto" else dtype)
    own = model.state_dict()
    mismatched = {name for name, weight in weights.items() if name in own and own[name].shape != weight.shape}
    with torch.no_grad():
        for name in weights.keys() & own.keys() - mismatched:
            own[name].copy_(weights[name])
    present = {own[name].data_ptr() for name in weights.keys() & own.keys()}
    missing = {name for name, weight in own.items() if weight.data_ptr() not in present}
    return model, {"missing_keys": missing, "mismatched_keys": mismatched}
