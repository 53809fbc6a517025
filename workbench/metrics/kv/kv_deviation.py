"""Deviation of cached keys and values from full attention, its causes, and what recomputing tokens repairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.engine.assembly import assemble
from workbench.engine.attention_maps import layers_of
from workbench.engine.forward import PrefillRequest, all_rows, prefill_many
from workbench.engine.full_context import gap
from workbench.metrics.answers import Records
from workbench.metrics.kv.selection import summary

KVs = Sequence[KV]


@dataclass(frozen=True)
class Deviation:
    """Relative L2 error per token, layer and KV head: |cached - exact| / |exact| over the head's channels.

    It is nan for tokens that are not computed yet, such as the question of an assembled cache.
    """

    keys: Tensor  #: [T, L, H] fp32
    values: Tensor  #: [T, L, H] fp32

    @property
    def tokens(self) -> Tensor:
        """[T] mean over keys and values, layers and heads."""
        return (self.keys.nanmean((1, 2)) + self.values.nanmean((1, 2))) / 2


def deviation(cached: KV, exact: KV) -> Deviation:
    """Return the deviation of `cached` from `exact`, KV of the same tokens at the same positions.

    Layers with fewer KV heads than others are padded with nan. Raises BadInput for KV of different shape or position.
    """
    shapes = [tuple(keys.shape[:2]) for keys in cached.keys], [tuple(keys.shape[:2]) for keys in exact.keys]
    if shapes[0] != shapes[1] or cached.start != exact.start:
        raise BadInput(
            f"two KVs of [heads, tokens] {shapes[0][:1]} from position {cached.start} and {shapes[1][:1]} from "
            f"{exact.start} cannot be compared: the same model, tokens and positions are needed"
        )
    return Deviation(_relative(cached.keys, exact.keys), _relative(cached.values, exact.values))


def _relative(cached: list[Tensor], exact: list[Tensor]) -> Tensor:
    layers = []
    widest = max(layer.shape[0] for layer in exact)
    for ours, theirs in zip(cached, exact, strict=True):
        distance = (ours.float() - theirs.float()).norm(dim=-1)  # [H, T]
        size = theirs.float().norm(dim=-1)
        error = torch.where(distance == 0, 0.0, distance / size)  # equal zero vectors have no error
        empty = (ours == 0).all(-1).all(0) & (theirs != 0).any(-1).any(0)  # [T], not computed yet
        error = error.masked_fill(empty, torch.nan)
        layers.append(pad(error.T, (0, widest - error.shape[0]), value=torch.nan))
    return torch.stack(layers, 1)


def squared(cached: KV, exact: KV) -> Tensor:
    """Return [T, L]: squared L2 distance of keys and values, summed over heads and channels (FusionRAG, equation 7)."""
    return torch.stack([gap(cached, exact, layer) for layer in range(len(exact.keys))], 1)


def concentration(gaps: Tensor, points: int = 101) -> Tensor:
    """Return [points, L]: the share of a layer's deviation `gaps` [T, L] in its most deviating tokens.

    Row i is for the share i / (points - 1) of the tokens (FusionRAG, figure 3a); nan in a layer without deviation.
    """
    worst = gaps.double().sort(0, descending=True).values.cumsum(0)
    cumulative = torch.cat((torch.zeros_like(worst[:1]), worst))
    return cumulative[torch.linspace(0, len(gaps), points).round().long()] / worst[-1]


def full_attention_kv(model: PreTrainedModel, prompt: Prompt) -> KV:
    """Compute the KV of a whole prompt under full attention."""
    request = all_rows(model, prompt.tokens, num_layers=len(layers_of(model, "all")))
    prefill_many(model, [request])
    return request.kv


@dataclass(frozen=True)
class Causes:
    """Deviation of cached KV from full attention in three parts; context tokens [T, L, H]."""

    position: Deviation  #: as cached, compared with re-encoded for the block's position; 0 for values
    context: Deviation  #: re-encoded, compared with full attention: the missing cross-attention
    precision: Deviation  #: rounded to the stored dtype and re-encoded, compared with re-encoded


def measure_causes(model: PreTrainedModel, prompt: Prompt, cached: KVs, stored: torch.dtype = torch.bfloat16) -> Causes:
    """Measure the three causes for `cached` KV of the context blocks, which a store would hold in the dtype `stored`.

    The precision part is 0 unless the model computes with more bits than `stored` has.
    """
    end = prompt.starts[-1]
    reencoded = assemble(model, prompt, cached).slice(0, end)
    naive = assemble(model, prompt, cached, "naive").slice(0, end)
    rounded = assemble(model, prompt, [_rounded(kv, stored) for kv in cached]).slice(0, end)
    exact = full_attention_kv(model, prompt).slice(0, end)
    return Causes(deviation(naive, reencoded), deviation(reencoded, exact), deviation(rounded, reencoded))


def _rounded(kv: KV, dtype: torch.dtype) -> KV:
    """Return KV rounded to a dtype and back, as by a store."""
    keys, values = ([x.to(dtype).to(x.dtype) for x in half] for half in (kv.keys, kv.values))
    return KV(keys, values, kv.start)


@dataclass(frozen=True)
class RepairDeviation:
    """Squared deviation from full attention [T, L] of all tokens of a prompt, before and after recomputing `rows`."""

    before: Tensor  #: with the question computed over the unchanged cache
    after: Tensor  #: with `rows` and the question computed
    rows: Tensor  #: [R]
    question: int  #: first position of the question

    @property
    def context(self) -> Tensor:
        """[L] share of the context's squared deviation that is left; nan in a layer without deviation."""
        return _left(self.before[: self.question], self.after[: self.question])

    @property
    def recomputed_left(self) -> Tensor:
        """[L] share of the recomputed tokens' squared deviation that is left, because they attend to stale tokens."""
        return _left(self.before[self.rows], self.after[self.rows])

    @property
    def question_left(self) -> Tensor:
        """[L] share of the question's squared deviation that is left."""
        return _left(self.before[self.question :], self.after[self.question :])


