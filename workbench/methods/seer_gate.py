"""SeerAttention's gate (arXiv:2410.13276): a small learned model that predicts which key blocks a query block needs."""

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
from workbench.core.tiling.tiles import Grid, means, tokens_to_tiles
from workbench.core.utils.files import write_atomically
from workbench.engine.attention_backends import choice as backends
from workbench.models.families import decoder_config, family
from workbench.models.spec import ModelSpec, attach

FILE = "seer_attention.safetensors"  # shipped gate, in the folder of its model


@dataclass(frozen=True)
class GateShape:
    """Shape of a gate: `block` tokens are pooled to one vector of `width` channels, rotated by RoPE of base `theta`."""

    model: str  #: `identity` of the model that it was distilled from
    block: int
    width: int
    theta: float
    pairing: Pairing

    def __post_init__(self) -> None:
        pairing_of(self.pairing)  # raises BadInput for an unknown one


class Gate(torch.nn.Module):
    """Per layer and head, one linear map of pooled queries and one of pooled keys, both before RoPE.

    Queries of a block are averaged; maximum, minimum and mean of its keys are concatenated. RoPE rotates both to the
    first position of their block (for a query block, that of its first row).
    """

    table: Tensor

    def __init__(self, shape: GateShape, spec: ModelSpec, heads: int):
        super().__init__()
        self.shape = shape
        for layer, table in enumerate(spec.inv_freq):
            self.register_buffer(f"inv_freq_{layer}", table.detach().clone(), persistent=False)
        table = shape.theta ** -(torch.arange(0, shape.width, 2, device="cpu") / shape.width)
        self.register_buffer("table", table, persistent=False)
        sizes = [((heads, d, shape.width), (h, 3 * d, shape.width)) for h, d in spec.shapes]
        self.query = torch.nn.ParameterList([_drawn(*q) for q, _ in sizes])
        self.key = torch.nn.ParameterList([_drawn(*k) for _, k in sizes])

    def forward(self, layer: int, queries: Tensor, keys: Tensor, grid: Grid, site: Site | None = None) -> Tensor:
        """Return logits [Hq, I, J] (fp32) from rotated queries [Hq, R, D] and keys [H, T, D]; -inf for later blocks.

        With `site.derived`, pooled keys of earlier chunks are reused.
        """
        logits = self._products(layer, queries, keys, grid, site or Site()) * self.shape.width**-0.5
        return logits.masked_fill(~grid.causal, -torch.inf)

    def kept_blocks(
        self, layer: int, queries: Tensor, keys: Tensor, grid: Grid, site: Site, threshold: float, tail: int
    ) -> Tensor | None:
        """Return the kept blocks [Hq, I, J] (bool), computed by kernels; None if these do not support the input.

        Blocks of at least `threshold`, each query's own block, and all blocks of the last `tail` query blocks are kept.
        """
        if not self._by_kernels(keys, self._angles(layer), grid.shape[1]):
            return None
        length, block = grid.length if site.length is None else site.length, self.shape.block
        end = (-(-length // block) - tail) * block if tail else length
        logits = self._products(layer, queries, keys, grid, site)
        found: Tensor = backends.kernel("_select.gate").kept(
            logits, grid.rows, block, self.shape.width**-0.5, threshold, end
        )
        return found

    def _products(self, layer: int, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tensor:
        q = self._projected(layer, queries, grid.rows)
        k = self._of_keys(layer, keys, grid, site)
        return (q.unflatten(0, (len(k), -1)).flatten(1, 2) @ k.mT).view(*q.shape[:2], -1)

    def _angles(self, layer: int) -> Tensor:
        table: Tensor = getattr(self, f"inv_freq_{layer}")
        return table

    def _by_kernels(self, x: Tensor, freq: Tensor, blocks: int = 1) -> bool:
        weights = torch.is_grad_enabled() and self.key[0].requires_grad
        return on_gpu(x) and not weights and bool(backends.kernel("_select.gate").takes(x.shape[-1], freq, blocks))

    def _of_keys(self, layer: int, keys: Tensor, grid: Grid, site: Site) -> Tensor:
        """Return gate vectors [H, J, width] of keys [H, T, D]; those of earlier chunks are cached with the keys."""
        block, length, derived = self.shape.block, keys.shape[1], site.derived
        if derived is None:
            return self._projected(layer, keys, torch.arange(length, device=keys.device), most=True)
        places = -(-max(length, site.length or 0) // block)

        def room() -> Tensor:
            return keys.new_zeros(len(keys), places, self.shape.width, dtype=torch.float32)

        if site.replayed:  # the rows are whole blocks
            vectors: Tensor = derived.get_buffer((self, layer), room)
            return self._projected(layer, keys, grid.rows, most=True, indexed=True, out=vectors)

        def complete(known: Tensor | None, first: int) -> Tensor:
            if known is None:
                known = room()
            elif known.shape[1] < places:  # longer than announced
                known = torch.cat((known, known.new_zeros(len(known), places, self.shape.width)), 1)
            begin = first // block * block
            if begin < length:
                at = torch.arange(begin, length, device=keys.device)
                self._projected(layer, keys[:, begin:], at, most=True, out=known)
            return known

        completed: Tensor = derived.get_updated((self, layer), length, complete)
        return completed[:, : -(-length // block)]

    def _projected(
        self,
        layer: int,
        x: Tensor,
        at: Tensor,
        most: bool = False,
        indexed: bool = False,
        out: Tensor | None = None,
    ) -> Tensor:
        """Pool and project tokens x [H, T, D] at positions `at` [T], which start at a block boundary: [H, J, width].

        most     pool by maximum, minimum and mean (keys), not by mean only (queries)
        indexed  `x` contains tokens of all positions, not only of `at`
        out      [H, P, width] of all blocks, into which the blocks of `at` are written
        """
        block, freq, weight = self.shape.block, self._angles(layer), (self.key if most else self.query)[layer]
        if self._by_kernels(x, freq):
            kernel = backends.kernel("_select.gate")
            vectors = kernel.pooled(x, at, freq, self.shape.pairing, block, most, indexed)
            found: Tensor = kernel.projected(vectors, weight, at, self.table, block, out)
            return found
        x = rotate((x[:, at] if indexed else x).float(), -at, freq, self.shape.pairing)
        projected = (pooled if most else means)(x, block) @ weight
        projected = rotated(projected, *cos_sin(at[::block], self.table, x.device))
        return projected if out is None else out.index_copy_(1, at[::block] // block, projected)

    def save(self, path: Path, training: dict[str, Any] | None = None, half: bool = False) -> None:
        """Write weights, shape and the `training` record (JSON values) to one file, atomically.

        half   store weights in fp16; `load` returns fp32
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: x.detach().cpu().contiguous() for name, x in self.state_dict().items()}
        tensors = {name: x.half() for name, x in tensors.items()} if half else tensors
        metadata = {"gate": json.dumps(asdict(self.shape)), "training": json.dumps(training or {})}
        write_atomically(path, lambda partial: save_file(tensors, partial, metadata))


def new_gate(model: PreTrainedModel, block: int = 64, width: int = 128) -> Gate:
    """Return an untrained gate for `model`."""
    config = decoder_config(model.config)
    tables = [x for x in config.rope_parameters.values() if isinstance(x, dict)] or [config.rope_parameters]
    theta = float(tables[0].get("rope_theta", 10_000.0))
    if block < 1 or width < 2 or width % 2:
        raise BadInput(f"a gate of block {block} and width {width}: block is 1 or more, width an even number")
    return _untrained(GateShape(identity(model), block, width, theta, family(model).pairing), model)


def load(path: Path, model: PreTrainedModel) -> Gate:
    """Load a gate to the model's device. Raises BadInput for a missing or damaged file, or a gate of another model."""
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
    """Return the hash of a prompt's token ids [T]; a gate's training record lists its prompts by these."""
    return sha256(" ".join(map(str, torch.as_tensor(tokens).tolist())).encode()).hexdigest()[:16]


def training(path: Path) -> dict[str, Any]:
    """Return the training record in a gate's file. Raises BadInput for a missing or damaged file."""
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
    """Return a hash of a model's weights, independent of the dtype: of up to 4,096 values per tensor, in bf16."""
    hashed = sha256()
    for name, x in sorted(model.state_dict().items()):
        flat = x.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // 4096)][:4096].to(torch.bfloat16).view(torch.int16).cpu()
        hashed.update(f"{name} {tuple(x.shape)}".encode() + sample.numpy().tobytes())
    return hashed.hexdigest()[:32]


def on_gpu(x: Tensor) -> bool:
    """Return whether kernels process tensors on this device."""
    return backends.on_gpu(x.device)


def pooled(keys: Tensor, size: int) -> Tensor:
    """Return maximum, minimum and mean of every block of keys [H, T, D], as [H, J, 3 D]."""
    blocks = tokens_to_tiles(keys, size)
    beyond = torch.arange(blocks.shape[1] * size, device=keys.device).view(-1, size, 1) >= keys.shape[1]
    high, low = (blocks.masked_fill(beyond, fill) for fill in (-torch.inf, torch.inf))
    return torch.cat((high.amax(2), low.amin(2), means(keys, size)), -1)


def _drawn(*shape: int) -> torch.nn.Parameter:
    """Return Xavier-uniform weights, initialized per head as in the released code."""
    weight = torch.empty(shape)
    for head in weight:
        torch.nn.init.xavier_uniform_(head)
    return torch.nn.Parameter(weight)
