"""Store keys: hashes of model, dtype, tokens and the tokens that a block attended to."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import _global_forward_hooks as _GLOBAL_HOOKS
from torch.nn.modules.module import _global_forward_pre_hooks as _GLOBAL_PRE_HOOKS

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.models import float8

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # slow to import; not needed at run time

T = TypeVar("T")
# Version of keys and of the KV layout: [H, T, D] per layer, keys rotated for positions that follow `after`.
FORMAT_VERSION = 2
# Incremented when the engine's numerical results for a block change. Package versions and device are in the block file,
# not in the key: backends agree within the rounding of the dtype, which tests check.
ENGINE_VERSION = 1
_CHUNK = 1 << 22
_PIECE = 1 << 16  # elements that fit into the CPU cache
_FACTOR, _OFFSET, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1
SCALARS = ("variance_epsilon", "eps", "scaling", "attention_scaling")  # module attributes that a user may change
GROWING = ("dynamic", "longrope")  # RoPE types whose tables change during a forward pass
_IRRELEVANT = set("_name_or_path name_or_path transformers_version torch_dtype dtype use_cache architectures".split())
# Caches: scalar attributes by module class, and fingerprints by model object.
_SCALARS_OF: dict[type[torch.nn.Module], tuple[str, ...]] = {}
_KNOWN: "WeakKeyDictionary[PreTrainedModel, tuple[Any, str, Any, str]]" = WeakKeyDictionary()


class Identity(NamedTuple):
    """The components of a block's key, which is their hash."""

    version: str  #: format and engine versions
    model: str  #: fingerprint of the model
    dtype: str
    block: str  #: hash of its tokens
    after: str  #: number and hash of the blocks before it
    over: str  #: number and hash of the neighbours it was computed over; "" if there are none
    tokens: int
    start: int  #: position of its first token


class Key(str):
    """A store key: a string with its `identity` attached."""

    __slots__ = ("identity",)
    identity: Identity | None

    def __new__(cls, text: str, identity: Identity | None = None) -> "Key":
        key = super().__new__(cls, text)
        key.identity = identity
        return key


def key_of(
    fingerprint: str, dtype: torch.dtype, block: Block, after: Sequence[Block] = (), over: Sequence[Block] | None = None
) -> Key:
    """Return the store key of a block that was encoded after the blocks `after`.

    With `over`, it was computed over the cached KV of `after` and of the blocks `over`, each of which attended to
    `after` only. That differs from a block that was encoded after all of them in one pass.
    """
    if not after and over is None:
        return _key_without_prefix(version(), fingerprint, str(dtype), block.content, len(block))
    # hashes have a fixed length, so different chains give different strings
    parts = [version(), fingerprint, str(dtype), *(other.content for other in after), block.content]
    if over is not None:
        parts += ["over", *(other.content for other in over)]
    start = sum(map(len, after)) + sum(map(len, over or ()))
    context = _chain(after), "" if over is None else _chain(over)
    identity = Identity(version(), fingerprint, str(dtype), block.content, *context, len(block), start)
    return Key(sha256(" ".join(parts).encode()).hexdigest(), identity)


@lru_cache(maxsize=1 << 16)
def _key_without_prefix(version: str, fingerprint: str, dtype: str, content: str, tokens: int) -> Key:
    """Return the key of a block without a prefix; cached, because requests repeat blocks."""
    identity = Identity(version, fingerprint, dtype, content, "0", "", tokens, 0)
    return Key(sha256(" ".join((version, fingerprint, dtype, content)).encode()).hexdigest(), identity)


def version() -> str:
    """Return the version part of a key: that of the format, and that of the engine unless it is 1."""
    return str(FORMAT_VERSION) if ENGINE_VERSION == 1 else f"{FORMAT_VERSION}.{ENGINE_VERSION}"


def _chain(blocks: Sequence[Block]) -> str:
    if not blocks:
        return "0"
    return f"{len(blocks)} {sha256(' '.join(block.content for block in blocks).encode()).hexdigest()[:32]}"


def fingerprint(model: "PreTrainedModel") -> str:
    """Return the hash of a model's configuration, all its weights and buffers, and the scalars of `SCALARS`.

    It is cached per model object until one of them is replaced or modified in place. Optimiser steps and
    `load_state_dict` increment a tensor's version; writes through `tensor.data` do not, and are not noticed.
    Raises BadInput for a model with hooks, whose effect the key would not cover.
    """
    try:
        weights, others = _states(model)
    except RuntimeError:
        if not any(x.is_inference() for x in model.parameters()):
            raise
        raise BadInput("the model was loaded under inference mode: load it outside of it, and run it there") from None
    known = _KNOWN.get(model)
    if known is None or known[0] != weights:
        known = _KNOWN[model] = (weights, _digest(model), (), "")
    if known[2] != others:
        digest = sha256(f"{known[1]}\n{_describe_others(model)}".encode()).hexdigest()
        known = _KNOWN[model] = (*known[:2], others, digest)
    return known[3]


def compute_missing(
    cache: dict[tuple[str, str], T],
    model: "PreTrainedModel",
    blocks: Sequence[Block],
    make: Callable[[list[Block]], Sequence[T]],
) -> list[T]:
    """Return the value of every block under this model from `cache`; compute missing ones with `make`, each once."""
    known = fingerprint(model)
    keys = [(known, block.content) for block in blocks]
    missing = {key: block for key, block in zip(keys, blocks, strict=True) if key not in cache}
    if missing:
        cache.update(zip(missing, make([*missing.values()]), strict=True))
    return [cache[key] for key in keys]


