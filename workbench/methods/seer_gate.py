"""SeerAttention's gate (arXiv:2410.13276): a small learned model of which key blocks a query block attends to."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.rope import Pairing, cos_sin, pairing_of, rotate, rotated
from workbench.core.tiling.tiles import Grid, folded, means
from workbench.core.utils.files import write_atomically
from workbench.models.families import decoder_config, family
from workbench.models.spec import ModelSpec, attach

FILE = "seer_attention.safetensors"  # of the shipped gate, beside the weights of its model


@dataclass(frozen=True)
class GateShape:
    """What a gate is made of. `block` tokens are one vector of `width` channels, rotated by RoPE of base `theta`."""

    model: str  # identity of the model that it was distilled from
    block: int
    width: int
    theta: float
    pairing: Pairing

    def __post_init__(self) -> None:
        pairing_of(self.pairing)  # BadInput for an unknown one


class Gate(torch.nn.Module):
    """Per layer and head, a linear map of pooled queries and one of pooled keys, both from before RoPE.

    Queries are averaged over a block; of keys, maximum, minimum and mean are joined. RoPE rotates both as if they stood
    where their block begins (a query block: where its first row is).
    """

    def __init__(self, shape: GateShape, spec: ModelSpec, heads: int):
        super().__init__()
        self.shape = shape
        for layer, table in enumerate(spec.inv_freq):
            self.register_buffer(f"inv_freq_{layer}", table.detach().clone(), persistent=False)
        theirs = shape.theta ** -(torch.arange(0, shape.width, 2, device="cpu") / shape.width)
        self.register_buffer("table", theirs, persistent=False)
        sizes = [((heads, d, shape.width), (h, 3 * d, shape.width)) for h, d in spec.shapes]
        self.query = torch.nn.ParameterList([_drawn(*q) for q, _ in sizes])
        self.key = torch.nn.ParameterList([_drawn(*k) for _, k in sizes])

    def forward(self, layer: int, queries: Tensor, keys: Tensor, grid: Grid, site: Site | None = None) -> Tensor:
        """[Hq, I, J] fp32 logits from queries [Hq, R, D] and keys [H, T, D] as attention sees them; -inf ahead.

        What is kept beside these keys, `site.derived`, lets a chunk pool its own alone.
        """
        ours = means(rotate(queries.float(), -grid.rows, self._angles(layer), self.shape.pairing), self.shape.block)
        q = rotated(ours @ self.query[layer], *cos_sin(grid.first, self.table, queries.device))
        k = self._pooled(layer, keys, grid, site or Site())
        logits = (q.unflatten(0, (len(k), -1)) @ k[:, None].mT).flatten(0, 1) * self.shape.width**-0.5
        return logits.masked_fill(~grid.causal, -torch.inf)

    def _angles(self, layer: int) -> Tensor:
        table: Tensor = getattr(self, f"inv_freq_{layer}")
        return table

    def _pooled(self, layer: int, keys: Tensor, grid: Grid, site: Site) -> Tensor:
        """Return [H, J, width] of keys [H, T, D]; of earlier chunks as they are kept beside the keys."""
        block, length, derived = self.shape.block, keys.shape[1], site.derived
        if derived is None:
            return self._of(layer, keys, torch.arange(length, device=keys.device))
        places = -(-max(length, site.length or 0) // block)

        def room() -> Tensor:
            return keys.new_zeros(len(keys), places, self.shape.width, dtype=torch.float32)

        if site.replayed:  # the rows are whole blocks
            kept: Tensor = derived.room((self, layer), room)
            return kept.index_copy_(1, grid.first // block, self._of(layer, keys[:, grid.rows], grid.rows))

        def complete(known: Tensor | None, first: int) -> Tensor:
            if known is None or known.shape[1] < places:
                known, first = room(), 0
            begin = first // block * block
            if begin < length:
                at = torch.arange(begin, length, device=keys.device)
                known[:, begin // block : -(-length // block)] = self._of(layer, keys[:, begin:], at)
            return known

        whole: Tensor = derived.completed((self, layer), length, complete)
        return whole[:, : -(-length // block)]

    def _of(self, layer: int, keys: Tensor, places: Tensor) -> Tensor:
        """Pool keys [H, T, D] at `places` [T], which begin with a block: [H, J, width]."""
        fresh = rotate(keys.float(), -places, self._angles(layer), self.shape.pairing)
        starts = places[:: self.shape.block]
        return rotated(pooled(fresh, self.shape.block) @ self.key[layer], *cos_sin(starts, self.table, keys.device))

    def save(self, path: Path, training: dict[str, Any] | None = None, half: bool = False) -> None:
        """Write weights, shape and how they were trained (JSON values) to one file, whole or not at all.

        half   weights in fp16, as a gate is shipped; `load` gives fp32 again
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: x.detach().cpu().contiguous() for name, x in self.state_dict().items()}
        tensors = {name: x.half() for name, x in tensors.items()} if half else tensors
        metadata = {"gate": json.dumps(asdict(self.shape)), "training": json.dumps(training or {})}
        write_atomically(path, lambda partial: save_file(tensors, partial, metadata))


