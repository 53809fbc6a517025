"""Verify a model: check that block reuse computes what it should, up to the effect of rounding.

    page = verify_model(loaded.model, prompts)
    page.whole, page.verdicts

Differences are relative: ‖ours − expected‖ / ‖expected‖. The tolerance is FACTOR times the noise floor of the dtype,
which is measured first, and at least LEAST, the tolerance of the family tests.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.masks import block_attention
from workbench.core.plan import Plan
from workbench.core.utils.watched import Progress
from workbench.engine.assembly import assemble, empty
from workbench.engine.chunked import prefill_chunked
from workbench.engine.encoding import encode_many
from workbench.engine.forward import PrefillRequest, prefill
from workbench.experiments.trials.record import device_name, versions
from workbench.methods import finish, select
from workbench.methods.modes.reuse import Reuse
from workbench.models import float8
from workbench.models.spec import attach
from workbench.store import UNLIMITED, MemoryStore

FACTOR = 4.0
LEAST = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
FINER = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}
LARGEST = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.3}  # of noise floors
COPIED = 200_000_000  # maximum number of parameters for a copy in a finer dtype
FLOORS, EXACT = ("order of sums", "rounding"), ("finite", "misses")
WHAT = {
    "finite": "NaN or Inf logits under full attention",
    "order of sums": "noise floor: full attention in three chunks against one pass",
    "rounding": "noise floor: transformers' own logits in this dtype against a finer one",
    "full prefill": "logits of full attention, this engine against transformers' own",
    "rotated keys": "keys of independently cached, rotated blocks against blocks computed in place (worst layer)",
    "rotation": "logits of the question over these blocks",
    "100% recomputed": "logits over cached blocks, every token recomputed, against full attention",
    "misses": "blocks not found on repeated lookup, in the same and in another order",
    "first reuse": "logits over blocks from the store against those of the request that encoded them",
    "first move": "logits over stored blocks in another order against blocks encoded for that order",
}
Prompts = Sequence[Prompt]


@dataclass(frozen=True)
class Verdict:
    """One check: the largest difference over the prompts, and the tolerance; `detail` states what was compared."""

    name: str
    value: float
    allowed: float
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance, and not nan."""
        return self.value <= self.allowed  # False for nan

    def __str__(self) -> str:
        state = "holds" if self.holds else "FAILS"
        return f"{state}: {self.name}: {self.value:.2g}, allowed {self.allowed:.2g}; {self.detail}"


