"""Adapters: low-rank updates of a base model's weights (LoRA, arXiv:2106.09685) in a small separate folder.

adapter_config.json, adapter_model.safetensors   in `peft`'s format; `peft` is not needed to load them
soft_tokens.safetensors                          in addition or instead (`models.weights.soft_tokens`)
workbench.json                                   {"layout": …, "adapter": {"base": name, "weights": their digest}}
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from workbench.core.errors import BadInput
from workbench.models.weights import SOFT_TOKENS

if TYPE_CHECKING:  # folders are described without torch
    import torch
    from torch import nn

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
# options of peft that change the result, each with the values that leave scale · B A
_PLAIN = {"bias": ("none",), "use_dora": (False,), "rank_pattern": ({},), "alpha_pattern": ({},)}
_PLAIN |= {"fan_in_fan_out": (False,), "modules_to_save": ([],), "lora_bias": (False,)}


@dataclass(frozen=True)
class Adapter:
    """An adapter folder: each weight W [out, in] that it names becomes W + scale · B A, with B [out, r] and A [r, in].

    An adapter of rank 0 has only soft tokens.
    """

    path: Path
    base: str  #: name or folder of the base model
    digest: str | None  #: `digest_of` the base model's weights; None: not recorded
    rank: int
    scale: float

    @classmethod
    def of(cls, path: Path, config: Mapping[str, Any], declared: Mapping[str, Any]) -> "Adapter":
        """Parse `adapter_config.json` ({} if it is missing) and the entry "adapter" of `workbench.json`.

        Raises BadInput for an adapter that is not plain LoRA or names no base model.
        """
        if not config:
            config = {"peft_type": "LORA", "r": 1, "lora_alpha": 0}
            return replace(cls.of(path, config, declared), rank=0)
        if config.get("peft_type") != "LORA":
            raise BadInput(f"{path / CONFIG}: peft_type is {config.get('peft_type')!r}, only LORA adapters are loaded")
        for name, plain in _PLAIN.items():
            if (value := config.get(name)) is not None and value not in plain:
                raise BadInput(f"{path / CONFIG}: {name} is {value!r}, only plain LoRA is loaded ({name} {plain[0]!r})")
        rank, alpha = config.get("r"), config.get("lora_alpha")
        if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
            raise BadInput(f"{path / CONFIG}: r is {rank!r} and lora_alpha {alpha!r}, two numbers are needed")
        base = declared.get("base") or config.get("base_model_name_or_path")
        if not isinstance(base, str):
            raise BadInput(f"{path} names no base model: workbench.json with an adapter object, base in it, is needed")
        scale = alpha / (sqrt(rank) if config.get("use_rslora") else rank)
        return cls(path, base, declared.get("weights"), rank, scale)

    def check_base(self, weights: Sequence[Path]) -> None:
        """Raise BadInput unless the adapter was trained on `weights`, the base model's safetensors files."""
        if self.digest and (found := digest_of(weights)) != self.digest:
            raise BadInput(
                f"{self.path} was trained on other weights of {self.base!r} (digest {self.digest[:16]}, "
                f"here {found[:16]})"
            )

    def merge(self, model: "nn.Module") -> None:
        """Merge the adapter into the weights of its base model: add in fp32, round once to their dtype."""
        if not self.rank:
            return
        import torch
        from safetensors.torch import load_file

        sides: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for key, x in load_file(self.path / WEIGHTS).items():
            if (parts := _KEY.fullmatch(key)) is None:
                raise BadInput(f"{self.path / WEIGHTS} holds {key!r}, which is no part of a LoRA adapter")
            sides[parts["module"]][parts["side"]] = x
        modules = dict(model.named_modules())
        for name, side in sides.items():
            weight = getattr(modules.get(name), "weight", None)
            if weight is None or side.keys() != {"A", "B"}:
                raise BadInput(
                    f"{self.path / WEIGHTS} does not fit its base model: {name!r} is not there, or not whole"
                )
            a, b = (side[which].to(weight.device, torch.float32) for which in "AB")
            if (b.shape[0], a.shape[1]) != weight.shape or a.shape[0] != b.shape[1]:
                shapes = f"{tuple(b.shape)} · {tuple(a.shape)} for {tuple(weight.shape)}"
                raise BadInput(f"{self.path / WEIGHTS} does not fit its base model: {name!r} is {shapes}")
            with torch.no_grad():
                weight.copy_(weight.float() + self.scale * (b @ a))

    def describe(self) -> dict[str, Any]:
        """Return type, parameters and layers from the header of its weights; the base model is not read."""
        shapes = dict[str, list[int]]()
        for file in files_of(self.path):
            with safe_open(file, framework="np") as weights:
                shapes |= {key: weights.get_slice(key).get_shape() for key in sorted(weights.keys())}
        layers = {number for key in shapes for number in re.findall(r"\.(\d+)\.", key)[:1]}
        parameters = sum(map(prod, shapes.values()))
        return {"type": f"adapter of {self.base}", "parameters": parameters, "layers": len(layers)}


def is_adapter(path: Path) -> bool:
    """Return whether a folder contains an adapter instead of a complete checkpoint."""
    return bool(files_of(path)) and not (path / "config.json").is_file()


def files_of(path: Path) -> list[Path]:
    """Return the tensor files of an adapter folder; the LoRA weights may be missing."""
    lora = [path / WEIGHTS] if (path / CONFIG).is_file() else []
    return lora + ([path / SOFT_TOKENS] if (path / SOFT_TOKENS).is_file() else [])


def digest_of(weights: Sequence[Path]) -> str:
    """Return the SHA-256 of all tensors (name, dtype, shape, bytes) in safetensors files, independent of sharding."""
    return _digest(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in weights))


@cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    places: dict[str, Path] = {}
    for path, *_ in files:
        with safe_open(path, framework="np") as file:
            places |= dict.fromkeys(file.keys(), path)
    return digest(_read(name, places[name]) for name in sorted(places))


def digest(weights: "Iterable[tuple[str, torch.Tensor]]") -> str:
    """Return the SHA-256 of tensors in memory, equal to `digest_of` for their files."""
    import torch

    hashed = hashlib.sha256()
    for name, x in weights:
        hashed.update(f"{name} {x.dtype} {tuple(x.shape)}\n".encode())
        hashed.update(x.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _read(name: str, path: Path) -> "tuple[str, torch.Tensor]":
    with safe_open(path, framework="pt") as file:
        return name, file.get_tensor(name)
