"""What of a cached block's deviation comes from where: its position, the context it did not see, its precision."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.engine.forward import assemble, empty, prefill
from workbench.metrics.deviation import Deviation, deviation


@dataclass(frozen=True)
class Causes:
    """Three steps from cached keys and values to those of full attention, context tokens [T, L, H] each."""

    position: Deviation  # as cached, against re-encoded for where the block stands; values do not depend on it
    context: Deviation  # re-encoded, against full attention: the cross-attention that is missing
    precision: Deviation  # stored with fewer bits and re-encoded, against kept as computed and re-encoded


def causes(
    model: PreTrainedModel, prompt: Prompt, cached: Sequence[KV], stored: torch.dtype = torch.bfloat16
) -> Causes:
    """The three causes for `cached` KV of the context blocks, which a store would keep as `stored`.

    Precision shows in a model that computes with more bits than `stored`; else that part is 0.
    """
    end = prompt.starts[-1]
    placed = assemble(model, prompt, cached).slice(0, end)
    naive = assemble(model, prompt, cached, "naive").slice(0, end)
    rounded = assemble(model, prompt, [_through(kv, stored) for kv in cached]).slice(0, end)
    return Causes(
        deviation(naive, placed), deviation(placed, computed(model, prompt).slice(0, end)), deviation(rounded, placed)
    )


def computed(model: PreTrainedModel, prompt: Prompt) -> KV:
    """KV of a whole prompt under full attention."""
    kv = empty(model, len(prompt))
    prefill(model, prompt.tokens, Plan(torch.arange(len(prompt)), num_layers=len(kv.keys)), kv)
    return kv


def _through(kv: KV, dtype: torch.dtype) -> KV:
    """This KV after a stay in a store of that dtype."""
    keys, values = ([x.to(dtype).to(x.dtype) for x in half] for half in (kv.keys, kv.values))
    return KV(keys, values, kv.start)
