"""What preparing a chunk takes: seconds a chunk behind the system prompt, and behind ten similar chunks.

    python data/benchmarks/prepare_cost.py                         Llama-3.1-8B's shape, random weights, on a GPU
    python data/benchmarks/prepare_cost.py --tiny --chunks 20      a tiny shape, for a try on a CPU

FusionRAG (section 3.1) prints 0.218 seconds a chunk, Qwen2.5-7B on HotpotQA in batches of
ten. Chunks are random tokens of a passage's length; every run prepares all chunks of a knowledge base in batches of
ten, with a store of its own; which chunks are alike is known before. A chunk is cached behind the system prompt once
before it is computed behind others.
"""

import time
from functools import partial
from statistics import median

import torch
from script import TINY, options, writer
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.data.retrieval_corpus import Corpus
from workbench.experiments.bench.models import whole_model
from workbench.methods import prepare
from workbench.store import MemoryStore

TOKENS, SYSTEM, BATCH, RUNS = 130, 30, 10, 3  # tokens of a chunk and of the system prompt
SPECS = {"behind the system prompt": "after_system", "behind 10 similar chunks": "with_neighbours(n=10, search=exact)"}


def chunks_of(model: PreTrainedModel, count: int) -> tuple[Block, list[Block]]:
    """Draw a system prompt and chunks."""
    draw = torch.Generator().manual_seed(0)
    drawn = [torch.randint(model.config.vocab_size, (n,), generator=draw) for n in (SYSTEM, *[TOKENS] * count)]
    system, *chunks = (Block(tuple(ids.tolist())) for ids in drawn)
    return system, chunks


def seconds(model: PreTrainedModel, spec: str, system: Block, chunks: list[Block]) -> float:
    """Prepare all chunks once, in batches, and return the seconds a chunk."""
    corpus = Corpus(tuple(chunks), tuple(" ".join(f"w{token}" for token in chunk.tokens) for chunk in chunks))
    policy = prepare.named(spec, corpus=corpus)
    store, question = MemoryStore(1 << 36), Block((1,))
    begin = time.perf_counter()
    for at in range(0, len(chunks), BATCH):
        policy(model, [Prompt((system, *chunks[at : at + BATCH], question))], store)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / len(chunks)


def main() -> None:
    """Measure and write."""
    args = options(__doc__, chunks=200, tiny=False)
    model = whole_model.build(whole_model.LLAMA | TINY if args.tiny else whole_model.LLAMA)
    system, chunks = chunks_of(model, args.chunks)
    about = {"model": "tiny" if args.tiny else "Llama-3.1-8B", "setting": {"chunks": args.chunks, "batch": BATCH}}
    with writer(args, "preprocessing@lab", model.device, **about) as out:
        for name, spec in SPECS.items():
            run = partial(seconds, model, spec, system, chunks)
            run()  # warms up
            taken = [run() * 1e3 for _ in range(RUNS)]
            row = {"workload": f"a chunk of {TOKENS} tokens", "candidate": name, "prepare": spec, "runs": RUNS}
            out.timings([{**row, "ms": median(taken), "least": min(taken), "most": max(taken), "samples": taken}])
            print(f"{name}: {median(taken):.4f} ms a chunk", flush=True)


if __name__ == "__main__":
    main()