def vocabulary(tokenizer: Any) -> str:
    """Return the hash of a tokenizer: of its serialized pipeline if it has one, else of its vocabulary."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    text = fast.to_str() if fast is not None else json.dumps(sorted(tokenizer.get_vocab().items()))
    return sha256(text.encode()).hexdigest()


def _states(module: torch.nn.Module) -> tuple[list[Any], list[Any]]:
    """Return the states of weights and persistent buffers, and those of other buffers and scalars.

    A tensor's state is its address, version counter, dtype and device. This runs once per request, so it does not
    collect names: `state_dict` takes several times as long.
    """
    waiting: list[torch.nn.Module | None] = [module]
    weights: list[Any] = []
    others: list[Any] = [float8.is_float8(module)]
    if _GLOBAL_HOOKS or _GLOBAL_PRE_HOOKS:
        raise BadInput("all modules have a forward hook, which store keys do not cover: remove it first")
    for each in waiting:  # grows during the loop
        if each is None:
            continue
        if each._forward_hooks or each._forward_pre_hooks:
            name = type(each).__name__
            raise BadInput(f"{name} has a forward hook, which store keys do not cover: remove it first")
        for x in each._parameters.values():
            if x is not None:
                weights.append((x.data_ptr(), x._version, x.dtype, x.device))
        if each._buffers:
            unsaved = each._non_persistent_buffers_set
            for name, buffer in each._buffers.items():
                if buffer is not None:
                    state = buffer.data_ptr(), buffer._version, buffer.dtype, buffer.device
                    (others if name in unsaved else weights).append(state)
        kind = type(each)
        if kind not in _SCALARS_OF:
            _SCALARS_OF[kind] = tuple(name for name in SCALARS if name in each.__dict__)
        for name in _SCALARS_OF[kind]:
            others.append(each.__dict__.get(name))
        if each._modules:
            waiting += each._modules.values()
    return weights, others


@torch.no_grad()
def _digest(model: "PreTrainedModel") -> str:
    config = {k: v for k, v in model.config.to_dict().items() if k not in _IRRELEVANT}
    digest = sha256(json.dumps(config, sort_keys=True, default=str).encode())
    seen: dict[int, str] = {}  # by address: tied weights are read once
    for name, x in model.state_dict(keep_vars=True).items():
        summary = seen.setdefault(x.data_ptr(), "") or f"{tuple(x.shape)} {x.dtype} {_checksum(x)}"
        seen[x.data_ptr()] = summary
        digest.update(f"{name} {summary}\n".encode())
    return digest.hexdigest()


def _describe_others(model: "PreTrainedModel") -> str:
    """Describe non-persistent buffers and scalars, without RoPE tables that a model rescales for long prompts."""
    lines = [float8.NAME] if float8.is_float8(model) else []
    for name, module in model.named_modules():
        grows = any(kind in str(getattr(module, "rope_type", "")) for kind in GROWING)
        for buffer in sorted(module._non_persistent_buffers_set):
            if (x := module._buffers.get(buffer)) is not None and not grows:
                lines.append(f"{name}.{buffer} {tuple(x.shape)} {_rounded(x)}")
        lines += [f"{name}.{scalar} {vars(module)[scalar]}" for scalar in SCALARS if scalar in vars(module)]
    return "\n".join(lines)


def _rounded(x: torch.Tensor) -> str:
    """Summarise a buffer that is computed on the model's device; the result is equal on CPUs and GPUs.

    The summary is two sums of logarithms, one weighted by index, rounded to .01. Scaling an element by a few percent
    changes it, a difference in the last bit does not.
    """
    if not x.is_floating_point():
        return str(_checksum(x))
    logs = x.detach().double().flatten().abs().clamp_min(1e-30).log().cpu()
    places = torch.arange(1, len(logs) + 1, dtype=torch.float64) / max(1, len(logs))
    return f"{logs.sum():.2f} {(logs * places).sum():.2f}"


def _checksum(x: torch.Tensor) -> int:
    """Return the 64-bit sum of all elements' bits, each times an odd hash of its index; runs on the tensor's device.

    Any change of one element changes it; a swap of elements does with probability 1 - 2^-63.
    """
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    flat = x.detach().contiguous().view(-1).view(words)
    step = _CHUNK if x.is_cuda else _PIECE
    places = torch.arange(min(step, len(flat)), device=flat.device) * _FACTOR + _OFFSET  # overflow is intended
    total = 0
    for begin in range(0, len(flat), _CHUNK):
        chunk, added = flat[begin : begin + _CHUNK], 0
        for at in range(0, len(chunk), step):
            part = chunk[at : at + step].to(torch.int64)
            place = places[: len(part)] + _wrapped((begin + at) * _FACTOR)
            added += int((place >> 29).bitwise_xor_(place).bitwise_or_(1).mul_(part).sum())
        total = (total * 31 + added) & _MASK
    return total


def _wrapped(number: int) -> int:
    """Convert an integer to signed 64 bits, with overflow."""
    number &= _MASK
    return number - (1 << 64) if number >> 63 else number
