"""Inputs of a batch on the host: named views of one int32 array, page-locked where a GPU fetches it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Ints = np.ndarray[Any, np.dtype[np.int32]]
Shapes = Mapping[str, tuple[int, ...]]


class HostBuffer:
    """One array of inputs, its `views` by name, and when it was last sent."""

    def __init__(self, shapes: Shapes, device: torch.device, pinned: bool):
        cuda = device.type == "cuda"
        count = sum(map(aligned, shapes.values()))
        self.tensor = torch.zeros(count, dtype=torch.int32, pin_memory=cuda and pinned)
        self.array: Ints = self.tensor.numpy()
        self.views: dict[str, Ints] = {name: part.numpy() for name, part in views(self.tensor, shapes).items()}
        self._sent = torch.cuda.Event() if cuda else None

    def free(self) -> None:
        """Wait until it is sent, where it still is on its way."""
        if self._sent is not None and not self._sent.query():
            self._sent.synchronize()

    def send(self, target: Tensor) -> None:
        """Begin to copy it to the device."""
        target.copy_(self.tensor, non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def views(whole: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return the parts of a tensor by name; each begins at a multiple of 128 bytes."""
    parts = whole.split([aligned(shape) for shape in shapes.values()])
    return {
        name: part[: torch.Size(shape).numel()].view(shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def aligned(shape: tuple[int, ...]) -> int:
    """Elements that an input takes, so that the next begins at a multiple of 128 bytes."""
    return -(-torch.Size(shape).numel() // 32) * 32
