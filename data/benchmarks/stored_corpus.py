"""A corpus of blocks, encoded once and put where a run of serving wants them: on disk, on the host, in pages."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import cold_files
import numpy as np
import torch
from prefix_engine import PrefixEngine
from serving_load import SIZE, Load, State
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.paged_pool import Pool
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.methods.serving import Engine
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.methods.serving.paged import PagedEngine
from workbench.models.spec import spec_for
from workbench.store import FolderStore, HostTier, StoreTier, TieredStore, fingerprint, key_of
from workbench.store.files.packed import PackedKV, pack
from workbench.store.tiering.pages import PageTier

TOGETHER = 64  # blocks that are encoded at once


@dataclass
class StoredCorpus:
    """One model and its corpus, whose blocks are encoded once and put where each run wants them."""

    model: PreTrainedModel
    load: Load
    folder: Path
    paged: bool | None = None  # requests share the pages of a pool; None: on a GPU
    packed: dict[str, PackedKV] = field(default_factory=dict)
    pages: PageTier | None = None

    def __post_init__(self) -> None:
        draw, load = np.random.default_rng(self.load.seed), self.load
        spec = spec_for(self.model)
        if spec.context and load.tokens + load.answer > spec.context:
            raise BadInput(f"prompts of {load.tokens} tokens are over the model's context of {spec.context}")
        self.corpus = [Block(tuple(draw.integers(3, spec.vocabulary, load.block))) for _ in range(load.blocks)]
        weights = 1 / np.arange(1, load.blocks + 1) ** load.zipf
        self.prompts = []
        for _ in range(load.questions):
            which = draw.choice(load.blocks, load.per_question, replace=False, p=weights / weights.sum())
            asked = Block(tuple(draw.integers(3, spec.vocabulary, load.question)))
            self.prompts.append(Prompt((*(self.corpus[i] for i in which), asked)))
        self.paged = self.model.device.type == "cuda" if self.paged is None else self.paged
        model_key = fingerprint(self.model)
        self.keys = [key_of(model_key, self.model.dtype, block) for block in self.corpus]
        self.kv_bytes = load.block * sum(2 * h * d for h, d in spec.shapes) * self.model.dtype.itemsize
        self.in_pages = -(-load.block // SIZE) * load.blocks
        self.pool = Pool(self.model, 1 + self.in_pages + (load.batch * self._own() if self.paged else 0), SIZE)
        self.runner = Runner(self.model, self.pool)
        self._spare: list[int] = []

    def encode(self) -> None:
        """Encode the corpus into host memory, page-locked where there is a GPU."""
        pages = PageTier(self.pool, TieredStore([HostTier(1)]))
        for begin in range(0, self.load.blocks, TOGETHER):
            part = dict(zip(*(x[begin : begin + TOGETHER] for x in (self.keys, self.corpus)), strict=True))
            pages.reserve({key: len(block) for key, block in part.items()}, 0)
            pages.encode(self.model, part)
            for key in part:
                kv = pages.get(key)
                assert kv is not None
                self.packed[key] = kv if isinstance(kv, PackedKV) else pack(kv, pinned=bool(self.paged))
                self.packed[key].lock()
            pages.release(part, 0)
        for key in self.keys:
            pages.drop(key)

    def write(self) -> dict[str, Any]:
        """Write the blocks of the cold runs to the folder (on a CPU, all), and return {seconds, bytes} and the disk's.

        raw     how fast the disk gives some of these files, read as they are
        folder  the kind of its file system
        """
        begin = perf_counter()
        used = {block.content for prompt in self.prompts[: self.load.cold] for block in prompt.context}
        keys = [k for k, b in zip(self.keys, self.corpus, strict=True) if b.content in used or not self.paged]
        folder = FolderStore(self.folder, {"model": fingerprint(self.model)}, new=True, durable=False)
        with ThreadPoolExecutor(cold_files.THREADS) as threads:
            list(threads.map(folder.put, keys, (self.packed[key] for key in keys)))
        self.forget()
        facts = {"seconds": perf_counter() - begin, "bytes": float(len(keys) * self.kv_bytes)}
        raw = cold_files.raw_rate(self.files[: len(keys) // 4 or 1])
        self.forget()
        return facts | {"raw": raw, "resident": cold_files.resident(self.files)} | self.place()

    def place(self) -> dict[str, str]:
        """Return what the folder lies in."""
        return {"folder": cold_files.file_system(self.folder)}

    @property
    def files(self) -> list[Path]:
        """The files of the folder."""
        return sorted(self.folder.glob("*.safetensors"))

    def forget(self) -> None:
        """Let the system drop what it holds of the files in memory, so that they are read from the disk."""
        cold_files.forget(self.files)

    def engine(self, state: State, ratio: float = 0.0) -> Engine:
        """Return an engine whose blocks lie where `state` says."""
        method = Reuse(select=QueryGuided(system=0), ratio=ratio) if ratio else Reuse()
        engine = self._paged(state, method) if self.paged else self._contiguous(state, method)
        if state == "cold":
            self.forget()  # after the store has read the headers
        return engine

    def baseline(self, name: str) -> Engine:
        """Return an engine that computes every token, or all behind the longest prefix that was computed before."""
        if name == "full prefill":
            return ContiguousEngine(self.model, None, TieredStore([HostTier(1)]), Full())
        room = int(self.load.share * self.load.blocks) * self.kv_bytes
        return PrefixEngine(self.model, None, TieredStore([HostTier(room)]))

    def _contiguous(self, state: State, method: Reuse) -> Engine:
        whole = self.load.blocks * self.kv_bytes
        room = whole if state == "hot" else max(self.kv_bytes, int(self.load.share * whole))
        store = TieredStore([HostTier(room), StoreTier(FolderStore(self.folder, durable=False))], loaders=1)
        for key in self.keys if state == "hot" else self.keys[: int(self.load.share * len(self.keys))]:
            if state != "cold":
                store.put(key, self.packed[key])
        return ContiguousEngine(self.model, None, store, method)

    def _paged(self, state: State, method: Reuse) -> Engine:
        self._clear()
        whole = self.load.blocks * self.kv_bytes
        if state == "cold":
            host = HostTier(int(1.1 * whole), pinned=True)
            disk = StoreTier(FolderStore(self.folder, durable=False, pinned=True))
            store = TieredStore([host, disk], loaders=self.load.readers)
        else:
            store = TieredStore([HostTier(int(1.1 * whole), pinned=True)])
            for key, kv in self.packed.items():
                store.put(key, kv)
        if state != "hot":
            self._spare = self.pool.take(SIZE * int(self.in_pages * (1 - self.load.share)))
        self.pages = PageTier(self.pool, store)
        if state == "hot":
            mine = self.pages.reserve(dict.fromkeys(self.keys, self.load.block), 0)
            self.pages.fill({key: self.packed[key] for key in mine})
            self.pages.release(mine, 0)
        return PagedEngine(self.runner, self.pages, None, method)

    def _clear(self) -> None:
        """Give the pages of an earlier run back."""
        if self.pages is not None:
            for key in self.pages:
                self.pages.drop(key)
        self.pool.give(self._spare)
        self.pages, self._spare = None, []

    def _own(self) -> int:
        """Return pages of one request that are its own."""
        load = self.load
        return -(-int(load.question + load.answer + load.ratio * load.per_question * load.block + 1) // SIZE)

    def copy_rates(self) -> dict[str, float]:
        """Measure GB/s at which blocks of one question come into pages, and of a plain copy of as many bytes."""
        self._clear()
        keys = self.keys[: self.load.per_question]
        kvs: dict[str, KV] = {key: self.packed[key] for key in keys}
        size = sum(kv.nbytes for kv in kvs.values())
        target = torch.empty(size, dtype=torch.uint8, device=self.model.device)
        source = torch.empty(size, dtype=torch.uint8, pin_memory=target.is_cuda)
        tier = PageTier(self.pool, TieredStore([HostTier(1)]))

        def filled() -> None:
            tier.fill(kvs)

        def copied() -> None:
            target.copy_(source, non_blocking=True)
            if target.is_cuda:
                torch.cuda.synchronize()

        tier.reserve(dict.fromkeys(keys, self.load.block), 0)
        seconds: dict[str, list[float]] = {"pages": [], "copy": []}
        for _ in range(4):
            for name, work in (("pages", filled), ("copy", copied)):
                begin = perf_counter()
                work()
                seconds[name].append(perf_counter() - begin)
        for key in keys:
            tier.drop(key)
        rates = {f"{name}_gbps": size / min(times[1:]) / 1e9 for name, times in seconds.items()}
        return rates | {"share": rates["pages_gbps"] / rates["copy_gbps"], "bytes": float(size)}
