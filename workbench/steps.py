"""Steps of fixed shape over a pool of pages: static inputs, and the forward pass over them.

Requests are padded to a `Bucket`: batch and rows to the next power of two (rows from 16), pages, and rows above 256, to
the next of 8 … 15 times a power of two. A padded row stands at -1, sees nothing and writes to the pool's scratch page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.executors import kernel
from workbench.pool import SCRATCH, PagedPrompt, Pool

ROWS = 256  # rows times query heads of a group, above which q_sparse_attention carries a step out


@dataclass(frozen=True)
class Bucket:
    """Shape of a step: `batch` requests of `rows` rows and `pages` pages. `moving`: some keys turn as they are read;
    `holes`: many pages have slots that nobody sees. `room`: slots for an answer, 0 for a prefill."""

    batch: int
    rows: int
    pages: int
    moving: bool
    holes: bool
    room: int = 0

    @classmethod
    def of(cls, prompts: Sequence[PagedPrompt], rows: int, room: int = 0) -> "Bucket":
        tables = [prompt.pages for prompt in prompts]
        return cls(
            _power(len(prompts)),
            1 if room else max(16, _power(rows) if rows <= ROWS else _octave(rows)),
            _octave(max(pages.table.shape[1] for pages in tables)),
            any(pages.moves is not None for pages in tables),
            any(pages.holes for pages in tables),
            room and max(64, _power(room)),
        )


class Step:
    """The static inputs of a bucket, and the forward pass over them: a part of a pass (`attention.Part`).

    All inputs are views of one int32 tensor, so a request is one copy to the device.
    """

    depth = None

    def __init__(self, model: PreTrainedModel, pool: Pool, bucket: Bucket):
        self.model, self.pool, self.bucket = model, pool, bucket
        batch, rows, pages, room = bucket.batch, bucket.rows, bucket.pages, bucket.room
        self.shapes = {
            "ids": (batch, rows), "at": (batch, rows), "slots": (batch, rows), "last": (batch,), "live": (batch, 1),
            "used": (batch, 1), "own": (batch, room), "table": (batch, pages), "first": (batch, pages),
            "final": (batch, pages), "moves": (batch, pages), "positions": (batch, pages, pool.size),
        }  # fmt: skip
        self.host = torch.zeros(sum(map(_aligned, self.shapes.values())), dtype=torch.int32)
        self.inputs = self.host.to(pool.device, copy=True)
        self.on_host, self.on_device = self._views(self.host), self._views(self.inputs)
        self.rows = self.on_device["at"].view(-1)  # what `attention.attend` asks a part for
        paged = kernel("_paged")
        self.far: int = paged.FAR
        given = self.on_device
        self.pages = paged.Paged(
            given["table"], given["positions"], given["first"], given["final"],
            given["moves"] if bucket.moving else None, bucket.holes,
        )  # fmt: skip
        self.clear()

    def _views(self, whole: Tensor) -> dict[str, Tensor]:
        parts = whole.split(list(map(_aligned, self.shapes.values())))
        return {
            name: part[: torch.Size(shape).numel()].view(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def clear(self) -> None:
        """No request: every row and page is padding."""
        self.host.zero_()
        for name in ("positions", "first", "final"):
            self.on_host[name].fill_(self.far)
        self.on_host["at"].fill_(-1)
        for name in ("slots", "own"):
            self.on_host[name].fill_(SCRATCH * self.pool.size)

    def put(self, i: int, prompt: PagedPrompt, count: int) -> None:
        """Request i: its page table, and its next `count` rows."""
        host, pages, begin = self.on_host, prompt.pages, prompt.written
        n = pages.table.shape[1]
        for name, source in (("table", pages.table), ("first", pages.first), ("final", pages.last)):
            host[name][i, :n] = source[0]
        host["positions"][i, :n] = pages.positions[0]
        if pages.moves is not None:
            host["moves"][i, :n] = pages.moves[0]
        host["at"][i, :count] = prompt.places[begin : begin + count]
        host["slots"][i, :count] = prompt.own[begin : begin + count]
        host["last"][i] = i * self.bucket.rows + count - 1
        host["live"][i], host["used"][i] = 1, begin
        if self.bucket.room:
            left = prompt.own[: self.bucket.room + begin]
            host["own"][i, : len(left) - begin] = left[begin:]

    def send(self) -> None:
        """What was put, to the device."""
        self.inputs.copy_(self.host)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, size: int | None, scale: float | None, last: bool
    ) -> Tensor | None:
        """q [Hq, B · R, D] over the pages; fresh keys and values [H, B · R, D] go to the requests' own slots."""
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        keys.index_copy_(1, self.now, k)
        values.index_copy_(1, self.now, v)
        shape = self.bucket.batch, self.bucket.rows
        few = self.bucket.rows * (len(q) // len(k)) <= ROWS
        module = kernel("question_attention" if few else "q_sparse_attention")
        call = module.launch if self.pool.kernels else module.reference
        freq = self.pool.inv_freq[layer] if self.bucket.moving else None
        rows = q.unflatten(1, shape).transpose(0, 1)
        out: Tensor = call(rows, keys, values, self.on_device["at"], self.pages, freq, self.pool.pairing, scale)
        return out.transpose(0, 1).flatten(1, 2)

    def forward(self) -> Tensor:
        """Logits [B, V] after the last row of every request."""
        given = self.on_device
        self.now = given["slots"].view(-1).long()
        out = self.model(
            input_ids=given["ids"].view(1, -1),
            position_ids=self.rows.clamp(min=0)[None],
            use_cache=False,
            logits_to_keep=given["last"].long(),
            parts=[self],
        )
        logits: Tensor = out.logits[0]
        return logits


class Answer(Step):
    """A step of decoding: one row a request. It takes the likeliest token itself and makes the next step's inputs, so a
    step needs nothing from the host. `tokens` [room, B]: the token chosen by each step."""

    def __init__(self, model: PreTrainedModel, pool: Pool, bucket: Bucket):
        super().__init__(model, pool, bucket)
        self.tokens = torch.zeros(bucket.room, bucket.batch, dtype=torch.int32, device=pool.device)
        self.number = torch.zeros(1, dtype=torch.long, device=pool.device)
        self.taken = torch.zeros(bucket.batch, 1, dtype=torch.int32, device=pool.device)

    def begin(self, ids: Tensor) -> None:
        """The first tokens [B] of the answers, on the device."""
        self.number.zero_()
        self.taken.zero_()
        self.on_device["ids"][: len(ids), 0] = ids

    def forward(self) -> Tensor:
        given = self.on_device
        logits = super().forward()
        ids = logits.argmax(-1)[:, None].int()
        self.tokens.index_copy_(0, self.number, ids.T)
        given["ids"].copy_(ids)
        given["at"].add_(given["live"])
        self.taken.add_(given["live"])
        given["slots"].copy_(given["own"].gather(1, self.taken.clamp(max=self.bucket.room - 1).long()))
        self.number.add_(1).clamp_(max=self.bucket.room - 1)
        return logits


def _aligned(shape: tuple[int, ...]) -> int:
    """Elements that an input takes, so that the next begins at a multiple of 128 bytes."""
    return -(-torch.Size(shape).numel() // 32) * 32


def _power(count: int) -> int:
    return 1 << (max(count, 1) - 1).bit_length()


def _octave(count: int) -> int:
    """The next of 8 … 15 times a power of two, 8 at least."""
    unit = 1 << max(0, count.bit_length() - 4)
    return max(8, -(-count // unit) * unit)
