"""Peak memory of one training step against sequence length: BlockMask of FlexAttention beside a dense bool mask.

    python data/benchmarks/tune_memory.py --shape lab-full llama-1b     writes counts

One sample of passages of 128 tokens in block mode; AdamW, bf16 autocast on a GPU. There `peak_gib` is what torch
allocated; on a CPU, where blocks are trained part by part, it is the resident memory of a process of its own, libraries
included, and the BlockMask is only made, for its size.
"""

import json
import resource
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from script import options, writer
from torch.nn.attention.flex_attention import BlockMask
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from workbench import models
from workbench.core.utils.runner import pool
from workbench.models.spec import attach
from workbench.training.tuning.attention import NAME, TILE, MaskBlock, forward, masks_of
from workbench.training.tuning.text.examples import Example, QuestionAnswer
from workbench.training.tuning.text.packing import PackedExamples, pack

MEASURED = ("mask_mib", "peak_gib", "seconds")
SHAPES = {  # random weights; the first has the sizes of Llama-3.2-1B
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 32_768,
    },
}


def model_of(shape: str, device: str) -> PreTrainedModel:
    """Load a shipped model, or make one of SHAPES with random weights; fp32."""
    if shape not in SHAPES:
        return models.load(shape, device, "float32").model
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPES[shape]), dtype=torch.float32)


def sample_of(tokens: int, vocabulary: int) -> PackedExamples:
    """One sample of exactly `tokens` rows in block mode: passages, a question of 16 tokens, an answer of 16."""
    ids = torch.randint(3, vocabulary, (tokens + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    context = [tuple(ids[at : min(at + 128, tokens - 31)]) for at in range(0, tokens - 31, 128)]
    example = Example("one", tuple(context), (QuestionAnswer(tuple(ids[-32:-16]), tuple(ids[-16:])),))
    return pack([example], ("block",), multiple=TILE)


def mask_bytes(mask: BlockMask | tuple[MaskBlock, ...]) -> int:
    fields = [part.mask for part in mask] if isinstance(mask, tuple) else vars(mask).values()
    return sum(x.numel() * x.element_size() for x in fields if torch.is_tensor(x))


def measure(
    model: PreTrainedModel, windows: list[int | None], batch: PackedExamples, how: str, device: str
) -> dict[str, Any]:
    """Measure peak and time of the second step; the first one compiles and makes the optimizer's state."""
    optimizer, on_gpu = torch.optim.AdamW(model.parameters(), lr=1e-4), device != "cpu"
    for _ in range(2):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        masks = masks_of(batch, windows, how)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=on_gpu):
            logits = forward(model, batch, masks)
        F.cross_entropy(logits.float(), batch.targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    size = sum(mask_bytes(mask) for mask in masks.values())
    peak = torch.cuda.max_memory_allocated() if on_gpu else resident()
    return {"mask_mib": size / 2**20, "peak_gib": peak / 2**30, "seconds": seconds}


def resident() -> int:
    """Bytes that this process held at its most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def row_of(shape: str, tokens: int, mask: str, device: str) -> dict[str, Any]:
    """One row of the file; on a CPU nothing but the size of a mask of "tiles", which trains on GPUs only."""
    model = model_of(shape, device)
    windows = attach(model).windows
    model.set_attn_implementation(NAME)
    model.train()
    batch = sample_of(tokens, model.config.vocab_size).to(model.device)
    row = {"shape": shape, "tokens": len(batch.tokens), "mask": mask}
    if device == "cpu" and mask == "tiles":
        sizes = [mask_bytes(mask_) for mask_ in masks_of(batch, windows, mask).values()]
        return row | {"mask_mib": sum(sizes) / 2**20, "peak_gib": None, "seconds": None}
    try:
        return row | measure(model, windows, batch, mask, device)
    except torch.OutOfMemoryError:
        return row  # no numbers: out of memory


def rows_of(shape: str, lengths: list[int], device: str) -> list[dict[str, Any]]:
    """A process for each, so that none is measured in what another left."""
    rows = []
    for tokens in lengths:
        for mask in ("tiles", "dense") if device != "cpu" else ("tiles", "parts", "dense"):
            with pool(1) as fresh:
                rows.append(fresh.submit(row_of, shape, tokens, mask, device).result())
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args = options(__doc__, shape=["lab-full"], tokens=[1024, 2048, 4096, 8192], device=device)
    with writer(args, f"tuning-memory@{args.device}", args.device) as out:
        for shape in args.shape:
            for row in rows_of(shape, args.tokens, args.device):
                about = {"model": shape, "setting": {"mask": row["mask"], "tokens": row["tokens"]}}
                out.counts({**about, "measure": name, "value": row.get(name)} for name in MEASURED)


if __name__ == "__main__":
    main()
