"""Whole models compared with stock transformers, on the same GPU in one run: Llama-3.1-8B's shape, random weights.

question    time to the first token of a 50-token question over 4K to 64K tokens of cached, shifted blocks
recompute   27K tokens of cached blocks, 15% of them selected and recomputed, and the question: `recompute`
prefill     2K to 128K tokens at once: the tiles that BFLA keeps, compared with all of them
chunked     16K to 128K tokens in chunks of 1,024 rows under each method: `chunked`
decode      one token of each of eight answers over a shared context of 32K tokens
encode      4K to 32K tokens as blocks of 512 that attend to themselves, compared with a batch of prompts and one prompt
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from workbench.core.errors import BadInput
from workbench.engine.forward import all_rows, prefill_many
from workbench.experiments.bench.kernels.workloads import CountingSparse, KernelWorkload
from workbench.experiments.bench.models import chunked, over_pages, whole_model
from workbench.experiments.bench.models.over_pages import VARIANTS
from workbench.experiments.bench.models.recompute import QUESTION, recompute
from workbench.experiments.bench.models.whole_model import (
    BLOCK,
    GPU,
    Candidate,
    Comparison,
    Sample,
    Scene,
    build,
    clock,
    measure_workload,
    token_of,
)
from workbench.experiments.bench.run import gpu_facts
from workbench.experiments.bench.timing import measure_roof
from workbench.methods.sparse.bfla import Bfla

DENSITY = 0.15  # of the causal tiles that BFLA keeps
DEEP = 8  # number of layers on which the density is set
CONTEXTS = (32, 4, 8, 16, 64)  # context of the question, in units; variants of ours are timed on the first
ENCODED = (32, 4, 8, 16)  # units encoded as blocks
PROMPTS = (128, 2, 4, 8, 16, 32, 64)  # units prefilled at once


def question(scene: Scene) -> Iterator[Comparison]:
    """Yield the question over each context; with `scene.tuning`, variants in place of the baselines."""
    for length in CONTEXTS:
        context, count = length * scene.unit, min(QUESTION, scene.unit)
        pairs = count * context + count * (count + 1) / 2
        shape = {"context": context, "question": count, "block": min(BLOCK, scene.unit)}
        name = f"50-token question over {length}K cached"
        sample = partial(over_pages.question, scene, context, count)
        candidates = [Candidate("ours", sample, 30)]
        if scene.tuning:
            candidates += [Candidate(f"ours, {name}", partial(sample, **how), 30) for name, how in VARIANTS.items()]
        else:
            if length == CONTEXTS[0]:
                candidates += [
                    Candidate("ours, layers not fused", partial(sample, layers="model"), 30),
                    Candidate("ours, layers compiled", partial(sample, layers="compiled"), 30),
                    Candidate("ours, nor captured", partial(sample, graphs=False), 10),
                ]
            candidates += [
                Candidate("transformers, ready prefix cache", partial(whole_model.prefix, scene, context, count), 15),
                Candidate(
                    "transformers, full prefill", partial(whole_model.prefill_whole, scene, context + count, ""), 4
                ),
            ]
        yield KernelWorkload(name, shape, scene.flops(count, pairs), scene.bytes(context)), candidates


def at_density(scene: Scene, tokens: int, method: Bfla) -> Bfla:
    """Return `method` with the mass at which it keeps at least DENSITY of the causal tiles, over a few layers.

    The search bisects the exponent in mass = 1 - 10^-exponent: in an untrained model, most of the mass is in few blocks
    and the rest is spread over very many, so only masses very near 1 change the density.
    """
    model = scene.model
    counted = CountingSparse(method)
    layers = min(DEEP, model.config.num_hidden_layers)
    low, high = 0.0, 7.0
    for _ in range(7):
        exponent = (low + high) / 2
        counted.over = method.with_threshold(1 - 10**-exponent)
        prefill_many(model, [all_rows(model, scene.ids(tokens), sparse=counted, num_layers=layers)])
        low, high = (low, exponent) if counted.density > DENSITY else (exponent, high)
    return method.with_threshold(1 - 10**-high)


def prefill_at_once(scene: Scene, tokens: int, sparse: Bfla | None, candidate: Candidate) -> Sample:
    """Prefill a whole prompt at once, as the engine does. The density is measured in a separate, untimed pass."""
    method = at_density(scene, tokens, sparse) if sparse else None

    def first_token(choice: Any) -> int:
        (output,) = prefill_many(scene.model, [all_rows(scene.model, scene.ids(tokens), sparse=choice)], 1)
        return token_of(output, candidate)

    if method:
        counted = CountingSparse(method)
        first_token(counted)
        candidate.facts |= {"mass": method.mass, "density": counted.density}
    return lambda: clock(partial(first_token, method))


def whole_prompt(scene: Scene) -> Iterator[Comparison]:
    """Prefill 128K tokens at once, then shorter prompts, some so short that BFLA is slower than dense attention."""
    for length in PROMPTS:
        tokens, block = length * scene.unit, min(256, scene.unit)
        shape = {"tokens": tokens, "block": block, "tile": block // 2, "flat": block // 4}
        method = Bfla(block=block, tile=block // 2, flat=block // 4)
        flops = scene.flops(tokens, DENSITY * tokens * (tokens + 1) / 2)
        longest = length == PROMPTS[0]
        runs = max(2, min(20, 64 // length))  # two runs give minimum and maximum
        candidates = [Candidate("ours", partial(prefill_at_once, scene, tokens, method), max(3, runs), warmed=longest)]
        candidates.append(Candidate("ours, dense", partial(prefill_at_once, scene, tokens, None), runs))
        for name in whole_model.BACKENDS:
            if name in scene.against:
                whole = partial(whole_model.prefill_whole, scene, tokens, name)
                candidates.append(Candidate(f"transformers, dense ({name})", whole, runs, warmed=longest))
        name = f"{length}K at once, BFLA at 15%" if longest else f"{length}K tokens at once, BFLA at 15% or its least"
        yield KernelWorkload(name, shape, flops, scene.bytes(tokens)), candidates


def decode(scene: Scene) -> Iterator[Comparison]:
    """Yield one token of each of eight answers; with `scene.tuning`, variants in place of the baselines."""
    context, batch = 32 * scene.unit, 8
    shape = {"context": context, "batch": batch, "shared": True}
    flops = scene.flops(batch, float(batch * context), batch)
    sample = partial(over_pages.answers, scene, context, batch)
    candidates = [Candidate("ours", sample, 30)]
    if scene.tuning:
        variants = {name: how for name, how in VARIANTS.items() if "unit" not in how and "run" not in how}
        candidates += [Candidate(f"ours, {name}", partial(sample, **how), 30) for name, how in variants.items()]
    else:
        candidates += [
            Candidate("ours, layers not fused", partial(sample, layers="model"), 4),
            Candidate("ours, layers compiled", partial(sample, layers="compiled"), 4),
            Candidate("transformers", partial(whole_model.answers, scene, context, batch), 5),
        ]
    yield KernelWorkload("a token of each of 8 over 32K", shape, flops, scene.bytes(context)), candidates


def encode(scene: Scene) -> Iterator[Comparison]:
    """Encode contexts as blocks that attend to themselves, compared with a prefill of the whole."""
    for length in ENCODED:
        tokens, size = length * scene.unit, min(BLOCK, scene.unit)
        shape = {"tokens": tokens, "block": size, "blocks": tokens // size}
        flops = scene.flops(tokens, tokens * (size + 1) / 2)
        encoding = partial(over_pages.encoding, scene, tokens)
        candidates = [Candidate("ours", encoding, max(3, min(30, 1024 // length)))]
        if length == ENCODED[0]:
            candidates.append(Candidate("ours, layers not fused", partial(encoding, packed=False), 5))
        for name in ("", *(name for name in whole_model.BACKENDS if name in scene.against)):
            whole = partial(whole_model.prefill_whole, scene, tokens, name)
            label = "transformers, full prefill" + (f" ({name})" if name else "")
            candidates.append(Candidate(label, whole, max(3, min(30, 320 // length))))
            blocks = partial(whole_model.encode_batched, scene, tokens, size, name)
            label = f"transformers, a batch of {tokens // size} prompts" + (f" ({name})" if name else "")
            candidates.append(Candidate(label, blocks, max(3, min(30, 320 // length))))
        yield (
            KernelWorkload(f"{length}K encoded as {tokens // size} blocks", shape, flops, scene.bytes(tokens)),
            candidates,
        )


OPERATIONS = {"question": question, "recompute": recompute, "prefill": whole_prompt, "decode": decode, "encode": encode}


def run(name: str, against: list[str], only: str = "", tuning: bool = False, runs: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the report entry by entry, in the form of `bench.run.run`, with at least `runs` runs of each candidate.

    Raises BadInput without a GPU.
    """
    if not GPU:
        raise BadInput("whole models are timed on a GPU, and there is none here")
    ceiling = measure_roof()
    yield gpu_facts() | {"kernel": name, "copy_tbps": ceiling.copy / 1e12, "product_tflops": ceiling.product / 1e12}
    scene = Scene(build(), against, tuning=tuning, runs=runs)
    if name == "chunked":
        yield from chunked.entries(scene, ceiling, only)
        return
    for work, candidates in OPERATIONS[name](scene):
        if only in work.name:
            yield measure_workload(work, candidates, ceiling, runs)
