"""Time to the first token against where cached blocks lie and how long the context is (FusionRAG, figure 19).

    rows = measured(loaded, prompts, folder, repeats=5)

Full attention, and reuse of blocks from memory and from a folder on disk, with nothing and with a share recomputed;
all take turns in one process. Blocks from disk are read, and their checksums verified, within the time; the system's
own cache of files is warm.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from workbench.core.blocks import Prompt
from workbench.experiments.latency.ttft import interleaved
from workbench.methods import Method
from workbench.methods.generation import first_token
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics.answers import Records
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.models.loading import Loaded
from workbench.store import UNLIMITED, FolderStore, MemoryStore, Store
from workbench.store.views import ReadOnlyStore

FULL = "full attention"
TIERS = ("memory", "disk")


def methods(ratio: float) -> dict[str, Method]:
    """Return reuse with nothing and with a share of the tokens recomputed, by name."""
    return {"reuse": Reuse(), f"reuse, {ratio:.0%} recomputed": Reuse(select=QueryGuided(), ratio=ratio)}


def measured(
    loaded: Loaded,
    prompts: Sequence[Prompt],
    folder: Path,
    repeats: int = 5,
    ratio: float = FUSION_RAG["ratio"],
) -> Records:
    """Return a row of `results.Timing` a prompt and candidate: the workload is the number of tokens.

    `folder` is filled with the prompts' blocks. Raises BadInput where it cannot be written.
    """
    model = loaded.model
    stores: dict[str, Any] = {"memory": MemoryStore(UNLIMITED), "disk": FolderStore(folder, new=True)}
    rows: Records = []
    for prompt in prompts:
        for store in stores.values():
            first_token(model, prompt, Reuse(), store)
        jobs: dict[str, Any] = {FULL: partial(first_token, model, prompt, "full")}
        for tier, store in stores.items():
            for name, method in methods(ratio).items():
                jobs[f"{tier}: {name}"] = partial(_asked, model, prompt, method, store)
        for label, times in interleaved(jobs, model.device, repeats).items():
            tier, _, name = label.rpartition(": ")
            about: dict[str, Any] = {"mode": "block", "setting": {"tier": tier}} if tier else {"mode": "full"}
            about |= {"select": "query_guided", "ratio": ratio} if "recomputed" in name else {}
            ends = {end: 1e3 * getattr(times, end) for end in ("p5", "p95")}
            spent = {"ms": 1e3 * times.p50, **ends, "runs": repeats}
            named = {"workload": str(len(prompt)), "candidate": f"{name}, from {tier}" if tier else name}
            rows.append({**named, **about, **spent, "bytes": float(_bytes(loaded, prompt) if tier else 0)})
    return rows


@torch.no_grad()
def _asked(model: Any, prompt: Prompt, method: Method, store: Store) -> int:
    return first_token(model, prompt, method, ReadOnlyStore(store))


def _bytes(loaded: Loaded, prompt: Prompt) -> int:
    """Return the bytes of a prompt's cached blocks."""
    spec = loaded.spec
    tokens = len(prompt) - len(prompt.question)
    return sum(2 * heads * width for heads, width in spec.shapes) * spec.dtype.itemsize * tokens
