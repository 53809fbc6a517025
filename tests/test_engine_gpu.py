"""On a GPU: the same results as on the CPU, and long prompts without a [T, T] mask in memory."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForCausalLM

from tests.random_models import FAMILIES, Letters, block_of, model_of, prompt_of
from workbench.core.blocks import Prompt
from workbench.core.masks import block_attention, causal, window
from workbench.core.plan import Plan
from workbench.core.tiling.tiles import Grid, Tiles
from workbench.engine import chunked
from workbench.engine.assembly import assemble, empty
from workbench.engine.attention_backends import attention
from workbench.engine.attention_backends import choice as backends
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.engine.encoding import encode_many
from workbench.engine.forward import PrefillRequest, prefill
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.layers import fused_layers, gemm_dispatch
from workbench.engine.pages.paged_pool import Pool
from workbench.methods import seer_gate, sparse
from workbench.methods import select as selectors
from workbench.methods.engines import pages_of
from workbench.methods.generation import answer, generate
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.prepare._behind import assembled, over_pages
from workbench.methods.sparse.bfla import Bfla
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.quoka import Quoka
from workbench.methods.sparse.random import RandomTiles
from workbench.methods.sparse.seer_attention import SeerAttention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROMPT = prompt_of(13, 7, 11, 5)
ROWS = torch.arange(len(PROMPT))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_computes_what_it_computes_on_the_cpu(name):
    for rule in (causal, block_attention(PROMPT), window(4)):
        results = []
        for device in ("cpu", "cuda"):
            model = model_of(name).to(device)
            whole = prefill(model, PROMPT.tokens, Plan(ROWS, rule), empty(model, len(PROMPT))).logits
            moved = assemble(model, PROMPT, encode_many(model, PROMPT.context))
            reused = prefill(model, PROMPT.tokens, Plan(PROMPT.question), moved).logits
            results.append(torch.cat((whole, reused)).cpu())
        torch.testing.assert_close(*results, atol=1e-3, rtol=1e-3)


def test_answers_are_those_of_the_cpu():
    prompts = [prompt_of(5, 7, 3, seed=1), prompt_of(9, 2, seed=2)]
    settings = {"mode": "block", "max_new_tokens": 10, "temperature": 1.0, "top_p": 0.9}
    on_cpu, on_gpu = (generate(model_of().to(d), Letters(), prompts, **settings) for d in ("cpu", "cuda"))
    assert on_cpu == on_gpu


WAYS = {
    "full": Full(),
    "full, tiles": Full(sparse=Bfla(block=32, tile=16, flat=16, local=1)),
    "block": Reuse(),
    "naive": Reuse("naive"),
    "question-guided": Reuse(select=selectors.from_spec("query_guided"), ratio=0.3),
    "all": Reuse(select=selectors.from_spec("all")),
    "superposition": Superposition(paths=2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_over_pages_and_captured_steps_are_those_of_contiguous_caches(way, temperature):
    """In fp32: no two logits are as near as the engines' rounding. More prompts than are decoded together."""
    blocks = [block_of(n, seed=n) for n in (9, 70, 33, 16, 130)]
    prompts = [
        Prompt((blocks[0], *(blocks[1 + (i + j) % 4] for j in range(1 + i % 3)), block_of(3 + i, 50 + i)))
        for i in range(7)
    ]
    model, options = model_of(head_dim=32).to("cuda"), {"params": SamplingParams(30, temperature)}
    one, two = replace(WAYS[way]), replace(WAYS[way])  # superposition charges whoever reads a document first
    plain = answer(model, Letters(), prompts, one, engine="contiguous", **options)
    paged = answer(model, Letters(), prompts, two, most=4, **options)
    assert paged.engine.startswith("paged") and plain.engine.startswith("contiguous")
    assert paged.generations == plain.generations
    for one, other in zip(plain.ready, paged.ready, strict=True):
        length = len(one.request.tokens)
        for x, y in zip(one.request.kv.tensors(), other.request.kv.tensors(), strict=True):
            torch.testing.assert_close(y[:, :length], x[:, :length], atol=1e-3, rtol=1e-3)
    stop = max((one.text for one in plain.generations), key=len)[1:3]
    stopped = [
        generate(model, Letters(), prompts, replace(WAYS[way]), stop=stop, engine=e) for e in ("contiguous", "paged")
    ]
    assert stopped[0] == stopped[1]
    runner, pages = pages_of(model).of(model, 1)
    assert runner.graphs and runner.captured and pages.pinned == 0


