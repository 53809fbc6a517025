"""Cost of preprocessing passages with neighbours (FusionRAG, section 3.1), Llama-3.1-8B's shape on a GPU.

    python data/benchmarks/preparation.py                  1,000 passages of 512 tokens, ten neighbours each
    python data/benchmarks/preparation.py --tiny --passages 24 --together 3         a tiny shape, for a try on a CPU

writes timings and counts of experiment "preparation" into a results folder. First every passage is encoded once after
the system prompt: each is a neighbour of others. Then passages are computed over their neighbours' cached blocks,
`--together` per call, all calls queued as for a corpus; the host waits for the GPU at the end. A sample is the GPU time
between the ends of two calls; results are dropped, as 1,000 passages take 67 GB. Passages belong to topics, so that
they share neighbours as in a corpus.

rate            operations of the passages' own tokens (GEMMs and attention), 10^12 per second
of_product      rate over that of an 8192³ GEMM on the same GPU
of_own_product  rate over that of the layers' own GEMMs with as many rows
encoded_once    blocks encoded per passage, before and during: 1 if no neighbour is encoded twice
host_share      share of the time until the host has queued all work
seconds         of all passages in one run: encoding neighbours, and computing over them
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from script import options, writer

from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.data.retrieval_corpus import Corpus
from workbench.engine.layers.fused_layers import FusedLayers, packed_layers
from workbench.experiments.bench import timing
from workbench.experiments.bench.models.chunked import wait
from workbench.experiments.bench.models.whole_model import GPU, Scene, clock, scene_of
from workbench.experiments.bench.timing import measure_roof
from workbench.methods.prepare.with_neighbours import WithNeighbours
from workbench.store import UNLIMITED, MemoryStore, fetch

SYSTEM, QUESTION, TOPIC = 32, 8, 25  # tokens of the system prompt and of a question, passages of a topic


class FrontStore(MemoryStore):
    """Keeps encoded blocks, but no passage that was conditioned on others."""

    def __init__(self, together: int):
        super().__init__(UNLIMITED)
        self.encoded, self._start = 0, together

    def put(self, key: str, kv: KV) -> None:
        """Store a block that follows the system prompt directly."""
        if kv.start <= self._start:
            self.encoded += 1
            super().put(key, kv)


def corpus_of(scene: Scene, count: int, size: int) -> Corpus:
    """Draw passages of `size` tokens; a topic word in their texts makes them neighbours."""
    runs = scene.ids(count * size).split(size)
    blocks = tuple(Block(tuple(run.tolist()), f"passage {i}") for i, run in enumerate(runs))
    texts = tuple(f"topic{i // TOPIC} " * 8 + f"passage{i} word{i * 7 % TOPIC}" for i in range(count))
    return Corpus(blocks, texts)


def prompts_of(scene: Scene, corpus: Corpus, together: int) -> list[Prompt]:
    """Return prompts whose passages are preprocessed in one call each."""
    system, question = (Block(tuple(scene.ids(n).tolist())) for n in (SYSTEM, QUESTION))
    starts = range(0, len(corpus), together)
    return [Prompt((system, *corpus.blocks[at : at + together], question)) for at in starts]


def encoded(scene: Scene, corpus: Corpus, system: Block, store: FrontStore) -> None:
    """Encode every passage after the system prompt."""
    fetch(scene.model, [system], store)
    for at in range(0, len(corpus), 64):
        some = corpus.blocks[at : at + 64]
        fetch(scene.model, some, store, [(system,)] * len(some))


def own_products(scene: Scene, rows: int) -> float:
    """Measure the operations per second of the layers' GEMMs with `rows` rows, one after another."""
    found = packed_layers(scene.model) if GPU else FusedLayers(scene.model, False)
    assert found is not None
    weights = [w for layer in found.layers for w, _ in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    given = {w.shape[1]: torch.randn(rows, w.shape[1], dtype=w.dtype, device=w.device) for w in weights}

    def work() -> None:
        for weight in weights:
            found.products(given[weight.shape[1]], weight)

    times = [clock(work) for _ in range(6)]
    return 2.0 * rows * sum(w.numel() for w in weights) / min(times) * 1e3


def timed(works: Sequence[Callable[[], Any]]) -> tuple[list[float], float]:
    """Return the device's milliseconds for each of several queued calls, and the host's share of the total."""
    wait()
    begin = perf_counter()
    marks = [mark()]
    for work in works:
        work()
        marks.append(mark())
    handed = perf_counter() - begin
    wait()
    return [between(*pair) for pair in pairwise(marks)], handed / (perf_counter() - begin)


def mark() -> Any:
    """Return a timestamp after all queued work: a CUDA event, or on a CPU the time."""
    return torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True)) if GPU else perf_counter()


def between(begin: Any, end: Any) -> float:
    """Return the milliseconds between two timestamps."""
    return float(begin.elapsed_time(end)) if GPU else (end - begin) * 1e3


def operations(scene: Scene, passages: int, size: int, neighbours: int) -> float:
    """Count the operations of passages that attend to the system prompt, their neighbours and themselves."""
    before = SYSTEM + neighbours * size
    return scene.flops(passages * size, float(passages * (size * before + size * (size + 1) / 2)), 0)


def measured(given: Any, scene: Scene) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Preprocess all passages, and return rows of timings and counts."""
    size = 16 if given.tiny else 512
    corpus = corpus_of(scene, given.passages, size)
    prompts, store = prompts_of(scene, corpus, given.together), FrontStore(SYSTEM)
    method = WithNeighbours(corpus, given.neighbours, search="exact")
    method(scene.model, prompts[:1], FrontStore(SYSTEM))  # compiles kernels
    (once,), _ = timed([partial(encoded, scene, corpus, prompts[0].blocks[0], store)])
    both, share = timed([partial(method, scene.model, [prompt], store) for prompt in prompts])
    rows = given.together * size
    flops = operations(scene, len(corpus), size, given.neighbours)
    rate, own = flops / sum(both) * 1e3, own_products(scene, rows)
    shape = {"passages": len(corpus), "tokens": size, "neighbours": given.neighbours, "together": given.together}
    about = {"setting": shape}
    counts = {
        "rate": rate / 1e12,
        "of_own_product": rate / own,
        "encoded_once": (store.encoded - 1) / len(corpus),
        "host_share": share,
    }
    counts |= {"of_product": rate / measure_roof().product} if GPU else {}
    name = f"{given.together} passages of {size} behind {given.neighbours} neighbours"
    runs = timing.summarise_ms(both).to_json()
    timings = [{**about, "workload": name, "candidate": "ours", **runs, "flops": flops / len(prompts)}]
    rows_of = [{**about, "measure": measure, "value": value} for measure, value in counts.items()]
    seconds = {"all": (once + sum(both)) / 1e3, "neighbours": once / 1e3, "passages over them": sum(both) / 1e3}
    return timings, rows_of + [{**about, "measure": "seconds", "kind": k, "value": v} for k, v in seconds.items()]


def main() -> None:
    """Measure and write."""
    given = options(__doc__, passages=1000, neighbours=10, together=10, tiny=False)
    scene = scene_of(given.tiny)
    timings, counts = measured(given, scene)
    with writer(given, "preparation@gpu", scene.model.device, model="Llama-3.1-8B") as tables:
        tables.timings(timings)
        tables.counts(counts)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
