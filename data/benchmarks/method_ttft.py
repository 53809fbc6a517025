"""Time to first token of every published method that reuses blocks, in one run: Llama-3.1-8B's shape, on a GPU.

    python data/benchmarks/method_ttft.py                    27K in blocks of 512 tokens, 15% charged
    python data/benchmarks/method_ttft.py --tiny --runs 3    a tiny shape, for a try on a CPU

writes timings and counts of experiment "methods" into a results folder after every round; no round starts after
`--seconds`. A round runs every method once, so that a busy machine slows all alike. Blocks are cached before the clock
starts; selection and its forward passes are timed.

"ours" is reuse that recomputes what the question attends to (`query_guided`), at each method's charged share;
`over_ours` is a method's median over ours. Methods with a ratio compute `--charged` of the prompt, others their own
number of tokens. KVCOMM reads passages that it corrected earlier, as every method reads what it preprocessed; "kvcomm,
new" corrects all of them within the time. FusionRAG's neighbours do not change its TTFT, so blocks are cached
independently here. Soft tokens of KV Packet and KVLink are random. `device_allocations` counts a method's requests that
torch's caching allocator could not serve, in all rounds. The prompt is lab text in lab-full's tokens; CacheClip's
helper needs 1.18 times as many tokens. The first block is the system prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from script import options, prompt_of, writer
from transformers import AutoTokenizer

from workbench import data
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.engine.attention_maps import layers_of
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_prompt import Cached
from workbench.experiments.bench import timing
from workbench.experiments.bench.models.whole_model import GPU, Scene, clock, scene_of
from workbench.experiments.bench.timing import reason
from workbench.experiments.trials.budget import fit_to_budget
from workbench.methods import Method
from workbench.methods.config import MethodConfig
from workbench.methods.correct.kvcomm import Kvcomm
from workbench.methods.engines import PAGE, pages_of
from workbench.methods.generation import first_token
from workbench.methods.modes.reuse import Reuse
from workbench.methods.presets import METHODS
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics.cost import charged_share
from workbench.models import folder
from workbench.models.loading import TOKENIZERS
from workbench.models.weights import soft_tokens
from workbench.store import UNLIMITED, MemoryStore

CONTEXT, QUESTION, BLOCK = 27, 50, 512  # units, tokens, tokens
KINDS = 6  # of blocks in pages: independent, after_system, link0, packet, corrected before, corrected now
SOFT = (8, 8, 5)  # header and trailer of KV Packet, links of KVLink
REFUSED = (BadInput, RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError)


@dataclass
class Asked:
    """A method, its charged share, and the milliseconds and new GPU allocations of its runs."""

    name: str
    method: Method
    charged: float
    ms: list[float] = field(default_factory=list)
    allocations: int = 0


class CorrectsAnew(Kvcomm):
    """KVCOMM with passages that are all new to their position."""

    def over_pages(self, blocks: BlockPages, prompt: Prompt, context: list[Cached]) -> bool:
        for place, block in enumerate(context[self.system :]):
            block.derived.pop((id(self.anchors), place), None)
        return super().over_pages(blocks, prompt, context)


def methods(
    scene: Scene, prompt: Prompt, names: Sequence[str], charged: float, store: MemoryStore
) -> tuple[list[Asked], dict[str, str]]:
    """Return the methods to run, then ours at every share, and why others cannot run."""
    found, refused = list[Asked](), dict[str, str]()
    for name in names:
        try:
            fields = dict(METHODS[name].fields)
            if str(fields.get("prepare")).startswith("with_neighbours"):
                fields["prepare"] = "independent"
            method = MethodConfig(**fields).method()
            if fields.get("ratio") is not None:
                method = fit_to_budget(scene.model, method, [prompt], charged)
            found.append(Asked(name, method, share_of(scene, prompt, method, store)))
            if isinstance(method, Reuse) and isinstance(method.correct, Kvcomm):
                anew = replace(method, correct=CorrectsAnew())
                found.append(Asked(f"{name}, new", anew, share_of(scene, prompt, anew, store)))
        except REFUSED as problem:
            refused[name] = reason(problem)
    for share in sorted({charged, *(round(one.charged, 2) for one in found if one.charged < 0.995)}):
        method = ours(scene, prompt, share)
        found.append(Asked(f"ours, {share:.0%}", method, share_of(scene, prompt, method, store)))
    return found, refused


def ours(scene: Scene, prompt: Prompt, share: float) -> Method:
    """Return our method at a charged share; plain reuse if the share is too small for selection."""
    try:
        return fit_to_budget(scene.model, Reuse(select=QueryGuided()), [prompt], share)
    except BadInput:
        return Reuse()


def share_of(scene: Scene, prompt: Prompt, method: Method, store: MemoryStore) -> float:
    """Return the charged share of a request.

    Methods that learn from earlier requests first see the same blocks in another order, and in this one.
    """
    choices = (method, getattr(method, "correct", None), getattr(method, "select", None))
    if any(hasattr(choice, name) for choice in choices for name in ("anchors", "kept", "priors")):
        system, *blocks, question = prompt.blocks
        for turn in (1, 0):
            earlier = Prompt((system, *blocks[turn:], *blocks[:turn], question))
            method.begin(scene.model, [earlier], store)
    (ready,) = method.begin(scene.model, [prompt], store)
    return charged_share(ready.passes, len(layers_of(scene.model, "all")), len(prompt))


def measured(scene: Scene, asked: list[Asked], prompt: Prompt, store: MemoryStore) -> dict[str, str]:
    """Run every method once; remove one that fails, and return the reasons."""
    failed = {}
    for one in list(asked):
        try:
            before = allocations()
            one.ms.append(clock(partial(first_token, scene.model, prompt, one.method, store)))
            one.allocations += allocations() - before
        except REFUSED as problem:
            failed[one.name] = reason(problem)
            asked.remove(one)
    return failed


def allocations() -> int:
    """Return torch's number of device allocations; 0 on a CPU."""
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0)) if GPU else 0


