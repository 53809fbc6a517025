"""BFLA against its paper: equations 3 to 20, 24 and 30, by a slow reference that shares no code with it."""

from math import exp, inf, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.by_tile import HEADS, KV_HEADS, LENGTH, ROWS, WIDTH, blocks, covering, every_rows, expected, states
from workbench.core.tiling import tile_selection
from workbench.methods.sparse.bfla import Bfla
from workbench.methods.sparse.oracle import OracleTiles


def pooled(q, k, rows, b, g):
    """Equations 3-9 with loops: probabilities [Hq][Lq][Lkv]."""
    ours, theirs = blocks(rows, k.shape[1], b)

    def vectors(x, places):
        x = torch.cat([x[places], x.new_zeros(b - len(places), WIDTH)])
        return [x[at : at + g].flatten() for at in range(0, b, g)]

    found = []
    for head in range(HEADS):
        found.append([])
        for mine in ours:
            scores = []
            for keys in theirs:
                us, vs = vectors(q[head], [at for at, _ in mine]), vectors(k[head // 2], list(keys))
                seen = keys[0] <= mine[-1][1]
                scores.append(max(float(u @ v) for u in us for v in vs) / sqrt(WIDTH) if seen else -inf)
            top = max(scores)
            weights = [exp(score - top) for score in scores]
            found[-1].append([weight / sum(weights) for weight in weights])
    return found


@every_rows
@pytest.mark.parametrize("flat", [1, 4, 16])
def test_bfla_keeps_the_blocks_that_hold_the_mass_and_rescues_tiles(rows, flat):
    method = Bfla(block=16, tile=8, flat=flat, mass=0.9, local=1, sink=1, stride=7, random=0.1, seed=3)
    q, k = states(rows, scale=0.5)
    shares = pooled(q, k, rows, 16, flat)

    def wanted(head, i, j):
        group = [h for h in range(HEADS) if h // 2 == head // 2]
        first = int(rows[i * 8]) // 8
        near = any(0 <= row // 8 - j <= 1 for row in rows[i * 8 : i * 8 + 8].tolist())
        drawn = ((first + 1) * 1103515245 + (j + 1) * 12345 + (head // 2 + 1) * 2654435761 + 3) & 0x7FFFFFFF
        return (
            any(j // 2 in covering(shares[h][i // 2], 0.9) for h in group)
            or near
            or j == 0
            or (131 * first + 17 * j + 3) % 7 == 0
            or drawn % 10**6 < 0.1 * 10**6
        )

    ours = method(q, k, rows)
    assert torch.equal(ours.kept, expected(rows, k.shape[1], 8, wanted))
    torch.testing.assert_close(method.shares(q, k, rows), torch.tensor(shares), atol=1e-5, rtol=1e-4)
    causes = method.causes(q, k, rows)
    assert torch.equal(torch.stack(list(causes.values())).any(0), ours.kept)
    for name in ("stride", "random"):
        assert not (causes[name] & (causes["mass"] | causes["local"] | causes["sink"])).any(), "dropped tiles only"


def coarse(rows, shares, length, method):
    """The released mask builder with loops: [H][Lq][Lkv] blocks that are kept, and their causal limit."""
    b, context = method.block, int(rows[0])
    band = max(1, -(-method.local * method.tile // b))
    kept = []
    for head in range(KV_HEADS):
        kept.append([])
        for i in range(-(-len(rows) // b)):
            end = min(context + (i + 1) * b - 1, length - 1)
            causal = [j * b <= end for j in range(-(-length // b))]
            line = set().union(*(covering(shares[h][i], method.mass) for h in (2 * head, 2 * head + 1)))
            at = (context + i * b) // b
            line |= {j for j in range(len(causal)) if at - band <= j <= at} | {0}
            for j in range(len(causal)):
                drawn = ((i + 1) * 1103515245 + (j + 1) * 12345 + (head + 1) * 2654435761 + method.seed) & 0x7FFFFFFF
                if (131 * i + 17 * j + method.seed) % method.stride == 0 or drawn % 10**6 < method.random * 10**6:
                    line.add(j)
            kept[-1].append({j for j in line if causal[j]})
    return kept


@pytest.mark.parametrize("rows", ROWS[:3], ids=["whole", "chunk", "unaligned"])
@pytest.mark.parametrize("local", [1, 3])
def test_bfla_as_released_rescues_blocks_and_counts_from_the_chunk(rows, local):
    """Its masks are of coarse blocks, then cut into tiles; a chunk that begins inside a block may miss its diagonal."""
    options = {"block": 16, "tile": 8, "flat": 4, "mass": 0.5, "local": local, "stride": 5, "random": 0.1, "seed": 3}
    method = Bfla(**options, rescue="blocks", anchor="chunk")
    q, k = states(rows, scale=0.5)
    kept, (ours, theirs) = coarse(rows, pooled(q, k, rows, 16, 4), k.shape[1], method), blocks(rows, k.shape[1], 8)
    want = torch.zeros(HEADS, len(ours), len(theirs), dtype=torch.bool)
    for head in range(HEADS):
        for i, mine in enumerate(ours):
            for j, keys in enumerate(theirs):
                want[head, i, j] = keys[0] <= mine[-1][1] and j // 2 in kept[head // 2][i // 2]
    found = method(q, k, rows)
    assert torch.equal(found.kept, want) and found.kept[:, :, 0].all()
    assert torch.equal(torch.stack(list(method.causes(q, k, rows).values())).any(0), want)
    assert not torch.equal(found.kept, Bfla(**options)(q, k, rows).kept)


@every_rows
def test_coarse_rescues_alone_keep_every_row_its_own_tile_whatever_the_chunks(rows):
    method = Bfla(block=16, tile=8, flat=4, mass=0.01, local=2, stride=3, random=0.2, rescue="blocks")
    q, k = states(rows)
    kept = method(q, k, rows).kept
    for at, row in enumerate(rows.tolist()):
        assert kept[:, at // 8, row // 8].all() and (row < 16 or kept[:, at // 8, (row // 16 - 1) * 2].all())
    q, k = states(ROWS[0])
    whole = method(q, k, ROWS[0]).kept
    part = ROWS[0][32:64]
    assert torch.equal(method(q[:, part], k[:, :64], part).kept[..., :8], whole[:, 4:8, :8])


@every_rows
def test_tiles_rescued_from_the_first_row_of_a_chunk(rows):
    """The released chunk behaviour at the paper's tiles: where the chunk begins with a tile, only the hashes differ."""
    options = {"block": 16, "tile": 8, "flat": 4, "mass": 0.3, "local": 1, "stride": 0}
    q, k = states(rows)
    ours, paper = Bfla(**options, anchor="chunk")(q, k, rows).kept, Bfla(**options)(q, k, rows).kept
    assert bool((ours <= paper).all()) and ours[:, :, 0].all()
    assert torch.equal(ours, paper) or int(rows[0]) % 8 or len(rows) == 15


@every_rows
@pytest.mark.parametrize("mass", [0.3, 0.95, 0.999])
def test_bfla_keeps_at_least_its_mass_and_not_one_block_more(rows, mass):
    method = Bfla(block=16, tile=8, flat=4, mass=mass)
    q, k = states(rows)
    shares = method.shares(q, k, rows).double()
    kept = tile_selection.smallest(shares, mass)
    held = (shares * kept).sum(-1)
    least = shares.masked_fill(~kept, inf).amin(-1)
    assert (held >= mass - 1e-9).all() and (held - least < mass).all()
    grouped = method.blocks(q, k, rows).repeat_interleave(2, 0)
    assert (grouped >= kept).all() and ((shares * grouped).sum(-1) >= mass - 1e-9).all(), "the group only adds"


def test_bfla_rescues_the_same_tiles_whatever_the_chunks():
    method = Bfla(block=16, tile=8, flat=4, mass=0.01, local=0, sink=0, stride=3, random=0.2)
    q, k = states(ROWS[0])
    whole = method.causes(q, k, ROWS[0])
    for part in ROWS[0].split(32):
        ours = method.causes(q[:, part], k[:, : part[-1] + 1], part)
        for name in ("stride", "random"):
            rows = slice(int(part[0]) // 8, int(part[0]) // 8 + ours[name].shape[1])
            assert torch.equal(ours[name], whole[name][:, rows, : ours[name].shape[2]])


@settings(max_examples=25)
@given(seed=st.integers(0, 999), mass=st.floats(0.05, 1), scale=st.floats(0.2, 3))
def test_bfla_output_error_is_within_equation_30(seed, mass, scale):
    """‖O - Os‖ ≤ (‖D⁻¹ Ds - I‖ ‖Z‖ + ‖Z - Zs‖) ‖Ds⁻¹ exp(QKᵀ/√C)‖ ‖V‖, Frobenius norms, for the mask a method chose."""
    rows = ROWS[0]
    q, k = states(rows, seed, scale)
    v = torch.randn(KV_HEADS, LENGTH, WIDTH).double()
    chosen = Bfla(block=16, tile=8, flat=4, mass=mass, local=0, stride=0)(q, k, rows).visible(LENGTH, LENGTH)
    z = torch.ones(LENGTH, LENGTH).tril().double()
    for head in range(HEADS):
        weights = (q[head].double() @ k[head // 2].double().T / sqrt(WIDTH)).exp()
        zs = z * chosen[head]
        d, ds = (weights * z).sum(1), (weights * zs).sum(1)
        dense, ours = (weights * z / d[:, None]) @ v[head // 2], (weights * zs / ds[:, None]) @ v[head // 2]
        bound = (
            ((ds / d - 1).norm() * z.norm() + (z - zs).norm()) * (weights / ds[:, None]).norm() * v[head // 2].norm()
        )
        assert (dense - ours).norm() <= bound * (1 + 1e-9)


def test_the_cost_of_the_choice_is_equation_24():
    """Hq Nq Nkv C / g multiply-adds: 1/g of the attention that it decides about."""
    method = Bfla(block=256, flat=64)
    assert method.operations(32, 1024, 131072, 128) * 64 == 32 * 1024 * 131072 * 128
    assert OracleTiles().operations(32, 1024, 131072, 128) == 64 * method.operations(32, 1024, 131072, 128)


TABLE_5 = [  # b, g, γ, local, ρ, η; η 0 stands for none
    (256, 64, 0.95, 8, 0.0, 0),
    (256, 64, 0.999, 8, 0.0, 0),
    (256, 64, 0.95, 8, 0.0, 16),
    (256, 64, 0.95, 16, 0.0, 16),
    (256, 64, 0.98, 8, 0.0, 16),
    (256, 64, 0.99, 8, 0.0, 16),
    (128, 64, 0.99, 8, 0.1, 16),
    (256, 64, 0.99, 8, 0.1, 16),
    (256, 256, 0.99, 8, 0.1, 16),
    (512, 64, 0.99, 8, 0.1, 16),
    (512, 128, 0.99, 8, 0.1, 16),
    (1024, 64, 0.99, 8, 0.1, 16),
]


def density(row, rows, q, k):
    block, flat, mass, local, random, stride = row
    method = Bfla(block=block, tile=64, flat=flat, mass=mass, local=local, random=random, stride=stride)
    kept = method(q, k, rows).kept
    return float(kept[:, torch.ones(kept.shape[1:]).tril().bool()].float().mean())


def test_every_row_of_table_5_runs_and_they_are_ordered_as_published():
    """More mass, a wider band and each rescue add tiles; η = 16 adds a sixteenth of the dropped (8.75% → 14.40%)."""
    torch.manual_seed(0)
    rows, q, k = torch.arange(4096), 0.8 * torch.randn(2, 4096, 16), 0.8 * torch.randn(1, 4096, 16)
    found = [density(row, rows, q, k) for row in TABLE_5]
    assert found[0] <= found[1] and found[0] < found[2] < found[3] and found[2] <= found[4] <= found[5] < found[7]
    assert found[2] == pytest.approx(found[0] + (1 - found[0]) / 16, abs=0.01)
    assert found[9] > found[10], "smaller vectors, higher scores"
