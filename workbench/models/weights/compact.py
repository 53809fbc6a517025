"""Weights stored in 8 bits, half the size of bf16, to keep shipped models small.

A matrix is stored as int8 with one scale a row, its largest magnitude over 127; all other weights as bf16. The file has
a name of its own, so that it is not mistaken for plain weights: `models.load` reads it, `from_pretrained` finds none.

Also the layout of weights in CPU memory: a `Linear` multiplies by the transpose of its weight [out, in]. Stored by
input channel, the fp32 product of a question's rows is faster in torch, and that of one row no slower. Shape, values
and `state_dict` stay; copies and files of the weights have the usual layout.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workbench.models.checkpoints import COMPACT, SCALE


@torch.no_grad()
def by_input_channel(model: PreTrainedModel) -> None:
    """Store the fp32 weights of a decoder's projections by input channel, in place."""
    for module in model.get_decoder().modules():
        if type(module) is nn.Linear and module.weight.dtype == torch.float32 and module.weight.is_contiguous():
            module.weight.data = module.weight.data.t().contiguous().t()


def as_loaded(x: torch.Tensor) -> torch.Tensor:
    """Return a weight in transformers' memory layout: itself, or a copy if it is stored by input channel."""
    return x if x.is_contiguous() else nn.Parameter(x.detach().contiguous(), requires_grad=x.requires_grad)


LARGEST = 127


def pack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Round matrices to int8, each row by its own scale, and everything else to bf16."""
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
    """Return the weights that `pack` rounded, in fp32; the error of a matrix is at most half the scale of the row."""
    names = [name for name in packed if not name.endswith(SCALE)]
    exact = {name: packed[name].float() for name in names}
    return {name: x * packed[name + SCALE] if name + SCALE in packed else x for name, x in exact.items()}


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write config and weights in 8 bits to a folder; weights that are tied are written once."""
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    once = {weight.data_ptr(): name for name, weight in reversed(model.state_dict().items())}
    weights = {name: weight for name, weight in model.state_dict().items() if name in once.values()}
    save_file({name: weight.contiguous() for name, weight in pack(weights).items()}, folder / COMPACT)


def load(folder: Path, dtype: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a folder's model with its 8-bit weights, and the report of `filled`."""
    return filled(folder, unpack(load_file(folder / COMPACT)), dtype)


def filled(folder: Path, weights: dict[str, Tensor], dtype: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a folder's model with these weights, and a report of missing or misshapen weights.

    The report is `from_pretrained`'s loading info. `dtype` "auto" is the config's own.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype if dtype == "auto" else dtype)
    own = model.state_dict()
    misfits = {name for name, weight in weights.items() if name in own and own[name].shape != weight.shape}
    with torch.no_grad():
        for name in weights.keys() & own.keys() - misfits:
            own[name].copy_(weights[name])
    filled = {own[name].data_ptr() for name in weights.keys() & own.keys()}
    missing = {name for name, weight in own.items() if weight.data_ptr() not in filled}
    return model, {"missing_keys": missing, "mismatched_keys": misfits}
