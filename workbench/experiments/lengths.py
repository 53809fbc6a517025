"""Cost to the first token against the length of the context: measured on a model, computed for any shape."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, cycle

from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.data import layouts
from workbench.data.layouts import Layout
from workbench.data.sample import Sample
from workbench.methods.generation import first_token
from workbench.metrics import cost
from workbench.metrics.latency import measure
from workbench.metrics.published_numbers import LLAMA_3_8B, QUESTION, TABLE_3
from workbench.store import MemoryStore, fetch

MODES = ("full", "block")


def prompt_of_length(
    length: int, samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, layout: Layout, question: int = QUESTION
) -> Prompt:
    """A prompt of exactly `length` tokens: passages of `samples` as blocks, the last one cut, and `question` tokens
    behind them."""
    if length <= question:
        raise BadInput(f"length {length}: a prompt needs more than its {question} tokens of question")
    pieces = list(chain.from_iterable(layout.pieces(sample)[1 if layout.system else 0 : -1] for sample in samples))
    asked = layout.question.format(question=" ".join(sample.question for sample in samples))
    *passages, last = layouts.prompts([[*pieces, asked]], tokenizer, bos=layout.bos)[0].blocks
    blocks: list[Block] = []
    left = length - question
    for block in cycle(passages):
        blocks.append(Block(block.tokens[:left]))
        left -= len(blocks[-1])
        if not left:
            break
    tokens = (last.tokens * (question // len(last) + 1))[:question]
    return Prompt((*blocks, Block(tokens)))


def measured(model: PreTrainedModel, prompts: Sequence[Prompt], repeats: int) -> list[dict]:
    """Records {length, mode, p5, p50, p95 (seconds), n}: token ids in, first token out; in block mode all blocks lie
    in a store in memory, and are taken from it and re-encoded within the time."""
    records = []
    for prompt in prompts:
        store = MemoryStore(1 << 62)
        fetch(model, prompt.context, store)
        for mode in MODES:
            job = partial(first_token, model, prompt, mode, store)
            time = measure([job] * repeats, model.device, warm_up=1)
            records.append(
                {"length": len(prompt), "mode": mode, "p5": time.p5, "p50": time.p50, "p95": time.p95, "n": time.n}
            )
    return records


def computed(shape: cost.Shape, lengths: Sequence[int], itemsize: int, question: int = QUESTION) -> list[dict]:
    """Records {length, mode, flops, linear, attention, bytes, kv_loaded, convention}: `cost.first_token` for both
    modes.
    `convention` is how the paper counts FLOPs (2 · parameters · computed tokens)."""
    return list(_computed(shape, lengths, itemsize, question))


def _computed(shape: cost.Shape, lengths: Sequence[int], itemsize: int, question: int) -> Iterator[dict]:
    for length in lengths:
        for mode in MODES:
            rows = range(0 if mode == "full" else max(0, length - question), length)
            found = cost.first_token(shape, rows, length, itemsize)
            yield {
                "length": length,
                "mode": mode,
                "flops": found.flops,
                "linear": found.linear,
                "attention": found.attention,
                "bytes": found.bytes,
                "kv_loaded": found.kv_loaded,
                "convention": cost.convention(shape.convention, len(rows)),
            }


def published() -> list[dict]:
    """The paper's Table 3 as records {length, mode, ttft_ms, flops}."""
    return [
        {"length": length, "mode": mode, "ttft_ms": TABLE_3["ttft_ms"][mode][i], "flops": TABLE_3["flops"][mode][i]}
        for mode in MODES
        for i, length in enumerate(TABLE_3["length"])
    ]


def computed_as_published() -> list[dict]:
    """Compute `computed` for the shape, number type and lengths of the paper's Table 3."""
    return computed(cost.shape(LlamaConfig(**LLAMA_3_8B)), TABLE_3["length"], 2, QUESTION)
