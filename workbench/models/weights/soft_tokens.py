"""Soft tokens: trained embeddings around a passage, with ids after those of the vocabulary.

soft_tokens.safetensors   header, trailer, links [n, C] fp32: before a passage, after it, and after the trailer
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.models.weights import SOFT_TOKENS as FILE

PARTS = ("header", "trailer", "links")


@dataclass(frozen=True)
class SoftTokens:
    """Numbers of soft tokens around a passage: header, trailer and links; their ids start at `first`, in this order."""

    first: int = 0
    header: int = 0
    trailer: int = 0
    links: int = 0

    @classmethod
    def at_end_of(cls, counts: Sequence[int]) -> "SoftTokens":
        """Return soft tokens with these counts and negative ids, counted from the end of the embedding table."""
        return cls(-sum(counts), *counts)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Number of soft tokens of each part, in the order of `PARTS`."""
        return self.header, self.trailer, self.links

    @property
    def ids(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Ids of the header, the trailer and the links."""
        a = self.first + self.header
        b = a + self.trailer
        return tuple(range(self.first, a)), tuple(range(a, b)), tuple(range(b, b + self.links))

    def wrap_passage(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a passage between its soft tokens; a passage that has them is returned unchanged."""
        if max(tokens[0], tokens[-1]) >= self.first:
            return tuple(tokens)
        header, trailer, links = self.ids
        return (*header, *tokens, *trailer, *links)


def soft_tokens(model: PreTrainedModel) -> SoftTokens | None:
    """Return the soft tokens of a model; None if it has none."""
    counts = getattr(model.config, "soft_tokens", None)
    if counts is None:
        return None
    return SoftTokens(embeddings(model).num_embeddings - sum(counts), *counts)


def embeddings(model: PreTrainedModel) -> nn.Embedding:
    """Return the embedding table of a model's input tokens."""
    table: Any = model.get_input_embeddings()
    return table


@torch.no_grad()
def grow(model: PreTrainedModel, parts: Sequence[Tensor]) -> None:
    """Append header, trailer and links [n, C] to the embedding table, but not to the output head.

    Raises BadInput for vectors of another width, and for a model that already has soft tokens.
    """
    before = embeddings(model)
    if getattr(model.config, "soft_tokens", None) is not None:
        raise BadInput(f"{model.config.name_or_path} has soft tokens already")
    width = before.weight.shape[1]
    if odd := [tuple(part.shape) for part in parts if part.ndim != 2 or part.shape[1] != width]:
        raise BadInput(f"soft tokens are {odd[0]}: the model takes vectors [n, {width}]")
    table = deepcopy(before)
    rows = torch.cat((before.weight, *(part.to(before.weight) for part in parts)))
    table.weight, table.num_embeddings = nn.Parameter(rows), len(rows)
    model.set_input_embeddings(table)
    model.config.soft_tokens = [len(part) for part in parts]


def sample_embeddings(model: PreTrainedModel, counts: Sequence[int]) -> list[Tensor]:
    """Sample initial soft tokens, `counts` per part, with the mean and standard deviation of the embeddings."""
    weight = embeddings(model).weight
    mean, std = weight.detach().mean(0), weight.detach().std(0)
    return [mean + std * torch.randn(count, len(mean)).to(mean) for count in counts]


def train_alone(model: PreTrainedModel) -> None:
    """Train only the embeddings of soft tokens; allow negative ids, counted from the end of the table."""
    table, soft = embeddings(model), soft_tokens(model)
    assert soft is not None
    first = soft.first
    table.weight.requires_grad_()
    table.weight.register_hook(lambda gradient: torch.cat((torch.zeros_like(gradient[:first]), gradient[first:])))
    table.register_forward_pre_hook(lambda module, given: (given[0] % module.num_embeddings,))


def save(model: PreTrainedModel, folder: Path) -> int:
    """Write the soft tokens of a model to a folder; return the number of their parameters."""
    soft = soft_tokens(model)
    assert soft is not None
    rows = embeddings(model).weight.detach().float().cpu()[soft.first :]
    parts = zip(PARTS, rows.split(list(soft.counts)), strict=True)
    save_file({name: part.contiguous() for name, part in parts if len(part)}, folder / FILE, metadata={"format": "pt"})
    return rows.numel()


def load(model: PreTrainedModel, folder: Path) -> None:
    """Add the soft tokens of a folder, if any, to a model. Raises BadInput for a file that does not fit it."""
    if not (folder / FILE).is_file():
        return
    parts = load_file(folder / FILE)
    if unknown := set(parts) - set(PARTS):
        raise BadInput(f"{folder / FILE} holds {min(unknown)!r}: allowed are {', '.join(PARTS)}")
    none = embeddings(model).weight.new_zeros(0, embeddings(model).weight.shape[1])
    grow(model, [parts.get(name, none) for name in PARTS])