@pytest.mark.parametrize("rule", ["full", "block", "scattered"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_32k_tokens_need_no_mask_of_32k_by_32k(rule, dtype):
    """Such a mask of 16 heads takes 16 GiB even as one byte an entry."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 512, "head_dim": 128}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 1 << 15}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape, **heads))
    model = model.eval().to("cuda", dtype)
    prompt = prompt_of(*[4096] * 7, 4095, 1)
    rows = torch.arange(0, 1 << 15, 7) if rule == "scattered" else torch.arange(1 << 15)
    kv = empty(model, len(prompt))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sees = block_attention(prompt) if rule == "block" else causal
    logits = prefill(model, prompt.tokens, Plan(rows, sees), kv, logits_to_keep=1).logits
    assert logits.isfinite().all() and torch.cuda.max_memory_allocated() - before < 4 << 30


WIDE = {"head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 16384}
LONG = prompt_of(700, 513, 1200, 64, 50)


def wide(dtype=torch.float16):
    """fp16: rounding is small enough to compare logits of models whose attention matters."""
    return model_of(**WIDE).to("cuda", dtype)


def near(ours, theirs, share=0.03):
    """Numbers that were rounded on the way: apart by a share of their spread."""
    assert (ours.float() - theirs.float()).abs().max() <= share * theirs.float().std() * 6


def tiles_of(q, k, rows, site):
    """A choice that is made without waiting for the device."""
    grid = Grid(rows, k.shape[1], 64)
    drawn = torch.rand(len(q), *grid.shape, device=q.device) < 0.3
    return Tiles(
        drawn
        | (grid.columns * 64 <= grid.last_positions[:, None])
        & (grid.columns * 64 + 64 > grid.first_positions[:, None]),
        64,
    )


@pytest.mark.parametrize("rows", ["question", "scattered", "whole"])
@pytest.mark.parametrize("tiles", [None, RandomTiles(block=64, share=0.3)], ids=["dense", "tiles"])
def test_kernels_compute_what_torch_computes(rows, tiles, monkeypatch):
    model = wide()
    kv = assemble(model, LONG, encode_many(model, LONG.context))
    everything = torch.arange(len(LONG))
    at = {"question": LONG.question, "whole": everything, "scattered": everything[everything % 2 == 1]}[rows]
    step = prefill(model, LONG.tokens, Plan(at, sparse=tiles), kv.clone())
    monkeypatch.setattr(backends, "on_gpu", lambda device: False)
    plain = prefill(model, LONG.tokens, Plan(at, sparse=tiles), kv)
    expected = "tile_attention" if tiles or rows != "question" else "question_attention"
    assert set(step.backends.values()) == {expected}
    assert set(plain.backends.values()) == {"torch"}
    near(step.logits, plain.logits)


def test_prepared_passages_over_pages_are_those_over_copies():
    model, blocks = wide(), [block_of(n, seed=n) for n in (40, 512, 300, 512, 129, 64)]
    cached = dict(zip(blocks, encode_many(model, blocks, [(), *[blocks[:1]] * 5]), strict=True))
    chunks = [
        Prompt((blocks[0], *(blocks[1 + (i + j) % 5] for j in range(i % 4)), blocks[1 + i % 5])) for i in range(7)
    ]
    kvs = [[cached[block] for block in chunk.context] for chunk in chunks]
    for ours, theirs in zip(over_pages(model, chunks, kvs), assembled(model, chunks, kvs), strict=True):
        assert ours.start == theirs.start
        for x, y in zip(ours.tensors(), theirs.tensors(), strict=True):
            near(x, y)


def test_blocks_encoded_in_one_launch_are_those_encoded_by_torch(monkeypatch):
    model = wide()
    ours = encode_many(model, LONG.context)
    moved = assemble(model, LONG, ours)
    monkeypatch.setattr(backends, "on_gpu", lambda device: False)
    for mine, theirs in zip(ours, encode_many(model, LONG.context), strict=True):
        for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
            near(a, b)
    for a, b in zip(moved.tensors(), assemble(model, LONG, ours).tensors(), strict=True):
        near(a, b, 0.005)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("layers", ["fused", "model"])
def test_a_graph_computes_what_its_step_computes(dtype, shared, layers):
    """Question and answers of three requests over shared pages, captured and not."""
    model, found = wide(dtype), []
    for graphs in (True, False):
        pool = Pool(model, 200)
        cached = pool.encode(model, LONG.context)
        contexts = (cached, cached[:3], cached) if shared else (cached, cached[:2], cached[1:])
        runner = Runner(model, pool, graphs, layers=layers)
        for _ in range(2):  # the second time all is captured
            held = [pool.open(context, 50 + 40) for context in contexts]
            logits = runner.prefill(held, [LONG.tokens[-n:] for n in (50, 20, 33)])
            found.append((logits, list(runner.decode(held, logits, 20))))
            for one in held:
                pool.close(one)
        ran = [captured.batch.backend for captured in runner.captured.values()]
        assert ran == ["question_attention", "shared_attention" if shared else "question_attention"]
    for logits, tokens in found[1:]:
        torch.testing.assert_close(logits, found[0][0], atol=1e-5, rtol=1e-5)
        assert tokens == found[0][1]


@pytest.mark.parametrize("recompute", [None, 5], ids=["question", "recomputed tokens"])
def test_keys_that_other_rows_of_the_same_step_write_are_waited_for(recompute):
    """Rows of many tiles: the last of them begin behind pages that the first ones write in this very layer."""
    model = wide(torch.float16)
    pool = Pool(model, 200)
    cached, ids = pool.encode(model, LONG.context), LONG.tokens[-240:]
    length = sum(len(block) for block in LONG.context)
    again = None if recompute is None else torch.arange(0, length, recompute)
    tokens = ids if again is None else torch.cat((LONG.tokens[again], ids))
    runner, found = Runner(model, pool), []
    for _ in range(20):
        prompt = pool.open(cached, len(ids), again)
        for own in prompt.owned:  # what was there before shows
            for layer in (*pool.keys, *pool.values):
                layer[:, own * pool.size : (own + 1) * pool.size] = torch.nan
        found.append(runner.prefill([prompt], [tokens])[0])
        pool.close(prompt)
    assert all(row.isfinite().all() and torch.equal(row, found[0]) for row in found)


def test_fused_layers_compute_what_layers_compute():
    model, answers = wide(torch.float32), []
    for layers in ("model", "compiled", None):
        pool = Pool(model, 200)
        held = pool.open(pool.encode(model, LONG.context), 90)
        runner = Runner(model, pool, layers=layers)
        assert runner.layers == (layers or "fused"), runner.why
        logits = runner.prefill([held], [LONG.tokens[-50:]])
        answers.append((logits, list(runner.decode([held], logits, 10))))
    for logits, tokens in answers[1:]:
        torch.testing.assert_close(answers[0][0], logits, atol=1e-3, rtol=1e-3)
        assert answers[0][1] == tokens


@pytest.mark.parametrize("overlap", [False, True])
def test_fused_layers_in_half_precision_over_pages_in_pairs(monkeypatch, overlap):
    """Blocks of an odd number of pages among long ones, keys rerotated two pages at a time; kernels that overlap."""
    monkeypatch.setattr("workbench.kernels._shared.triton_import.OVERLAP", overlap)
    model, answers = wide(), []
    for run, layers in ((1, "model"), (2, "fused")):
        pool = Pool(model, 200)
        pool.run = run
        blocks = [*LONG.context, *(block_of(n, seed=n) for n in (1024, 1024, 700, 1024))]
        held = pool.open(pool.encode(model, blocks)[::-1], 60)
        runner = Runner(model, pool, layers=layers)
        for _ in range(3):
            held.written = 0
            answers.append(runner.prefill([held], [LONG.tokens[-50:]])[0])
        assert held.table.run == run
    for logits in answers[1:]:
        near(logits, answers[0])


def test_pages_compute_what_an_assembled_copy_computes():
    model = wide()
    pool = Pool(model, 200)
    cached = pool.encode(model, LONG.context)
    got = Runner(model, pool).prefill([pool.open(cached, 50)], [LONG.tokens[-50:]])[0]
    kv = assemble(model, LONG, encode_many(model, LONG.context))
    near(got, prefill(model, LONG.tokens, Plan(LONG.question), kv).logits[-1])
    copied = pool.gather(cached, 50)
    near(got, prefill(model, LONG.tokens, Plan(LONG.question), copied).logits[-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tiles", [None, partial(RandomTiles.__call__, RandomTiles(block=64))], ids=["dense", "tiles"])
def test_chunks_that_are_replayed_compute_what_they_compute_one_by_one(dtype, tiles, monkeypatch):
    """Twice, as the second prompt is another one in another cache; then with another pass on another stream behind."""
    model, found = wide(dtype), {}
    rows, side = torch.arange(len(LONG)), torch.cuda.Stream()
    for many in (1 << 30, 4):
        monkeypatch.setattr(chunked, "MANY", many)
        for shift in (0, 5):
            kv = empty(model, len(LONG))
            request = PrefillRequest((LONG.tokens + shift) % 90, Plan(rows, sparse=tiles), kv)
            torch.manual_seed(0)
            side.wait_stream(torch.cuda.current_stream())  # the cache is made there
            with torch.cuda.stream(side if shift else torch.cuda.current_stream()):
                step = chunked.prefill_chunked(model, request, 256, 2)
            found[many, shift] = [step.logits, *kv.keys, *kv.values]
    torch.cuda.synchronize()
    layers = fused_layers.packed_layers(model)
    assert layers.why_uncaptured == "" and layers._graphs[256] is not None
    for shift in (0, 5):
        for mine, theirs in zip(found[4, shift], found[1 << 30, shift], strict=True):
            near(mine, theirs, 0.01)
    assert not torch.equal(found[4, 0][0], found[4, 5][0])


REPLAYED = (
    "flash_prefill(block=64, alpha=0.9)",
    "xattention(block=64, stride=8, threshold=0.5)",
    "bfla(block=128, tile=64, flat=32, mass=0.5)",
    "window(block=64, local=1)",
    "random(block=64)",
    "quoka(keep=0.3)",
    "compact(over=flash_prefill(block=128, alpha=0.95))",
)


@pytest.mark.parametrize("spec", (*REPLAYED, "seer_attention", "compact over seer_attention"))
def test_chunks_of_a_sparse_method_that_are_replayed_are_those_computed_one_by_one(spec, monkeypatch):
    """Two prompts, each in a cache of its own, whose unwritten rows are not numbers; the second is captured at once."""
    model, found, graphs = wide(), {}, []
    if spec.endswith("seer_attention"):
        gate = SeerAttention(threshold=0.1, trained=seer_gate.new_gate(model).requires_grad_(False))
        method = Compact(gate) if spec != "seer_attention" else gate
    else:
        method = sparse.from_spec(spec)
    assert method.replays
    made = chunked.ChunkGraph

    def told(*given):
        graphs.append(made(*given))
        graphs[-1].why_uncaptured = "" if way == "replayed" else "not wanted"
        return graphs[-1]

    monkeypatch.setattr(chunked, "ChunkGraph", told)
    for way in ("replayed", "not captured", "one by one"):
        monkeypatch.setattr(chunked, "REPLAYED", 1 << 30 if way == "one by one" else 6)
        for shift in (0, 5):
            kv = empty(model, len(LONG))
            for x in kv.tensors():
                x.fill_(torch.nan)
            plan = Plan(torch.arange(len(LONG)), sparse=method)
            request = PrefillRequest((LONG.tokens + shift) % 90, plan, kv)
            found[way, shift] = [chunked.prefill_chunked(model, request, 256, 2).logits, *kv.tensors()]
    torch.cuda.synchronize()
    assert [bool(graph._replay) for graph in graphs] == [True, True, False, False], graphs[0].why_uncaptured
    for shift in (0, 5):
        for mine, theirs in zip(found["replayed", shift], found["not captured", shift], strict=True):
            near(mine, theirs, 0.01)
        logits = [found[way, shift][0].float() for way in ("replayed", "one by one")]
        assert torch.cosine_similarity(*logits).min() > 0.99  # a choice may differ where products round otherwise
    assert not torch.equal(found["replayed", 0][0], found["replayed", 5][0])


def test_tokens_that_a_chunk_chooses_are_attended_to_in_a_copy(monkeypatch):
    model, sparse = wide(), Quoka(keep=0.3, block=128)

    def computed():
        plan = Plan(torch.arange(len(LONG)), sparse=sparse)
        return chunked.prefill_chunked(model, PrefillRequest(LONG.tokens, plan, empty(model, len(LONG))), 512, 2)

    found = computed()
    assert set(found.backends.values()) == {"partial"}
    monkeypatch.setattr(attention, "by_kernels", lambda *_: None)
    masked = computed()
    assert set(masked.backends.values()) == {"torch"}
    near(found.logits, masked.logits)


def test_nothing_in_a_forward_pass_waits_for_the_device():
    model = wide()
    pool = Pool(model, 200)
    runner = Runner(model, pool, graphs=False)
    held = pool.open(pool.encode(model, LONG.context), 90)
    logits = runner.prefill([held], [LONG.tokens[-50:]])
    list(runner.decode([held], logits, 2))
    kv, rows = empty(model, len(LONG)), torch.arange(1, len(LONG), 2)
    for tiles in (None, tiles_of):
        request = PlannedRequest(Plan(rows, sparse=tiles), kv, model.device)
        ids = LONG.tokens[rows].cuda()[None]
        for mode in ("default", "error"):  # kernels are compiled the first time
            torch.cuda.set_sync_debug_mode(mode)
            try:
                with torch.no_grad():
                    model(input_ids=ids, position_ids=request.rows[None], use_cache=False, requests=[request])
                    for captured in runner.captured.values():
                        captured.batch.forward()
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_decoding_runs_on_kernels_and_answers_as_torch_does(monkeypatch):
    model, answers = wide(), []
    for on in (True, False):
        if not on:
            monkeypatch.setattr(backends, "on_gpu", lambda device: False)
        settings = {"mode": "block", "max_new_tokens": 8}
        answers.append(generate(model, Letters(), [LONG, prompt_of(300, 20, seed=3)], **settings))
    same = [a.tokens[:2] == b.tokens[:2] for a, b in zip(*answers, strict=True)]
    assert all(same)  # later tokens may part where two are as likely


# --- Products of few rows on a GPU: every launch that may be chosen gives torch's numbers, overlapped or not
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("rows", "width", "channels"), [(1, 1304, 512), (50, 256, 1024), (64, 200, 328)])
@pytest.mark.parametrize("gated", [False, True])
def test_every_way_gives_torchs_numbers(monkeypatch, overlap, rows, width, channels, gated):
    monkeypatch.setattr(gemm_dispatch.kernel("_shared.triton_import"), "OVERLAP", overlap)
    draw = torch.Generator("cuda").manual_seed(rows)
    x, weight = (
        torch.randn(n, channels, generator=draw, device="cuda", dtype=torch.bfloat16) / channels**0.25
        for n in (rows, width)
    )
    wanted = linear(x.float(), weight.float())
    if gated:
        gate, up = wanted.chunk(2, -1)
        wanted = torch.nn.functional.silu(gate) * up
    hopper = gemm_dispatch.kernel("_shared.linear_hopper").fits(x, weight)
    for way in gemm_dispatch.launch_configs(width, channels, not gated, rows, hopper, gated):
        found = gemm_dispatch._launched(x, weight, way).float().sum(0)
        torch.testing.assert_close(found, wanted, atol=0.03, rtol=0.03, msg=lambda text, way=way: f"{way}: {text}")
