"""What every sparse method is held to, whatever it chooses by; a method is tested by being in the folder."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench.core.errors import BadInput
from workbench.core.masks import window
from workbench.core.plan import Plan, Site
from workbench.core.tiling import tile_selection
from workbench.core.tiling import tiles as tiling
from workbench.core.tiling.tiles import Tiles
from workbench.engine.assembly import empty
from workbench.engine.forward import PrefillRequest, prefill, prefill_many
from workbench.methods import registry, seer_gate, sparse
from workbench.methods.sparse.bfla import Bfla
from workbench.methods.sparse.seer_attention import SeerAttention

MODEL = model_of("llama")  # 4 query heads, 2 KV heads of 16 channels, 3 layers
PROMPT = prompt_of(9, 40, 33, 25, 12)
LENGTH = len(PROMPT)
SPECS = {  # small, and choosy enough to drop something
    "bfla": "bfla(block=16, tile=4, flat=4, mass=0.6, local=1, stride=0)",
    "by_head": "by_head(kinds=sdcs, over=strided(block=8, stride=6, local=0), local=1)",
    "compact": "compact(over=strided(block=8, stride=6, local=0))",
    "dense": "dense(block=8)",
    "flash_prefill": "flash_prefill(block=8, alpha=0.5, sink=1, window=2, tail=1)",
    "flex_prefill": "flex_prefill(block=8, gamma=0.4, tau=0.3)",
    "oracle": "oracle(block=8, mass=0.5)",
    "quoka": "quoka(block=8, keep=0.3)",
    "random": "random(block=8, share=0.3, sink=0, local=0)",
    "seer_attention": "seer_attention(block=8, top=2, tail=1)",
    "strided": "strided(block=8, stride=3, local=0)",
    "vertical_slash": "vertical_slash(vertical=6, slash=9, last=5, front=2, near=3, block=8)",
    "window": "window(block=8, local=1)",
    "xattention": "xattention(block=8, stride=4, threshold=0.5)",
}
ALL = {  # settings with which a method drops nothing
    "bfla": "bfla(block=16, tile=4, flat=8, mass=1)",
    "by_head": "by_head(kinds=dc, over=oracle(block=8, mass=1))",
    "compact": "compact(over=oracle(block=8, mass=1), heads=0)",
    "dense": "dense(block=8)",
    "flash_prefill": "flash_prefill(block=8, alpha=0)",
    "flex_prefill": "flex_prefill(block=8, gamma=1)",
    "oracle": "oracle(block=8, mass=1.0)",
    "quoka": "quoka(keep=1, block=8)",
    "random": "random(block=8, share=1)",
    "seer_attention": "seer_attention(block=8, threshold=0)",
    "strided": "strided(block=8, stride=1)",
    "vertical_slash": "vertical_slash(slash=1000, block=8)",
    "window": "window(block=8, local=1000)",
    "xattention": "xattention(block=8, stride=4, threshold=1)",
}
ROWS = {
    "whole": torch.arange(LENGTH),
    "chunk": torch.arange(40, 72),
    "unaligned chunk": torch.arange(37, 70),
    "scattered": torch.tensor([0, 3, 4, 5, 17, 18, 40, 41, 42, 43, 66, 90, 91, 92, 93, 118]),
    "one row": torch.tensor([77]),
    "first row": torch.tensor([0]),
}


def method(spec: str) -> sparse.Sparse:
    """A method ready for MODEL; an untrained gate stands for a trained one."""
    made = sparse.from_spec(spec)
    if isinstance(made, SeerAttention):
        torch.manual_seed(5)
        return SeerAttention(**{**vars(made), "trained": seer_gate.new_gate(MODEL, made.block, 16)})
    return made


def states(rows: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries at `rows` and keys up to the last of them; cut from one draw, so that parts of a prompt agree."""
    torch.manual_seed(seed)
    queries, keys = 2 * torch.randn(4, LENGTH, 16), torch.randn(2, LENGTH, 16)
    return queries[:, rows], keys[:, : int(rows[-1]) + 1]


def test_every_method_of_the_folder_is_held_to_this():
    assert sparse.names() == sorted(SPECS) == sorted(ALL)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("name", SPECS)
