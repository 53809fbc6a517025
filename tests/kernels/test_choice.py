"""Choosing on a GPU: the same tiles as the methods' torch code, and lists of them made in place."""

from functools import partial

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not available on this platform")

from tests.random_models import model_of
from workbench.core.kv import Derived
from workbench.core.plan import Site
from workbench.core.tiling import tile_selection
from workbench.core.tiling.tile_selection import TileRule
from workbench.core.tiling.tiles import Tiles
from workbench.engine.attention_backends import choice as backends
from workbench.kernels import choose_bfla, choose_flash_prefill, choose_quoka, choose_xattention, tile_attention
from workbench.kernels._pages.lists import make_lists, page_table, pages, tile_lists, union_of
from workbench.kernels._select import best, copies, gate, unite, votes
from workbench.kernels._select import keep as _choose_keep
from workbench.kernels._select import vectors as _choose_vectors
from workbench.kernels._shared.attention import Config
from workbench.methods import seer_gate, sparse
from workbench.methods.sparse import compact, quoka
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.seer_attention import SeerAttention
from workbench.methods.sparse.xattention import Xattention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH = 155
ROWS = {
    "whole": torch.arange(LENGTH),
    "chunk": torch.arange(96, 144),
    "unaligned chunk": torch.arange(75, 130),
    "scattered": torch.arange(LENGTH)[torch.rand(LENGTH, generator=torch.Generator().manual_seed(0)) < 0.3],
    "one row": torch.tensor([147]),
    "first row": torch.tensor([0]),
}
METHODS = {
    "bfla": "bfla(block=32, tile=16, flat=8, mass=0.7, local=1, stride=5, random=0.1, seed=9)",
    "bfla, everything": "bfla(block=32, tile=32, flat=32, mass=1, local=0, sink=0, stride=0)",
    "flash_prefill": "flash_prefill(block=16, alpha=0.8, sink=1, window=2, tail=1)",
    "xattention": "xattention(block=16, stride=4, threshold=0.6)",
    "compact": "compact(over=flash_prefill(block=16, alpha=0.8, sink=0, window=1, tail=0))",
}


