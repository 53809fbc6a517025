"""Products of few rows on a GPU: every launch that may be chosen gives torch's numbers, overlapped or not."""

import pytest
import torch
from torch.nn.functional import linear

from workbench.engine.layers import gemm_dispatch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels for a GPU")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("rows", "width", "channels"), [(1, 1304, 512), (50, 256, 1024), (64, 200, 328)])
@pytest.mark.parametrize("gated", [False, True])
def test_every_way_gives_torchs_numbers(monkeypatch, overlap, rows, width, channels, gated):
    monkeypatch.setattr(gemm_dispatch.kernel("_triton"), "OVERLAP", overlap)
    draw = torch.Generator("cuda").manual_seed(rows)
    x, weight = (
        torch.randn(n, channels, generator=draw, device="cuda", dtype=torch.bfloat16) / channels**0.25
        for n in (rows, width)
    )
    wanted = linear(x.float(), weight.float())
    if gated:
        gate, up = wanted.chunk(2, -1)
        wanted = torch.nn.functional.silu(gate) * up
    hopper = gemm_dispatch.kernel("_linear_hopper").fits(x, weight)
    for way in gemm_dispatch.ways(width, channels, not gated, rows, hopper, gated):
        found = gemm_dispatch._launched(x, weight, way).float().sum(0)
        torch.testing.assert_close(found, wanted, atol=0.03, rtol=0.03, msg=lambda text, way=way: f"{way}: {text}")