def test_every_row_keeps_its_own_tile_and_none_that_it_cannot_see(name, rows):
    queries, keys = states(rows)
    choose = method(SPECS[name])
    tiles = choose(queries, keys, rows, Site(1, LENGTH))
    size = tiles.size
    assert tiles.kept.shape == (4, -(-len(rows) // size), -(-keys.shape[1] // size)) and size == choose.size
    for at, row in enumerate(rows.tolist()):
        assert tiles.kept[:, at // size, row // size].all(), "the diagonal is kept for any rows"
    for i, last in enumerate(rows.split(size)):
        assert not tiles.kept[:, i, int(last[-1]) // size + 1 :].any()
    assert tiles.visible(len(rows), keys.shape[1])[:, range(len(rows)), rows].all()


@pytest.mark.parametrize("name", SPECS)
def test_a_method_drops_something(name):
    rows = ROWS["chunk"]
    queries, keys = states(rows)
    seen = method(SPECS[name])(queries, keys, rows, Site(0, LENGTH)).visible(len(rows), keys.shape[1])
    seeable = torch.arange(keys.shape[1]) <= rows[:, None]
    assert (bool((seen & seeable).sum() < 4 * seeable.sum())) == (name != "dense")


@pytest.mark.parametrize("rows", ["whole", "unaligned chunk", "scattered"])
@pytest.mark.parametrize("name", ALL)
def test_a_method_that_keeps_everything_is_dense_attention(name, rows):
    kv = empty(MODEL, LENGTH)
    prefill(MODEL, PROMPT.tokens, Plan(torch.arange(LENGTH)), kv)
    dense, ours = (
        prefill(MODEL, PROMPT.tokens, Plan(ROWS[rows], sparse=tiles), kv.clone()).logits
        for tiles in (None, method(ALL[name]))
    )
    torch.testing.assert_close(ours, dense, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "name", sorted(set(SPECS) - {"quoka", "vertical_slash", "flex_prefill", "compact"})
)  # by the rows together
def test_chunks_that_end_with_a_block_choose_what_one_pass_chooses(name):
    rows, choose = torch.arange(LENGTH), method(SPECS[name])
    queries, keys = states(rows)
    whole = choose(queries, keys, rows, Site(2, LENGTH)).kept
    for part in rows.split(48):
        tiles = choose(queries[:, part], keys[:, : part[-1] + 1], part, Site(2, LENGTH))
        wide = torch.zeros(4, tiles.kept.shape[1], whole.shape[2], dtype=torch.bool)
        wide[..., : tiles.kept.shape[2]] = tiles.kept
        assert torch.equal(wide, whole[:, part[0] // tiles.size :][:, : tiles.kept.shape[1]])


@pytest.mark.parametrize("elements", [1, 3000])
@pytest.mark.parametrize("name", sorted(set(SPECS) - {"dense", "window", "strided", "random"}))
def test_working_in_parts_changes_no_choice(name, elements, monkeypatch):
    rows = ROWS["unaligned chunk"]
    queries, keys = states(rows)
    whole = method(SPECS[name])(queries, keys, rows)
    monkeypatch.setattr(tiling, "ELEMENTS", elements)
    parts = method(SPECS[name])(queries, keys, rows)
    assert torch.equal(whole.kept, parts.kept)
    assert whole.columns is None or torch.equal(whole.columns, parts.columns)


@pytest.mark.parametrize("name", SPECS)
def test_bf16_states_are_weighed_in_fp32(name):
    rows = ROWS["chunk"]
    queries, keys = (x.bfloat16() for x in states(rows))
    ours, exact = (method(SPECS[name])(q, k, rows) for q, k in ((queries, keys), (queries.float(), keys.float())))
    assert torch.equal(ours.kept, exact.kept)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", SPECS)
def test_a_gpu_chooses_as_the_cpu(name):
    rows = ROWS["unaligned chunk"]
    queries, keys = states(rows)
    choose = method(SPECS[name])
    if isinstance(choose, SeerAttention):
        choose = replace(choose, trained=deepcopy(choose.trained).cuda())
    ours = choose(queries.cuda(), keys.cuda(), rows.cuda(), Site(1, LENGTH)).visible(len(rows), keys.shape[1]).cpu()
    theirs = method(SPECS[name])(queries, keys, rows, Site(1, LENGTH)).visible(len(rows), keys.shape[1])
    assert (ours == theirs).float().mean() > 0.995, "but for equal scores"


def test_layers_with_a_window_are_left_alone_and_the_scale_of_the_model_is_used():
    asked: dict[int, torch.Tensor] = {}

    def notes(queries, keys, rows, site):
        asked[site.layer] = queries
        assert site.length == LENGTH
        return Tiles(torch.ones(4, 1, 1, dtype=torch.bool), 512)

    model = model_of("gemma3", query_pre_attn_scalar=64)  # head width 16; logits are scaled by 1/8, not by 1/4
    windows = [layer for layer, size in enumerate(seer_gate.attach(model).windows) if size]
    kv = empty(model, LENGTH)
    step = prefill(model, PROMPT.tokens, Plan(torch.arange(LENGTH), sparse=notes, return_queries=(0, 1, 2)), kv)
    assert windows and not set(asked) & set(windows) and asked
    for layer, queries in asked.items():
        torch.testing.assert_close(queries, step.queries[layer] / 2)


def test_other_rules_hold_inside_the_tiles():
    rule = window(5)
    rows = torch.arange(LENGTH)
    plain = prefill(MODEL, PROMPT.tokens, Plan(rows, sees=rule), empty(MODEL, LENGTH)).logits
    tiled = Plan(rows, sees=rule, sparse=sparse.from_spec("window(block=8, sink=0, local=1)"))
    torch.testing.assert_close(prefill(MODEL, PROMPT.tokens, tiled, empty(MODEL, LENGTH)).logits, plain)


def test_requests_of_a_batch_choose_apart():
    short = prompt_of(20, 31)
    prompts, plan = (PROMPT, short), method(SPECS["xattention"])
    requests = [
        PrefillRequest(p.tokens, Plan(torch.arange(len(p)), sparse=plan), empty(MODEL, len(p))) for p in prompts
    ]
    for request, step in zip(requests, prefill_many(MODEL, requests), strict=True):
        alone = prefill(MODEL, request.tokens, request.plan, empty(MODEL, len(request.tokens)))
        torch.testing.assert_close(step.logits, alone.logits, atol=1e-5, rtol=1e-4)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("name", SPECS)
def test_memory_grows_with_the_tiles_and_not_with_the_pairs(name, monkeypatch):
    """No tensor holds more than a few elements for each tile, token or channel, or one query tile over all keys."""
    monkeypatch.setattr(tiling, "ELEMENTS", 1)
    spec = {"bfla": "bfla(block=32, tile=16, flat=8)", "seer_attention": "seer_attention(block=16)"}.get(name)
    choose = method(spec or SPECS[name].replace("block=8", "block=16"))
    for length in (512, 2048):
        torch.manual_seed(0)
        queries, keys = torch.randn(4, length, 16), torch.randn(2, length, 16)
        with Largest() as seen:
            choose(queries, keys, torch.arange(length))
        tiles, one = 4 * (length // choose.size) ** 2, 2 * 32 * length
        assert seen.elements <= max(3 * 4 * length * 16, 2 * tiles, one), f"{seen.elements} for {length} tokens"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("bfla(block=100, tile=64)", "block 100 is no multiple of tile 64"),
        ("bfla(flat=48)", "block 256 is no multiple of flat 48"),
        ("bfla(mass=0)", "mass is 0: it is a share, above 0 to 1"),
        ("bfla(mass=1.01)", "mass is 1.01"),
        ("bfla(random=-0.1)", "random is -0.1: it is a share, from 0 to 1"),
        ("bfla(local=-1)", "local is -1: it is a whole number, 0 or more"),
        ("oracle(mass=2)", "mass is 2"),
        ("flash_prefill(alpha=1.5)", "alpha is 1.5"),
        ("flash_prefill(window=0)", "window is 0: it is a whole number, 1 or more"),
        ("xattention(stride=48)", "block 128 is no multiple of stride 48"),
        ("xattention(threshold=0.0)", "threshold is 0.0"),
        ("quoka(queries=0)", "queries is 0"),
        ("seer_attention(top=-1)", "top is -1"),
        ("vertical_slash(last=0)", "last is 0"),
        ("strided(stride=0)", "stride is 0"),
        ("random(share=7)", "share is 7"),
        ("window(block=0)", "block is 0"),
        ("dense(block=2.5)", "block is 2.5"),
        ("flex_prefill(gamma=0)", "gamma is 0: it is a share, above 0 to 1"),
        ("by_head(kinds=dx)", "kinds is 'dx': a letter a head"),
        ("compact(heads=-1)", "heads is -1"),
        ("compact(over=bfla(mass=3))", "mass is 3"),
        ("compact(over=nothing)", "unknown sparse 'nothing'"),
        ("lightning", "unknown sparse 'lightning': allowed are bfla, by_head, compact"),
        ("bfla(gamma=0.9)", "sparse 'bfla' has no option 'gamma'"),
        ("seer_attention(trained=1)", "'trained'; allowed: gate, threshold, top, tail, block"),
    ],
)
def test_settings_that_do_not_fit(spec, sentence):
    assert sentence in refused(".", sparse.from_spec, spec)


def test_states_that_do_not_fit():
    with pytest.raises(BadInput, match="3 query heads cannot share 2 KV heads"):
        Bfla()(torch.randn(3, 4, 8), torch.randn(2, 4, 8), torch.arange(4))
    for spec, sentence in (("seer_attention", "no gate yet"), ("xattention(threshold='a.json')", "not read yet")):
        refused(sentence, sparse.from_spec(spec), torch.randn(4, 4, 8), torch.randn(2, 4, 8), torch.arange(4))
    six = torch.randn(6, 4, 8)
    with pytest.raises(BadInput, match="heads is 4: it does not divide the 6 query heads of a KV head"):
        sparse.from_spec("compact(over=dense, heads=4)")(six, six[:1], torch.arange(4))


def test_the_fewest_that_hold_a_share():
    weights = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1])
    first = torch.tensor([1, 0, 0, 0, 0]).bool()

    def picked(*args):
        return tile_selection.fewest_reaching(weights, *args).nonzero()[:, 0].tolist()

    assert picked(0.39) == [1] and picked(0.41) == [1, 2], "the one that crosses is included; of equals, the earlier"
    assert picked(0.61) == [1, 2, 3] and picked(1) == [0, 1, 2, 3, 4]
    assert picked(0.45, first) == [0, 1] and picked(0.05, first) == [0] and picked(0.55, first) == [0, 1, 2]
    assert tile_selection.fewest_reaching(torch.zeros(2, 3), 0.5).sum() == 0


@pytest.mark.parametrize("name", sparse.names())
def test_every_step_of_the_threshold_keeps_more(name):
    choose = method(SPECS[name])
    if name == "dense":
        refused("Dense has no option", choose.with_threshold, 0.5)
        return
    choose = replace(choose, top=0) if isinstance(choose, SeerAttention) else choose
    option, steps = choose.threshold_steps
    assert len(steps) >= 8 and f"{option}=" in registry.spec_of(choose.with_threshold(steps[0]))
    rows = torch.arange(104 if name in ("quoka", "compact") else 0, LENGTH)  # they keep the chunk in whole
    queries, keys = states(rows)
    kept = [choose.with_threshold(step)(queries, keys, rows, Site(0, LENGTH)) for step in steps]
    shares = [choice.visible(len(rows), LENGTH).float().mean().item() for choice in kept]
    assert shares == sorted(shares) and shares[0] < shares[-1]


@pytest.mark.parametrize("name", SPECS)
def test_the_last_logits_are_those_of_a_pass_that_keeps_all(name):
    """Where a choice allows it, the last layer attends with the last rows only."""
    plan = Plan(torch.arange(LENGTH), sparse=method(SPECS[name]))
    every = prefill(MODEL, PROMPT.tokens, plan, empty(MODEL, LENGTH)).logits
    last = prefill(MODEL, PROMPT.tokens, plan, empty(MODEL, LENGTH), logits_to_keep=3).logits
    torch.testing.assert_close(last, every[-3:], atol=1e-5, rtol=1e-4)
