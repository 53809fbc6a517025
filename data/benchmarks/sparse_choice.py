"""Memory and time of the choice alone, to 131,072 tokens: it must grow with the tiles, not with the pairs of tokens.

    python data/benchmarks/sparse_choice.py --device cuda       writes counts of experiment "choices"

Each method chooses for one layer of `--heads` query heads over half as many KV heads of width 128, random states, for a
whole prompt or its last `--chunk` rows. Every choice runs in a process of its own; bytes are the peak above the states
themselves: of the process (resident, CPU) or of the allocator (CUDA). `largest`: elements of the largest tensor made.
"""

import resource
from time import perf_counter
from typing import Any

import torch
from script import options, writer
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.core.plan import Site
from workbench.core.utils.runner import pool
from workbench.methods import sparse

WIDTH = 128
SPECS = (
    "bfla flash_prefill xattention vertical_slash quoka window strided random dense oracle "
    "compact(over=flash_prefill(alpha=0.06))"
).split()


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest storage that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return out


def measure(spec: str, length: int, chunk: int, heads: int, device: str) -> dict[str, Any]:
    """Choose for the last `chunk` rows of `length` tokens; seconds are of a second choice, without the bookkeeping."""
    torch.manual_seed(0)
    rows = torch.arange(length - chunk, length, device=device)
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    queries = torch.randn(heads, chunk, WIDTH, device=device, dtype=dtype)
    keys = torch.randn(max(1, heads // 2), length, WIDTH, device=device, dtype=dtype)
    method = sparse.named(spec)
    before = _peak(device)
    with Largest() as largest:
        tiles = method(queries, keys, rows, Site(0, length))
    peak = _peak(device) - before
    began = perf_counter()
    method(queries, keys, rows, Site(0, length))
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = perf_counter() - began
    share = largest.elements / (heads * chunk * length)
    return {"seconds": seconds, "bytes": float(peak), "largest_of_pairs": share, "density": tiles.density}


def _peak(device: str) -> int:
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def main() -> None:
    args = options(__doc__, device="cpu", heads=2, lengths=[8192, 32768, 131072], chunk=0, methods=SPECS)
    with writer(args, f"choices@{args.device}", args.device, n=1) as out:
        for spec in args.methods:
            for length in args.lengths:
                with pool(1) as fresh:
                    job = fresh.submit(measure, spec, length, args.chunk or length, args.heads, args.device)
                    found = job.result()
                about = {"sparse": spec, "at": float(length), "chunk": args.chunk, "setting": {"heads": args.heads}}
                out.counts({**about, "measure": name, "value": value} for name, value in found.items())
                print(f"{spec:40} {length:>7} tokens  ", {k: f"{v:.4g}" for k, v in found.items()}, flush=True)


if __name__ == "__main__":
    main()
