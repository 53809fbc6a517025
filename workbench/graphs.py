"""Prompts over a pool of pages, computed by steps of fixed shape: captured once as CUDA graphs, replayed afterwards.

A forward pass of an 8B model over 50 rows is some 1,500 short kernels; started one by one, they take longer to start
than to run. A CUDA graph starts them all at once, if nothing but the contents of its inputs changes. So requests are
padded to a `Bucket`: batch and rows to the next power of two (rows from 16), pages, and rows above 256, to the next of
8 … 15 times a power of two. A padded row stands at -1, sees nothing and writes to the pool's scratch page. What was
captured is kept; `Runner.captured` says in how many seconds. Elsewhere than on CUDA the same step runs without a graph.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.errors import BadInput
from workbench.executors import kernel
from workbench.pool import SCRATCH, PagedPrompt, Pool
from workbench.probing import facts_of

ROWS = 256  # rows times query heads of a group, above which q_sparse_attention carries a step out
WARM_UP = 2  # forward passes before a capture: kernels are compiled, libraries choose theirs


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


@dataclass
class Captured:
    """A step, its graph (None: it runs as it is), its result, and the seconds that warming up and capturing took."""

    step: Step
    graph: "torch.cuda.CUDAGraph | None" = None
    logits: Tensor | None = None
    warm_up: float = 0.0
    capture: float = 0.0

    def run(self) -> Tensor:
        if self.graph is None:
            return self.step.forward()
        self.graph.replay()
        assert self.logits is not None
        return self.logits


@dataclass
class Runner:
    """Prefill and decoding of prompts over one pool.

    graphs  capture steps; None: on CUDA
    """

    model: PreTrainedModel
    pool: Pool
    graphs: bool | None = None
    captured: dict[Bucket, Captured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.graphs is None:
            self.graphs = self.pool.device.type == "cuda"
        if self.graphs and self.pool.device.type != "cuda":
            raise BadInput(f"CUDA graphs on {self.pool.device}: they need a GPU")
        self._memory = torch.cuda.graph_pool_handle() if self.graphs else None

    @torch.no_grad()
    def prefill(self, prompts: Sequence[PagedPrompt], tokens: Sequence[Tensor]) -> Tensor:
        """Logits [B, V] after the last token of every request. `tokens[i]` [R]: of the rows that are computed now, for
        the first time the context's tokens that are computed again, then the question."""
        _check(prompts, tokens)
        ready = self._ready(Bucket.of(prompts, max(map(len, tokens))))
        step = ready.step
        step.clear()
        for i, (prompt, ids) in enumerate(zip(prompts, tokens, strict=True)):
            step.put(i, prompt, len(ids))
            step.on_host["ids"][i, : len(ids)] = ids
            prompt.written += len(ids)
        step.send()
        return ready.run()[: len(prompts)].clone()

    @torch.no_grad()
    def decode(
        self, prompts: Sequence[PagedPrompt], logits: Tensor, count: int, eos: frozenset[int] = frozenset()
    ) -> Iterator[list[int | None]]:
        """Stream greedy answers: one list of token ids a step, None for a request that has ended with one of `eos` (it
        is not streamed; its rows are computed on). The device is one step ahead of the reader."""
        if count < 1 or any(prompt.room < count - 1 for prompt in prompts):
            raise BadInput(f"{count} tokens for prompts with room for {[prompt.room for prompt in prompts]}")
        ready = self._ready(Bucket.of(prompts, 1, max(1, count)))
        step = ready.step
        assert isinstance(step, Answer)
        step.clear()
        for i, prompt in enumerate(prompts):
            step.put(i, prompt, min(1, prompt.room))
        step.send()
        first = logits.argmax(-1).int()
        step.begin(first)
        return self._stream(ready, prompts, first, count, eos)

    def _stream(
        self, ready: Captured, prompts: Sequence[PagedPrompt], first: Tensor, count: int, eos: frozenset[int]
    ) -> Iterator[list[int | None]]:
        step = ready.step
        assert isinstance(step, Answer)
        fetch = _Fetch(count, len(prompts), step.tokens.device)
        fetch.start(0, first)
        ended = [False] * len(prompts)
        for number in range(count):
            if number + 1 < count:
                with torch.no_grad():
                    ready.run()
                fetch.start(number + 1, step.tokens[number, : len(prompts)])
                for prompt in prompts:
                    prompt.written += 1
            tokens = fetch.wait(number)
            ended = [done or token in eos for done, token in zip(ended, tokens, strict=True)]
            if all(ended):
                return
            yield [None if done else token for done, token in zip(ended, tokens, strict=True)]

    def _ready(self, bucket: Bucket) -> Captured:
        facts_of(self.model)  # the workbench's attention, if somebody has switched to another in between
        if bucket not in self.captured:
            step = (Answer if bucket.room else Step)(self.model, self.pool, bucket)
            step.send()
            self.captured[bucket] = self._capture(step) if self.graphs else Captured(step)
        return self.captured[bucket]

    @torch.no_grad()
    def _capture(self, step: Step) -> Captured:
        """Warm up and capture on padding only: nothing is written but the scratch page."""
        begin = time.perf_counter()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step.forward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        middle, graph = time.perf_counter(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            logits = step.forward()
        torch.cuda.synchronize()
        return Captured(step, graph, logits, middle - begin, time.perf_counter() - middle)


class _Fetch:
    """Tokens on their way to the host, without stopping the device."""

    def __init__(self, count: int, batch: int, device: torch.device):
        self.events: list[torch.cuda.Event | None] = [None] * count
        self.host = torch.zeros(count, batch, dtype=torch.int32, pin_memory=device.type == "cuda")

    def start(self, number: int, tokens: Tensor) -> None:
        self.host[number].copy_(tokens, non_blocking=True)
        if tokens.is_cuda:
            self.events[number] = torch.cuda.Event()
            self.events[number].record()  # type: ignore[union-attr]

    def wait(self, number: int) -> list[int]:
        event = self.events[number]
        if event is not None:
            event.synchronize()
        return [int(token) for token in self.host[number].tolist()]


def _check(prompts: Sequence[PagedPrompt], tokens: Sequence[Tensor]) -> None:
    if not prompts or len(prompts) != len(tokens):
        raise BadInput(f"{len(tokens)} lists of tokens for {len(prompts)} prompts: give one for each, at least one")
    for prompt, ids in zip(prompts, tokens, strict=True):
        if not 1 <= len(ids) <= prompt.room:
            raise BadInput(f"{len(ids)} tokens for a prompt with room for {prompt.room}")


def _aligned(shape: tuple[int, ...]) -> int:
    """Elements that an input takes, so that the next begins at a multiple of 128 bytes."""
    return -(-torch.Size(shape).numel() // 32) * 32


def _power(count: int) -> int:
    return 1 << (max(count, 1) - 1).bit_length()


def _octave(count: int) -> int:
    """The next of 8 … 15 times a power of two, 8 at least."""
    unit = 1 << max(0, count.bit_length() - 4)
    return max(8, -(-count // unit) * unit)