@dataclass(frozen=True)
class Verification:
    """Verdicts on a model."""

    model: str
    dtype: str
    device: str
    parameters: int
    prompts: int
    tokens: int
    floor: float
    verdicts: tuple[Verdict, ...]
    versions: dict[str, str]

    @property
    def all_hold(self) -> bool:
        """Whether every verdict holds."""
        return all(verdict.holds for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, {…, verdicts: [{name, value, allowed, detail, holds}], whole}; None for nan."""
        listed = [
            asdict(verdict) | {"holds": verdict.holds, "value": verdict.value if verdict.value < float("inf") else None}
            for verdict in self.verdicts
        ]
        floor = self.floor if self.floor < float("inf") else None
        return asdict(self) | {"floor": floor, "verdicts": listed, "whole": self.all_hold}


def random_prompts(model: PreTrainedModel, count: int = 2, blocks: int = 4, length: int = 32, seed: int = 0) -> Prompts:
    """Draw prompts of `blocks` blocks and a question, each of `length` random token ids."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, attach(model).vocabulary, (count, blocks + 1, length), generator=draw).tolist()
    return [Prompt(tuple(Block(tuple(tokens)) for tokens in each)) for each in ids]


def verify_model(
    model: PreTrainedModel, prompts: Prompts, name: str = "", progress: Progress | None = None
) -> Verification:
    """Check a model on prompts of at least two context blocks each, the first of them the system prompt.

    Raises BadInput, before any work, without prompts, for one with too few blocks, and for one that the model cannot
    take.
    """
    spec = attach(model)
    _check(prompts)
    for prompt in prompts:
        spec.check_tokens(prompt.tokens)
    steps = [_finite, _floor, _finer, _stock, _rotation, _recomputed, _first_reuse]
    differences: dict[str, list[float]] = {}
    if progress:
        progress(0, len(steps))
    for at, step in enumerate(steps, 1):
        for prompt in prompts:
            for what, value in step(model, prompt).items():
                differences.setdefault(what, []).append(value)
        if progress:
            progress(at, len(steps))
    worst = {what: _largest(values) for what, values in differences.items()}
    floor = _largest([worst[what] for what in FLOORS if what in worst])
    verdicts = tuple(Verdict(what, worst[what], _allowed(what, floor, spec.dtype), WHAT[what]) for what in worst)
    parameters = sum(weight.numel() for weight in model.parameters())
    about = name or spec.name, float8.dtype_name(model), device_name(model.device), parameters
    return Verification(*about, len(prompts), sum(map(len, prompts)), floor, verdicts, versions())


def _check(prompts: Prompts) -> None:
    if not prompts:
        raise BadInput("no prompts: a model is verified on at least one")
    if few := [prompt for prompt in prompts if len(prompt.context) < 3]:
        count = len(few[0].context)
        raise BadInput(f"a prompt has {count} blocks before its question: a system prompt and two passages are needed")


def _allowed(what: str, floor: float, dtype: torch.dtype) -> float:
    if what in EXACT:
        return 0.0
    if what in FLOORS:
        return LARGEST[dtype]
    return max(LEAST[dtype], FACTOR * floor)  # in this order, max ignores a floor of nan


def _largest(values: Iterable[float]) -> float:
    """Return the largest value; nan if one is nan."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


def _relative(ours: Tensor, expected: Tensor) -> float:
    """Return the relative L2 distance."""
    ours, expected = ours.double(), expected.to(ours.device).double()
    return float((ours - expected).norm() / expected.norm().clamp_min(1e-300))


def _full(model: PreTrainedModel, prompt: Prompt) -> Tensor:
    """Return the question's logits [Q, V] under full attention, from this engine."""
    return _logits(model, prompt, Plan(torch.arange(len(prompt))), empty(model, len(prompt)))


def _logits(model: PreTrainedModel, prompt: Prompt, plan: Plan, kv: KV) -> Tensor:
    logits = prefill(model, prompt.tokens, plan, kv, logits_to_keep=len(prompt.question)).logits
    assert logits is not None
    return logits


@torch.no_grad()
def _plain(model: PreTrainedModel, prompt: Prompt) -> Tensor:
    """Return the question's logits [Q, V] from transformers' own attention."""
    attention = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        return model(prompt.tokens.to(model.device)[None]).logits[0, prompt.question]
    finally:
        model.set_attn_implementation(attention)


def _finite(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    return {"finite": float((~torch.isfinite(_full(model, prompt))).sum())}


def _floor(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    plan, question = Plan(torch.arange(len(prompt))), len(prompt.question)
    request = PrefillRequest(prompt.tokens, plan, empty(model, len(prompt)))
    chunked = prefill_chunked(model, request, max(1, len(prompt) // 3), question).logits
    assert chunked is not None
    return {"order of sums": _relative(chunked[-question:], _full(model, prompt))}


def _finer(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    """Compare with the same weights in a finer dtype, if the model is small enough to copy."""
    dtype = FINER.get(model.dtype)
    if dtype is None or sum(weight.numel() for weight in model.parameters()) > COPIED:
        return {}
    copy = type(model)(deepcopy(model.config))
    copy.load_state_dict(model.state_dict())
    copy.tie_weights()
    finer: Any = copy.eval()  # transformers wraps `to` without types
    return {"rounding": _relative(_plain(model, prompt), _plain(finer.to(device=model.device, dtype=dtype), prompt))}


def _stock(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    return {"full prefill": _relative(_full(model, prompt), _plain(model, prompt))}


def _rotation(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    """Compare blocks that were cached alone and rotated with the same blocks computed in place."""
    kv, rows = empty(model, len(prompt)), torch.arange(len(prompt))
    expected = _logits(model, prompt, Plan(rows, sees=block_attention(prompt)), kv)
    moved, end = assemble(model, prompt, encode_many(model, prompt.context)), prompt.starts[-1]
    pairs = zip(moved.keys, kv.keys, strict=True)
    keys = _largest(_relative(ours[:, :end], theirs[:, :end]) for ours, theirs in pairs)
    return {"rotated keys": keys, "rotation": _relative(_logits(model, prompt, Plan(prompt.question), moved), expected)}


def _recomputed(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    """Compare reuse that recomputes every token after the system prompt with full attention."""
    method = Reuse(select=select.from_spec("first_k"), ratio=1.0)
    (last,) = finish(model, method.begin(model, [prompt]))
    return {"100% recomputed": _relative(last, _full(model, prompt)[-1])}


def _first_reuse(model: PreTrainedModel, prompt: Prompt) -> dict[str, float]:
    """Serve a prompt twice through one store, then with its passages in another order; count the misses."""
    store, method = MemoryStore(UNLIMITED), Reuse()
    (first,) = finish(model, method.begin(model, [prompt], store))
    before = store.stats
    (second,) = finish(model, method.begin(model, [prompt], store))
    system, *passages, question = prompt.blocks
    reordered = Prompt((system, *reversed(passages), question))
    (moved,) = finish(model, method.begin(model, [reordered], store))
    (fresh,) = finish(model, method.begin(model, [reordered]))
    missed = store.stats.since(before).misses
    return {"misses": float(missed), "first reuse": _relative(second, first), "first move": _relative(moved, fresh)}
