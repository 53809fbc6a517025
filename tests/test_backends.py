"""Which kernel carries out a plan, and that it computes what torch computes; on a CPU under Triton's interpreter."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import model_of, prompt_of

pytest.importorskip("triton", reason="Triton is not available on this platform")

from tests.refusals import refused
from workbench.core.errors import BadInput
from workbench.core.masks import window
from workbench.core.plan import Plan
from workbench.core.tiling.tiles import Tiles
from workbench.engine.assembly import assemble, empty
from workbench.engine.attention_backends import choice as backends
from workbench.engine.attention_backends.attention_problem import AttentionProblem
from workbench.engine.attention_backends.choice import backend_for, backend_named
from workbench.engine.chunked import prefill_chunked
from workbench.engine.encoding import encode_many
from workbench.engine.forward import PrefillRequest, prefill
from workbench.engine.graphs.batch_buckets import Bucket
from workbench.engine.graphs.static_batch import StaticBatch
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.random import RandomTiles as BigBird

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODEL = model_of().to(DEVICE)
PROMPT = prompt_of(20, 13, 30, 6)
CLOSE = dict.fromkeys(("atol", "rtol"), 1e-4 if DEVICE == "cpu" else 1e-3)
CUDA = torch.device("cuda")


def asked(**changes) -> AttentionProblem:
    usual = {"rows": 50, "length": 32768, "heads": (32, 8), "width": 128, "dtype": torch.bfloat16, "device": CUDA}
    return AttentionProblem(**{**usual, **changes})


@pytest.fixture(autouse=True)
def card(monkeypatch):
    monkeypatch.setattr(backends, "_processors", lambda device: 132)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "question_attention"),
        ({"rows": 5000}, "tile_attention"),
        ({"rows": 32768, "whole": True}, "tile_attention"),
        ({"rows": 300, "length": 300, "whole": True}, "torch"),  # short
        ({"tile": 64}, "tile_attention"),
        ({"tile": 48}, "torch"),
        ({"tile": 64, "columns": True}, "torch"),
        ({"causal": False}, "torch"),
        ({"windowed": True}, "torch"),
        ({"width": 8}, "torch"),
        ({"dtype": torch.float32}, "torch"),
        ({"device": torch.device("cpu")}, "torch"),
    ],
    ids=str,
)
def test_the_choice_by_device_and_shape(changes, name):
    assert backend_for(asked(**changes)).name == name


@pytest.mark.parametrize(
    ("rows", "batch", "name"),
    [
        (64, 1, "question_attention"),
        (128, 1, "question_attention"),  # 32 programs, each over all keys, for 132 multiprocessors: 19 ms, not 10
        (512, 1, "question_attention"),
        (512, 4, "q_sparse_attention"),
        (50, 64, "question_attention"),
    ],
)
def test_rows_over_pages_are_computed_by_a_kernel_that_fills_the_gpu(rows, batch, name):
    config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(num_attention_heads=32))
    pool = SimpleNamespace(keys=[torch.empty(8, 0)], device=CUDA)
    bucket = Bucket(batch, rows, 8, 0, False, False)
    made = SimpleNamespace(bucket=bucket, pool=pool, model=SimpleNamespace(config=config))
    assert StaticBatch.backend.fget(made) == name


def reused():
    return assemble(MODEL, PROMPT, encode_many(MODEL, PROMPT.context))


@pytest.mark.parametrize("kernel", ["question_attention", "tile_attention"])
@settings(max_examples=2)
@given(again=st.sets(st.integers(0, 62), max_size=20))
def test_kernels_compute_what_torch_computes(kernel, again):
    """The question over cached blocks, some of whose tokens are computed again."""
    rows, kv = torch.cat((torch.tensor(sorted(again), dtype=torch.long), PROMPT.question)), reused()
    expected = prefill(MODEL, PROMPT.tokens, Plan(rows), kv.clone())
    got = prefill(MODEL, PROMPT.tokens, Plan(rows, backend=backend_named(kernel)), kv)
    torch.testing.assert_close(got.logits, expected.logits, **CLOSE)
    assert set(got.backends.values()) == {kernel} and set(expected.backends.values()) == {"torch"}


def chosen(q, k, rows, site):
    draw = torch.Generator().manual_seed(site.layer)
    kept = torch.rand(len(q), -(-len(rows) // 16), -(-k.shape[1] // 16), generator=draw) < 0.4
    kept[:, torch.arange(len(rows)) // 16, rows.cpu() // 16] = True
    return Tiles(kept.to(q.device), 16)


COMPACT = Compact(over=BigBird(block=16, share=0.2), heads=2)


@pytest.mark.parametrize("chosen", [chosen, COMPACT], ids=["by tile", "union"])
@pytest.mark.parametrize("rows", [torch.arange(69), torch.arange(3, 69, 5)], ids=["whole", "scattered"])
def test_tiles_are_carried_out_by_a_kernel(rows, chosen):
    kv = reused()
    expected = prefill(MODEL, PROMPT.tokens, Plan(rows, sparse=chosen), kv.clone()).logits
    step = prefill(MODEL, PROMPT.tokens, Plan(rows, sparse=chosen, backend=backend_named("tile_attention")), kv)
    torch.testing.assert_close(step.logits, expected, **CLOSE)


def test_chunks_say_what_ran():
    plan = Plan(torch.arange(len(PROMPT)), backend=backend_named("tile_attention"))
    step = prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, plan, empty(MODEL, len(PROMPT))), 30, logits_to_keep=1)
    assert step.backends == dict.fromkeys(range(3), "tile_attention")
    expected = prefill(MODEL, PROMPT.tokens, Plan(plan.rows), empty(MODEL, len(PROMPT)), logits_to_keep=1).logits
    torch.testing.assert_close(step.logits, expected, **CLOSE)


def quoka(q, k, rows, site):
    return Tiles(torch.ones(len(q), 5, 5, dtype=torch.bool), 16, torch.ones(len(q), 69, dtype=torch.bool))


@pytest.mark.parametrize(
    ("kernel", "plan", "words"),
    [
        ("tile_attention", {"sees": window(5)}, "no other mask rule"),
        ("tile_attention", {"sparse": quoka}, "no single columns"),
        ("question_attention", {"sparse": chosen}, "no tiles"),
        ("tile_attention", {"sparse": lambda q, k, rows, site: Tiles(torch.ones(4, 30, 30).bool(), 5)}, "5 tokens"),
    ],
)
def test_a_kernel_that_cannot_do_what_is_asked_is_refused(kernel, plan, words):
    with pytest.raises(BadInput, match=words):
        prefill(MODEL, PROMPT.tokens, Plan(torch.arange(69), **plan, backend=backend_named(kernel)), empty(MODEL, 69))


def test_a_sliding_window_is_refused_before_any_work():
    model, kv = model_of("mistral-window").to(DEVICE), None
    kv = empty(model, 69)
    with pytest.raises(BadInput, match="sliding window"):
        prefill(model, PROMPT.tokens, Plan(torch.arange(69), backend=backend_named("tile_attention")), kv)
    assert not kv.keys[0].any()


def test_an_unknown_name_is_refused():
    refused("tile_attention", backend_named, "no_such")


@pytest.mark.skipif(DEVICE == "cuda", reason="tests/test_engine_gpu.py does it on a GPU")
def test_what_a_gpu_does_by_itself(monkeypatch):
    """Blocks encoded together, keys turned and rows attended by kernels, as on a card, in fp16."""
    model = model_of().half()

    def answer():
        kv = assemble(model, PROMPT, encode_many(model, PROMPT.context))
        rows = torch.cat((torch.tensor([3, 17, 40]), PROMPT.question))
        question = prefill(model, PROMPT.tokens, Plan(PROMPT.question), kv.clone())
        again = prefill(model, PROMPT.tokens, Plan(rows, sparse=chosen), kv)
        return question, again

    expected = answer()
    monkeypatch.setattr(backends, "on_gpu", lambda device: True)
    got = answer()
    for mine, theirs, name in zip(got, expected, ("question_attention", "tile_attention"), strict=True):
        assert set(mine.backends.values()) == {name} and set(theirs.backends.values()) == {"torch"}
        torch.testing.assert_close(mine.logits, theirs.logits, atol=0.1, rtol=0.02)