def states(rows, heads=(4, 2), width=64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    queries, keys = (2 * torch.randn(n, LENGTH, width, generator=draw) for n in heads)
    return queries[:, rows].to(DEVICE), keys[:, : int(rows[-1]) + 1].to(DEVICE)


@pytest.fixture
def launched(monkeypatch):
    """Methods as on a GPU; which kernels they launched."""
    found = []
    for module in (sparse, compact):
        monkeypatch.setattr(module, "on_gpu", lambda x: True)

    def counted(name, launch, *args, **more):
        found.append(name)
        return launch(*args, **more)

    for kernel in (choose_bfla, choose_flash_prefill, choose_xattention):
        name = kernel.__name__.rsplit(".", 1)[-1]
        monkeypatch.setattr(backends.kernel(name), "launch", partial(counted, name, kernel.launch))
    return found


def off_gpu(method, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        for module in (sparse, compact):
            patch.setattr(module, "on_gpu", lambda x: False)
        return method(*arguments)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("spec", METHODS.values(), ids=METHODS)
def test_a_kernel_chooses_what_the_method_chooses_in_torch(spec, rows, launched):
    method, (q, k) = sparse.from_spec(spec), states(rows, heads=(2, 1))
    expected = off_gpu(method, q, k, rows.to(DEVICE), Site(0, LENGTH))
    assert not launched
    found = method(q, k, rows.to(DEVICE), Site(0, LENGTH))
    assert len(launched) == 1
    assert torch.equal(found.kept, expected.kept) and found.shared == expected.shared
    if len(rows) == LENGTH and "compact" not in spec and "mass=1," not in spec:
        assert found.density < 0.5, "it drops something"


@pytest.mark.parametrize(("heads", "width"), [((6, 2), 64), ((3, 1), 80), ((2, 2), 16)])
@pytest.mark.parametrize("name", ["bfla", "flash_prefill", "xattention"])
def test_any_group_of_heads_and_any_width(name, heads, width, launched):
    rows = ROWS["unaligned chunk"]
    method, (q, k) = sparse.from_spec(METHODS[name]), states(rows, heads, width, seed=1)
    expected = off_gpu(method, q, k, rows.to(DEVICE))
    assert torch.equal(method(q, k, rows.to(DEVICE)).kept, expected.kept) and launched


def test_every_head_may_have_a_threshold_of_its_own(launched):
    rows, method = ROWS["unaligned chunk"], Xattention(16, 4, "a file", profiled=((0.9,) * 4, (0.2, 0.5, 0.8, 1.0)))
    q, k = states(rows)
    found = method(q, k, rows.to(DEVICE), Site(1, LENGTH))
    assert torch.equal(found.kept, off_gpu(method, q, k, rows.to(DEVICE), Site(1, LENGTH)).kept) and launched
    shares = found.kept.float().mean((1, 2))
    assert (shares[1:] > shares[:-1]).all()


@pytest.mark.parametrize(
    ("spec", "width"),
    [
        ("bfla(block=48, tile=16, flat=16)", 64),  # three vectors in a block
        ("bfla(block=96, tile=32, flat=96)", 64),  # three tiles in a block
        ("flash_prefill(block=512)", 64),
        ("xattention(block=48, stride=4)", 64),
        ("xattention(block=16, stride=4)", 24),
    ],
)
def test_what_a_kernel_does_not_take_is_chosen_in_torch(spec, width, launched):
    rows = ROWS["chunk"]
    method, (q, k) = sparse.from_spec(spec), states(rows, width=width)
    assert torch.equal(method(q, k, rows.to(DEVICE)).kept, off_gpu(method, q, k, rows.to(DEVICE)).kept)
    assert not launched


@pytest.mark.parametrize("kernel", [choose_bfla, choose_flash_prefill, choose_xattention])
def test_queries_may_lie_token_by_token_and_keys_in_a_longer_cache(kernel):
    q, keys, *rest = list(kernel.cases(device=DEVICE))[-1]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, keys)]
    wide = torch.full((*keys.shape[:2], keys.shape[2] + 40, keys.shape[3]), torch.nan, device=DEVICE)
    wide[:, :, : keys.shape[2]] = turned[1]
    assert torch.equal(kernel.launch(turned[0], wide[:, :, : keys.shape[2]], *rest), kernel.reference(q, keys, *rest))


@pytest.mark.parametrize(
    "config", [Config(16, 64, 4, 1), Config(64, 16, 4, 1, True), Config(128, 128, 4, 1, True)], ids=str
)
@pytest.mark.parametrize("kernel", [choose_bfla, choose_xattention])
def test_any_launch_shape_chooses_the_same(kernel, config):
    case = list(kernel.cases(device=DEVICE))[-1]
    assert torch.equal(kernel.launch(*case, config=config), kernel.reference(*case))


def test_heads_that_are_weighed_in_turn_are_weighed_alike(monkeypatch):
    case = list(choose_xattention.cases(device=DEVICE))[-1]
    monkeypatch.setattr(choose_xattention, "BYTES", 1)
    assert torch.equal(choose_xattention.launch(*case), choose_xattention.reference(*case))