def new(model: PreTrainedModel, block: int = 64, width: int = 128) -> Gate:
    """Make an untrained gate for `model`."""
    config = decoder_config(model.config)
    tables = [x for x in config.rope_parameters.values() if isinstance(x, dict)] or [config.rope_parameters]
    theta = float(tables[0].get("rope_theta", 10_000.0))
    if block < 1 or width < 2 or width % 2:
        raise BadInput(f"a gate of block {block} and width {width}: block is 1 or more, width an even number")
    return _untrained(GateShape(identity(model), block, width, theta, family(model).pairing), model)


def load(path: Path, model: PreTrainedModel) -> Gate:
    """Load the gate of a file, on the model's device. BadInput for a damaged one or one of another model."""
    try:
        with safe_open(path, framework="pt") as file:
            shape = GateShape(**json.loads((file.metadata() or {})["gate"]))
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except FileNotFoundError:
        raise BadInput(f"there is no gate {path}: `workbench sparse distill` makes one") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        raise BadInput(f"{path} is no gate, or a damaged one: `workbench sparse distill` makes one") from None
    if shape.model != identity(model):
        name = model.config.name_or_path or model.config.model_type
        raise BadInput(f"the gate {path} was trained for another model than {name}: distil one from it")
    gate = _untrained(shape, model)
    gate.load_state_dict(tensors)
    return gate.eval().requires_grad_(False)


def digest(tokens: Tensor | Sequence[int]) -> str:
    """Hash the token ids [T] of a prompt: what a gate keeps of the prompts that it was distilled on."""
    return sha256(" ".join(map(str, torch.as_tensor(tokens).tolist())).encode()).hexdigest()[:16]


def training(path: Path) -> dict[str, Any]:
    """Return how the gate of a file was trained, as `Gate.save` was told. BadInput for a missing or damaged file."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(json.loads((file.metadata() or {})["training"]))
    except FileNotFoundError:
        raise BadInput(f"there is no gate {path}: `workbench sparse distill` makes one") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        raise BadInput(f"{path} does not say how it was trained: `workbench sparse distill` records it") from None


def _untrained(shape: GateShape, model: PreTrainedModel) -> Gate:
    gate = Gate(shape, attach(model), decoder_config(model.config).num_attention_heads)
    return gate.to(model.device)


def identity(model: PreTrainedModel) -> str:
    """Hash a model's weights, the same in every number format: up to 4,096 values of each tensor, in bf16."""
    whole = sha256()
    for name, x in sorted(model.state_dict().items()):
        flat = x.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // 4096)][:4096].to(torch.bfloat16).view(torch.int16).cpu()
        whole.update(f"{name} {tuple(x.shape)}".encode() + some.numpy().tobytes())
    return whole.hexdigest()[:32]


def pooled(keys: Tensor, size: int) -> Tensor:
    """Return [H, J, 3 D]: maximum, minimum and mean of every block of keys [H, T, D]."""
    blocks = folded(keys, size)
    beyond = torch.arange(blocks.shape[1] * size, device=keys.device).view(-1, size, 1) >= keys.shape[1]
    high, low = (blocks.masked_fill(beyond, fill) for fill in (-torch.inf, torch.inf))
    return torch.cat((high.amax(2), low.amin(2), means(keys, size)), -1)


def _drawn(*shape: int) -> torch.nn.Parameter:
    """Xavier-uniform for each head, as the released code."""
    weight = torch.empty(shape)
    for head in weight:
        torch.nn.init.xavier_uniform_(head)
    return torch.nn.Parameter(weight)