def repair(
    model: PreTrainedModel, prompt: Prompt, kv: KV, choices: Sequence[Tensor], truth: KV
) -> list[RepairDeviation]:
    """Recompute each choice of context rows [R] in a copy of the assembled `kv`; return a `RepairDeviation` for each.

    `truth` is the KV of the whole prompt under full attention.
    """
    plans = [Plan(torch.cat((rows, prompt.question)), num_layers=len(kv.keys)) for rows in (choices[0][:0], *choices)]
    requests = [PrefillRequest(prompt.tokens, plan, kv.clone()) for plan in plans]
    prefill_many(model, requests)
    before, *after = (squared(request.kv, truth) for request in requests)
    start = prompt.starts[-1]
    return [RepairDeviation(before, left, rows, start) for left, rows in zip(after, choices, strict=True)]


def _left(before: Tensor, after: Tensor) -> Tensor:
    total = before.sum(0)
    return torch.where(total > 0, after.sum(0) / total, torch.nan)


def context_gaps(cached: KVs, exact: KVs, prompts: Sequence[Prompt]) -> list[Tensor]:
    """Return `squared` of the context of each prompt, [T, L] on the CPU, without the question."""
    return [
        squared(kv, truth)[: prompt.starts[-1]].cpu() for kv, truth, prompt in zip(cached, exact, prompts, strict=True)
    ]


def document_mean(values: Sequence[Tensor], prompts: Sequence[Prompt]) -> float:
    """Return the mean of `values` [T of the context] over all tokens after the first block of each prompt."""
    documents = [value[prompt.starts[1] :] for value, prompt in zip(values, prompts, strict=True)]
    return float(torch.cat(documents).mean())


def mean_concentration(gaps: Sequence[Tensor], prompts: Sequence[Prompt], points: int = 101) -> Tensor:
    """Return `concentration` [points, L] of the tokens after the first block, mean over prompts."""
    curves = [concentration(gap[prompt.starts[1] :], points) for gap, prompt in zip(gaps, prompts, strict=True)]
    return torch.stack(curves).nanmean(0)


def concentration_records(curves: Mapping[str, Tensor]) -> Records:
    """Return `mean_concentration` by preprocessing as records {preparation, name, at, mean}; layer 0 is left out."""
    return [
        {"preparation": name, "name": f"layer {layer}", "at": x / (len(curve) - 1), "mean": float(curve[x, layer])}
        for name, curve in curves.items()
        for layer in range(1, curve.shape[1])
        for x in range(len(curve))
    ]


CAUSES = {  # field of `Causes` → description
    "position": "position: not re-encoded",
    "context": "context: cross-attention missing",
    "precision": "precision: stored in bf16",
}


def cause_records(model: PreTrainedModel, prompts: Sequence[Prompt], cached: Sequence[KVs]) -> Records:
    """Measure `measure_causes` of each prompt: records {prompt, cause, name, part (keys or values), at (layer), mean}.

    `mean` is the relative L2 error over heads and tokens after the first passage, which lacks no context.
    """
    records = []
    for index, (prompt, kvs) in enumerate(zip(prompts, cached, strict=True)):
        measured = measure_causes(model, prompt, kvs)
        for cause, name in CAUSES.items():
            for part in ("keys", "values"):
                errors = getattr(getattr(measured, cause), part)[prompt.starts[2] :].nanmean((0, 2))
                about = {"prompt": index, "cause": cause, "name": name, "part": part}
                records += [{**about, "at": layer, "mean": float(error)} for layer, error in enumerate(errors)]
    return records


def mean_causes(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return `cause_records` as a table of means over prompts: columns part, cause, name, at, mean."""
    return pd.DataFrame(records).groupby(["part", "cause", "name", "at"], sort=False)["mean"].mean().reset_index()


def repairs(
    model: PreTrainedModel, prompts: Sequence[Prompt], cached: KVs, rows: Mapping[str, Sequence[Tensor]], exact: KVs
) -> dict[str, list[RepairDeviation]]:
    """Recompute the `rows` that each selector chose, a tensor per prompt: {selector: [RepairDeviation]}."""
    choices = zip(*rows.values(), strict=True)
    by_prompt = [repair(model, *each) for each in zip(prompts, cached, choices, exact, strict=True)]
    return {spec: [measured[i] for measured in by_prompt] for i, spec in enumerate(rows)}


PARTS = {  # field of `RepairDeviation` → title
    "context": "left in the context",
    "recomputed_left": "left in the recomputed tokens",
    "question_left": "left in the question",
}


def repair_records(repairs: Mapping[str, Sequence[RepairDeviation]]) -> Records:
    """Return the share of the deviation that is left, mean over prompts.

    Records {name (selector), at (layer from 1), mean, low, high, n, part}.
    """
    records = []
    for spec, measured in repairs.items():
        for part in PARTS:
            left = torch.stack([getattr(each, part) for each in measured]).cpu().numpy()[:, 1:]
            records += [one | {"part": part} for one in summary(left, spec, range(1, left.shape[1] + 1))]
    return records
