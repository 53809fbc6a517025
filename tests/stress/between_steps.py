"""Answers that are read step by step, while others cancel, close, give blocks back and encode between the steps.

A stream that lost what it reads must be refused by its next step; every other answer must be that of an engine which
nobody disturbs. What happens between two steps is drawn by a seed; threads answer beside.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from threading import Thread

import torch

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.engine.decoding import eos_ids
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.page_allocator import NoPages
from workbench.engine.pages.paged_prompt import Cached, PagedPrompt
from workbench.models.loading import Loaded

LIMITS = (2, 5, 12, 24)  # tokens of an answer
GROUP, STREAMS = 4, 4  # prompts of a stream at most, and streams that are read side by side
BETWEEN = {"nothing": 70, "cancel": 1, "close": 1, "give back": 1, "encode": 8, "thread": 2}  # how often, about


@dataclass(eq=False)
class Stream:
    """An answer in progress to some prompts; `lost` where somebody has by now what a step to come reads."""

    asked: Sequence[Prompt]
    prompts: Sequence[PagedPrompt]
    limit: int
    steps: Generator[list[int | None], None, None]
    said: list[list[int]] = field(default_factory=list)
    read: int = 0
    lost: bool = False
    ended: bool = False  # in a thread: answered or refused
    thread: Thread | None = None

    def reads(self, block: Block) -> bool:
        return any(block in prompt.context for prompt in self.asked)

    def lose(self) -> None:
        """Note that pages of it are somebody else's: a step that has begun may be read, the next one is refused."""
        self.lost |= self.read < self.limit - 1 or self.thread is not None

    def take(self, step: Sequence[int | None]) -> None:
        self.read += 1
        for said, token in zip(self.said, step, strict=True):
            said += [] if token is None else [token]