@pytest.mark.parametrize("kernel", [choose_bfla, choose_flash_prefill, choose_xattention])
def test_scores_are_those_of_torch_in_fp32(kernel):
    """On a GPU in bf16 and with whole tiles of the product, descriptors, and a vector that is cut short."""
    length, dtype = (8229, torch.bfloat16) if DEVICE == "cuda" else (149, torch.float32)
    block, part = length // 128 * 4 or 16, length // 512 or 4  # 256 and 16, or 16 and 4
    count, draw = length // 2, torch.Generator().manual_seed(0)
    q, keys = (torch.randn(1, n, t, 64, generator=draw).to(DEVICE, dtype) for n, t in ((2, count), (1, length)))
    rows = torch.arange(length - count, length, device=DEVICE)
    if kernel is choose_bfla:
        made = choose_bfla._scores(choose_bfla.configure(dtype), q, keys, rows[None], block, part)
        expected = tile_selection.bfla(q[0], keys[0], block, part)
    elif kernel is choose_xattention:
        made = choose_xattention._weights(choose_xattention.configure(dtype), q, keys, rows[None], block, part)
        expected = tile_selection.xattention(q[0], keys[0], rows, block, part)
    else:
        block, config = min(block, 128), choose_flash_prefill.configure(dtype, min(block, 128))
        made = choose_flash_prefill._logits(config, q, keys.shape, rows[None], choose_flash_prefill.pooled(keys, block))
        expected = tile_selection.flash_prefill(q[0], keys[0], rows, block)
    assert made[0].shape == expected.shape
    for i in range(-(-count // block)):  # what a row sees; with flash_prefill, in whole
        last = int(rows[min((i + 1) * block, count) - 1])
        j = (last + 1) // block if kernel is choose_flash_prefill else last // block + 1
        torch.testing.assert_close(made[0, :, i, :j], expected[:, i, :j], atol=2e-4, rtol=1e-4)


def test_means_are_kept_from_chunk_to_chunk():
    q, keys, _, rule = list(choose_flash_prefill.cases(device=DEVICE))[1]
    original, keys, means, at = keys, keys.clone(), None, 0
    for end in (70, 75, 90 + 75):
        rows = torch.arange(end - min(90, end), end, device=DEVICE).repeat(2, 1)
        means = choose_flash_prefill.pooled(keys[:, :, :end], rule.block, means, at, capacity=333)
        chunk = (q[:, :, : rows.shape[1]], keys[:, :, :end], rows, rule)
        found = choose_flash_prefill.launch(*chunk, means=means)
        keys[:, :, : end // rule.block * rule.block] = torch.nan  # whole blocks are not read again
        at = end
        assert torch.equal(found, choose_flash_prefill.reference(chunk[0], original[:, :, :end], rows, rule))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("mass", [0.1, 0.5, 2 / 3, 0.95, 1.0])
def test_the_fewest_blocks_that_hold_the_mass_ties_and_zeros_included(mass, first):
    """Whole numbers as weights: sums are exact, and there are many ties."""
    draw = torch.Generator().manual_seed(int(100 * mass))
    for blocks, group in ((1, 1), (3, 2), (17, 3), (130, 1)):
        weights = torch.randint(0, 4, (1, group, 2, blocks), generator=draw).float().to(DEVICE)
        rows = torch.arange(blocks * 4 - min(8, blocks * 4), blocks * 4, device=DEVICE)[None]
        weights = weights[:, :, : -(-rows.shape[1] // 4)].contiguous()
        rule = TileRule(4, 4, mass, first=first)
        found = _choose_keep.carry_out(weights, rows, blocks * 4, rule, group, logits=False)
        assert torch.equal(found[0], tile_selection.tiles_kept_by(weights[0], rows[0], blocks * 4, rule, group))


@pytest.mark.parametrize("apart", [0, 1, 17, 5000])
def test_weights_that_differ_in_their_last_bits_are_told_apart(apart):
    """0: all are equal, and the first ones are kept."""
    bits = torch.tensor([0.01]).view(torch.int32) + apart * torch.randperm(
        40, generator=torch.Generator().manual_seed(1)
    )
    weights = bits.to(torch.int32).view(torch.float32)[None, None, None].to(DEVICE)
    rows, rule = torch.arange(156, 160, device=DEVICE)[None], TileRule(4, 4, 0.37)
    found = _choose_keep.carry_out(weights, rows, 160, rule, 1, logits=False)
    assert torch.equal(found[0], tile_selection.tiles_kept_by(weights[0], rows[0], 160, rule))
    assert 14 <= int(found.sum()) <= 16


@pytest.mark.parametrize("view", ["whole", "every second head", "cut"])
def test_lists_made_on_the_GPU_hold_what_is_kept(view):
    kept = torch.rand(2, 4, 5, 130, generator=torch.Generator().manual_seed(0)).to(DEVICE) < 0.4
    kept = {"whole": kept, "every second head": kept[:, ::2], "cut": kept[:, :, 1:3, :77]}[view]
    indptr, indices = make_lists(kept, first=1000, share=3)
    assert indptr.dtype == indices.dtype == torch.int32 and len(indptr) == kept[..., 0].numel() + 1
    for n, one in enumerate(kept.flatten(0, 2)):
        expected = one.nonzero()[:, 0] + n // 3 * 1000
        assert indices[indptr[n] : indptr[n + 1]].tolist() == expected.tolist()


def test_lists_are_those_of_attention():
    kept = torch.rand(1, 3, 4, 20, generator=torch.Generator().manual_seed(1)).to(DEVICE) < 0.3
    ours, theirs = make_lists(kept), tile_attention.lists(kept)
    count = int(theirs[0][-1])
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1][:count], theirs[1][:count])


def test_a_choice_that_heads_share_is_one_list_for_them(launched):
    rows = ROWS["unaligned chunk"]
    q, k = states(rows)
    choice = sparse.from_spec(METHODS["bfla"])(q, k, rows.to(DEVICE))
    assert choice.shared == 2
    tiles, values = -(-len(rows) // 16), torch.randn_like(k)
    shared, every = choice.lists(len(rows), k.shape[1]), Tiles(choice.kept, 16).lists(len(rows), k.shape[1])
    assert len(shared[0]) == 2 * tiles + 1 and len(every[0]) == 4 * tiles + 1
    asked = (q[None], k[None], values[None], rows[None].to(DEVICE))
    torch.testing.assert_close(
        tile_attention.launch(*asked, *shared, 16, 16), tile_attention.launch(*asked, *every, 16, 16)
    )


def test_pages_of_a_batch_are_those_request_by_request():
    kept = torch.rand(3, 8, 2, 9, generator=torch.Generator().manual_seed(2)).to(DEVICE) < 0.3
    one = page_table(union_of(kept, 2), 2, 2, 12, 16)
    many = pages([Tiles(choice, 16) for choice in kept], 2, 2, 12)
    assert torch.equal(one.indptr, many.indptr) and (one.size, one.heads) == (many.size, many.heads)
    count = int(one.indptr[-1])
    assert torch.equal(one.indices[:count], many.indices[:count])


@pytest.mark.parametrize("widths", [(9, 9, 9), (9, 4, 7), (5, 12, 1)])
def test_requests_of_different_lengths_have_pages_of_their_own_columns_only(widths):
    """The choice of a shorter request is a view into a wider one, whose further columns are all kept."""
    kept = torch.rand(3, 8, 2, 12, generator=torch.Generator().manual_seed(2)).to(DEVICE) < 0.3
    for choice, width in zip(kept, widths, strict=True):
        choice[..., width:] = True
    table = pages([Tiles(choice[..., :width], 16) for choice, width in zip(kept, widths, strict=True)], 2, 2, 12)
    assert len(table.indptr) == 3 * 4 + 1
    for n in range(3 * 4):
        b, group = divmod(n, 4)
        tiles = kept[b, 2 * group : 2 * group + 2, :, : widths[b]].any(1).any(0).nonzero()[:, 0]
        listed = table.indices[table.indptr[n] : table.indptr[n + 1]]
        assert listed.tolist() == (tiles + (b * 2 + group // 2) * 12).tolist()


def test_the_union_of_a_chunk_keeps_the_chunk(launched):
    rows = ROWS["unaligned chunk"]
    q, k = states(rows)
    inner = sparse.from_spec(METHODS["flash_prefill"])
    union = Compact(inner)(q, k, rows.to(DEVICE))
    choice = inner(q, k, rows.to(DEVICE))
    table = pages([choice], 2, 2, 13)
    for group in range(2):
        listed = table.indices[table.indptr[group] : table.indptr[group + 1]] - group * 13
        assert listed.tolist() == union.kept[2 * group, -1].nonzero()[:, 0].tolist()
        assert set(range(75 // 16, 129 // 16 + 1)) <= set(listed.tolist())


@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU to wait for")
@pytest.mark.parametrize("spec", METHODS.values(), ids=METHODS)
def test_nothing_waits_for_the_GPU(spec):
    method, rows = sparse.from_spec(spec), ROWS["chunk"].to(DEVICE)
    q, k = states(ROWS["chunk"])
    for mode in ("default", "error"):  # first it compiles
        torch.cuda.set_sync_debug_mode(mode)
        try:
            choice = method(q, k, rows, Site(0, LENGTH))
            tile_lists(choice, len(rows), k.shape[1])
            pages([choice], 2, 2, 16)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_vector_that_is_cut_short_is_never_read_through_a_descriptor():
    """A descriptor sees whole vectors only; what lies behind the last of them belongs to the next head."""
    x = torch.zeros(1, 2, 30, 16, device=DEVICE)
    made = _choose_vectors.descriptor(x, 8, 16, 16)
    assert list(made.shape) == [1, 2, 8, 3, 16] and list(made.strides) == [16, 480, 16, 128, 1]
    config = Config(16, 16, descriptors=True)
    assert _choose_vectors.described(config, 8, x) and not _choose_vectors.described(config, 31, x)
    assert not _choose_vectors.described(Config(16, 16), 8, x)


def test_means_kept_beside_the_keys_choose_what_means_made_anew_choose(launched):
    """Chunks, keys that are written again, a longer prompt than was foreseen."""
    method, kept, taken = sparse.from_spec(METHODS["flash_prefill"]), Derived(), []
    q, k = states(torch.arange(LENGTH), heads=(2, 1))
    pooled = choose_flash_prefill.pooled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            choose_flash_prefill, "pooled", lambda k, b, m, f, **o: (taken.append(f), pooled(k, b, m, f, **o))[1]
        )
        for first, end, foreseen in ((0, 40, 80), (40, 80, 80), (20, 70, 80), (70, LENGTH, LENGTH)):
            k[:, first:end] += 1
            kept.mark_stale(first)
            rows = torch.arange(first, end, device=DEVICE)
            found = method(q[:, first:end], k[:, :end], rows, Site(0, foreseen, kept))
            anew = off_gpu(method, q[:, first:end], k[:, :end], rows, Site(0, foreseen))
            assert torch.equal(found.kept, anew.kept)
    assert taken == [0, 40, 20, 0], "only what is new is read, until the room is too small"


# --- The best of many numbers, and QUOKA's tokens as lists
def test_the_best_are_those_of_a_stable_sort():
    for scores, count in best.cases(DEVICE):
        for found, wanted in zip(best.launch(scores, count), best.reference(scores, count), strict=True):
            assert torch.equal(found, wanted)
    assert best.launch(torch.zeros(2, 5, device=DEVICE), 0)[1].sum() == 0


def test_the_tokens_that_quoka_lists_are_those_of_its_mask(monkeypatch):
    monkeypatch.setattr(quoka, "on_gpu", lambda keys: True)
    torch.manual_seed(0)
    queries, keys = (torch.randn(heads, tokens, 64, device=DEVICE) for heads, tokens in ((4, 32), (2, 160)))
    rows = torch.arange(128, 160, device=DEVICE)
    found = quoka.Quoka(keep=0.3, block=32)(queries, keys, rows, Site(last=True))
    monkeypatch.setattr(choose_quoka, "takes", lambda *_: False)
    wanted = quoka.Quoka(keep=0.3, block=32)(queries, keys, rows, Site(last=True))
    assert torch.equal(found.listed, wanted.listed) and torch.equal(found.columns, wanted.columns)
    assert found.listed.shape == (2, round(0.3 * 128) + 32)


@pytest.mark.parametrize("needed", [1, 700, 1999])
def test_the_best_are_found_where_the_device_alone_knows_how_many(needed):
    scores = torch.randn(3, 4500, generator=torch.Generator().manual_seed(needed)).to(DEVICE)
    places, taken = best.launch(scores, 2000, torch.tensor([needed], device=DEVICE))
    wanted, mask = best.reference(scores, needed)
    assert torch.equal(places[:, :needed], wanted) and torch.equal(taken, mask)


def test_votes_are_those_of_a_stable_sort():
    for arguments in votes.cases(DEVICE):
        torch.testing.assert_close(votes.launch(*arguments), votes.reference(*arguments), atol=1e-5, rtol=1e-5)


def test_the_union_of_a_chunk_is_that_of_torch():
    for arguments in unite.cases(DEVICE):
        assert torch.equal(unite.launch(*arguments), unite.reference(*arguments))


def test_listed_tokens_lie_side_by_side():
    for arguments in copies.cases(DEVICE):
        for found, wanted in zip(copies.launch(*arguments), copies.reference(*arguments), strict=True):
            assert torch.equal(found, wanted)


def test_a_gate_pools_multiplies_and_keeps_as_torch_does():
    for x, at, pairing, weight in gate.cases(DEVICE):
        block, freq = 16, 0.9 ** torch.arange(x.shape[-1] // 2, device=DEVICE)
        table = 0.5 ** torch.arange(weight.shape[-1] // 2, device=DEVICE)
        found = gate.projected(gate.pooled(x, at, freq, pairing, block), weight, at, table, block)
        wanted = gate.reference(x, at, freq, pairing, weight, table, block)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        logits = torch.randn(4, len(found[0]), -(-int(at[-1] + 1) // block), device=DEVICE) * 3
        for threshold, tail in ((0.05, 200), (0.9, 0), (0.0, 1 << 20)):
            arguments = logits, at, block, 0.5, threshold, tail
            assert torch.equal(gate.kept(*arguments), gate.reference_kept(*arguments))


REPLAYED = (
    "flash_prefill(block=16, alpha=0.8, tail=1)",
    "xattention(block=16, stride=4, threshold=0.6)",
    "bfla(block=16, tile=16, flat=8, mass=0.7, local=1)",
    "quoka(keep=0.3, block=16)",
    "compact(over=flash_prefill(block=16, alpha=0.9))",
    "window(block=16)",
)


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_a_method_that_is_replayed_chooses_what_it_chooses_of_a_chunk(launched, monkeypatch):
    """Keys behind the chunk are not numbers: nothing of them is read."""
    monkeypatch.setattr(seer_gate, "on_gpu", lambda x: True)
    monkeypatch.setattr(quoka, "on_gpu", lambda x: True)
    model = model_of(head_dim=64, num_attention_heads=2, num_key_value_heads=1)
    trained = seer_gate.new_gate(model, 16).requires_grad_(False).to(DEVICE)
    methods = [sparse.from_spec(spec) for spec in REPLAYED]
    q, k = states(torch.arange(LENGTH), heads=(2, 1))
    for method in (*methods, SeerAttention(threshold=0.2, block=16, trained=trained)):
        whole, parts = Derived(), Derived()
        unwritten = torch.full_like(k, torch.nan)
        for first in range(0, 144, 48):
            rows, end = torch.arange(first, first + 48, device=DEVICE), first + 48
            unwritten[:, first:end] = k[:, first:end]
            given = q[:, first:end], k[:, :end], rows, Site(0, LENGTH, parts, True)
            wanted = method(*given)
            found = method(q[:, first:end], unwritten, rows, Site(0, LENGTH, whole, False, True))
            if wanted.listed is not None:
                count = wanted.listed.shape[1]
                assert torch.equal(found.listed[:, :count].long(), wanted.listed)
                assert bool((found.listed[:, count:] >= LENGTH).all())
                continue
            blocks = wanted.kept.shape[2]
            assert torch.equal(found.kept[..., :blocks], wanted.kept) and not found.kept[..., blocks:].any()