def result_rows(asked: Sequence[Asked], length: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of `results.Timing` and of `results.Count`: the charged share and the ratio to ours at that share."""
    medians = {one.name: timing.summarise_ms(one.ms).ms for one in asked}
    timed, counted = [], []
    for one in asked:
        time, base = timing.summarise_ms(one.ms), medians.get(f"ours, {round(one.charged, 2):.0%}")
        about = {"method": one.name, "setting": {"length": length}, "ratio": getattr(one.method, "ratio", None)}
        numbers = {"charged_share": one.charged} | ({} if base is None else {"over_ours": time.ms / base})
        numbers |= {"device_allocations": one.allocations} if GPU else {}
        timed.append({**about, **time.to_json(), "workload": f"length {length}", "candidate": one.name})
        counted += [{**about, "measure": name, "value": value} for name, value in numbers.items()]
    return timed, counted


def text(tokenizer: Any, count: int) -> torch.Tensor:
    """Return `count` tokens of distinct lab passages."""
    passages = dict.fromkeys(ctx.text for sample in data.load("lab", count // 100, passages=20) for ctx in sample.ctxs)
    return torch.tensor(tokenizer("\n".join(passages), verbose=False)["input_ids"][:count])


def main() -> None:
    """Measure and write one round at a time."""
    defaults = {"methods": list(METHODS), "charged": 0.15, "runs": 20, "seconds": 400.0, "tiny": False}
    given = options(__doc__, **defaults)
    end = perf_counter() + given.seconds
    if GPU:
        torch.set_num_threads(1)  # as in a serving engine's worker: idle threads slow the one that launches kernels
    scene = scene_of(given.tiny)
    soft_tokens.grow(scene.model, soft_tokens.sample_embeddings(scene.model, SOFT))
    question, store = min(QUESTION, scene.unit), MemoryStore(UNLIMITED)
    TOKENIZERS[scene.model] = AutoTokenizer.from_pretrained(folder("lab-full"))
    ids = text(TOKENIZERS[scene.model], CONTEXT * scene.unit + question) % scene.model.config.vocab_size
    prompt = prompt_of(ids, min(BLOCK, scene.unit // 2), question)
    if GPU:  # pages for all kinds of blocks at once, and for recomputed tokens
        pages_of(scene.model).of(scene.model, (KINDS + 2) * len(prompt) // PAGE)
    asked, refused = methods(scene, prompt, given.methods, given.charged, store)
    refused |= measured(scene, asked, prompt, store)
    for one in asked:
        one.ms.clear()  # the first run compiles
        one.allocations = 0
    origin = {"model": "tiny" if given.tiny else "Llama-3.1-8B"}
    for _ in range(given.runs):
        refused |= measured(scene, asked, prompt, store)
        timed, counted = result_rows(asked, len(prompt))
        with writer(given, f"methods@{'gpu' if GPU else 'cpu'}", scene.model.device, **origin) as out:
            out.timings(timed)
            out.counts(counted)
        if perf_counter() > end:
            break
    for row in (*sorted(timed, key=lambda row: row["ms"]), *counted):
        print({name: value for name, value in row.items() if name not in ("setting", "workload", "candidate")})
    for name, why in refused.items():
        print(f"not measured: {name}: {why}")


if __name__ == "__main__":
    main()