class BetweenSteps:
    """Answers `count` prompts that `draw` draws, over the pages of `blocks`; `judge` is given every whole answer."""

    def __init__(
        self,
        loaded: Loaded,
        runner: Runner,
        blocks: BlockPages,
        texts: Sequence[Block],
        random: Random,
        draw: Callable[[], Prompt],
        judge: Callable[[Prompt, Sequence[int], int], None],
        counts: Counter[str],
    ):
        self.model, self.eos = loaded.model, frozenset(eos_ids(loaded.model, loaded.tokenizer))
        self.runner, self.blocks, self.pool, self.texts = runner, blocks, runner.pool, texts
        self.random, self.draw, self.judge, self.counts = random, draw, judge, counts
        self.held: dict[Block, Cached] = {}
        self.streams: list[Stream] = []
        self.threads: list[Stream] = []

    def run(self, count: int) -> None:
        """Answer so many prompts; all pages are given back."""
        while count or self.streams:
            while count and len(self.streams) < STREAMS:
                asked = [self.draw() for _ in range(min(count, self.random.randint(1, GROUP)))]
                if not (stream := self._begun(asked, self.random.choice(LIMITS), bool(self.streams))):
                    break
                self.streams.append(stream)
                count -= len(asked)
            stream = self.random.choice(self.streams)
            what = self.random.choices(list(BETWEEN), list(BETWEEN.values()))[0]
            self.counts[f"between steps: {what}"] += 1
            getattr(self, f"_{what.replace(' ', '_')}")(stream)
            if stream in self.streams:
                self._step(stream)
        self._join()
        self._drop_idle()

    def _begun(self, asked: Sequence[Prompt], limit: int, may_wait: bool) -> Stream | None:
        """Open prompts and compute their questions; None where they find no room and others are in progress."""
        blocks = dict.fromkeys(block for prompt in asked for block in prompt.context)
        own = sum(self._pages(len(prompt.blocks[-1]) + limit) for prompt in asked)

        def needed() -> int:
            return own + sum(self._pages(len(block)) for block in blocks if block not in self.held)

        if needed() > self.blocks.available_pages:
            self._drop_idle()
        if needed() > self.blocks.available_pages and may_wait:
            return None
        if needed() > self.blocks.available_pages:
            self._join()
            self._drop_idle()
        self.blocks.make_room(needed())
        fresh = [block for block in blocks if block not in self.held]
        self.held |= zip(fresh, self.pool.encode(self.model, fresh) if fresh else (), strict=True)
        prompts = [
            self.pool.open([self.held[block] for block in prompt.context], len(prompt.blocks[-1]) + limit)
            for prompt in asked
        ]
        return Stream(asked, prompts, limit, self._answer(asked, prompts, limit), [[] for _ in asked])

    def _answer(
        self, asked: Sequence[Prompt], prompts: Sequence[PagedPrompt], limit: int
    ) -> Generator[list[int | None], None, None]:
        logits = self.runner.prefill(prompts, [torch.tensor(prompt.blocks[-1].tokens) for prompt in asked])
        yield from self.runner.decode(prompts, logits, limit, self.eos)

    def _step(self, stream: Stream) -> None:
        lost = stream.lost
        try:
            step = next(stream.steps)
        except BadInput:
            self.counts["refused" if lost else "refused wrongly"] += len(stream.asked)
            self._leave(stream)
        except StopIteration:
            self.counts["not refused"] += lost
            self._judge(stream)
            self._leave(stream)
        else:
            self.counts["not refused"] += lost
            self.counts["tokens"] += len(stream.asked)
            stream.take(step)

    def _judge(self, stream: Stream) -> None:
        for prompt, said in zip(stream.asked, stream.said, strict=True):
            self.judge(prompt, said, stream.limit)

    def _leave(self, stream: Stream) -> None:
        self.streams = [other for other in self.streams if other is not stream]
        for prompt in stream.prompts:
            if not prompt.closed:
                self.pool.close(prompt)

    def _nothing(self, stream: Stream) -> None:
        """Leave all as it is."""

    def _cancel(self, stream: Stream) -> None:
        """Hang up in the middle of an answer; others encode where it was."""
        self.counts["cancelled"] += len(stream.asked)
        stream.steps.close()
        self._leave(stream)
        self._encode(stream)

    def _close(self, stream: Stream) -> None:
        """Close a prompt of an answer that goes on; others encode into its pages."""
        if open_ones := [prompt for prompt in stream.prompts if not prompt.closed]:
            self.pool.close(self.random.choice(open_ones))
            stream.lose()
        self._encode(stream)

    def _give_back(self, stream: Stream) -> None:
        """Give back a block that answers in progress read; others encode into its pages."""
        there = [block for prompt in stream.asked for block in prompt.context if block in self.held]
        if there:
            block = self.random.choice(there)
            for other in (*self.streams, *self.threads):
                if other.reads(block):
                    other.lose()
            self.pool.free_pages(self.held.pop(block))
        self._encode(stream)

    def _encode(self, stream: Stream) -> None:
        """Encode blocks that nobody asks for, in whatever pages are free."""
        some = self.random.choices(self.texts, k=self.random.randint(1, 3))
        with suppress(NoPages):
            self.blocks.make_room(sum(self._pages(len(block)) for block in some))
            for cached in self.pool.encode(self.model, some):
                self.pool.free_pages(cached)

    def _thread(self, stream: Stream) -> None:
        """Answer a prompt in another thread, to its end."""
        other = self._begun([self.draw()], self.random.choice(LIMITS), may_wait=True)
        if other is None:
            return

        def answer() -> None:
            with suppress(BadInput):
                for step in other.steps:
                    other.take(step)
                other.ended = True

        other.thread = Thread(target=answer)
        self.threads.append(other)
        other.thread.start()

    def _join(self) -> None:
        """Wait for the threads. An answer that has lost what it reads may have ended before, or is refused."""
        for other in self.threads:
            assert other.thread is not None
            other.thread.join()
            if other.ended:
                self._judge(other)
            else:
                self.counts["refused" if other.lost else "refused wrongly"] += 1
            self._leave(other)
        self.threads.clear()

    def _drop_idle(self) -> None:
        """Give back blocks that nobody reads."""
        for block in list(self.held):
            if not any(other.reads(block) for other in (*self.streams, *self.threads)):
                self.pool.free_pages(self.held.pop(block))

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.pool.size)
