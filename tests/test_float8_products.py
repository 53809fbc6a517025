"""Products in float8: within what rounding explains, only where they are asked for, and of weights as they are now."""

import sys
from functools import partial

import float8_products as script
import pytest
import torch

from tests.random_models import block_of, model_of, prompt_of
from tests.refusals import refused
from workbench import models, results
from workbench.core.blocks import Block
from workbench.core.plan import Plan
from workbench.engine import forward
from workbench.engine.assembly import empty
from workbench.engine.chunked import prefill_chunked
from workbench.engine.forward import PrefillRequest, all_rows, prefill_many
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.layers import between_attentions, float8_products, fused_layers
from workbench.engine.layers.float8_products import Float8Products, Float8Weights, product, products_of, quantize_rows
from workbench.engine.layers.fused_layers import FusedLayers
from workbench.engine.layers.gemm_dispatch import GemmTable
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.bench.models import whole_model
from workbench.kernels._shared import float8_rows
from workbench.models import float8
from workbench.store import fingerprint
from workbench.store.keys import key_of

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HOPPER = not GPU or torch.cuda.get_device_capability() >= float8.NEEDED
pytestmark = pytest.mark.skipif(not HOPPER, reason="this GPU multiplies no rows in float8")
U = 2.0**-4  # by which e4m3 rounds, of a number
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def few(monkeypatch):
    """Take few rows for many: the models here are small."""
    monkeypatch.setattr(float8_products, "LEAST", 4)


def small(name="llama", seed=0):
    return model_of(name, seed, **SHAPE).to(DEVICE, torch.bfloat16)


def fused_of(model):
    return FusedLayers(model, GPU, products_of(model, kernels=GPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_float8_are_the_nearest_that_it_holds(dtype):
    for (x,) in float8_rows.cases(dtype=dtype):
        values, scales = float8_rows.reference(x)
        wide, back = x.double(), values.double() * scales.double()
        whole = ~wide.isnan().any(-1)
        assert back[~whole].isnan().any() or bool(whole.all()), "nan stays"
        allowed = U * wide.abs() + 2.0**-10 * scales + 1e-6 * wide.abs()
        assert bool(((back - wide).abs() <= allowed)[whole].all())
        assert scales.shape == (len(x), 1) and scales.dtype == torch.float32


def test_the_kernel_rounds_as_its_reference():
    """In Triton's interpreter but for ties, tiny numbers and those that round up to a power of two, which it halves."""
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    for dtype in (torch.float32, torch.bfloat16) if GPU else (torch.float32, torch.float16):
        for (x,) in float8_rows.cases(DEVICE, dtype):
            (values, scales), x = (part.cpu() for part in float8_rows.launch(x)), x.cpu()
            wanted, right = float8_rows.reference(x)  # a GPU's torch divides by a number less exactly
            whole = ~x.isnan().any(-1)
            assert torch.equal(scales[whole], right[whole])
            if GPU:
                assert torch.equal(values[whole].view(torch.uint8), wanted[whole].view(torch.uint8))
                assert torch.equal(values.float().isnan().any(-1), ~whole)
                continue
            off, least = ((each.float() * right - x.float()).abs() for each in (values, wanted))
            odd = (wanted.float().abs().frexp()[0] == 0.5) | (wanted.float().abs() < 2.0**-6)
            assert bool((odd | (off <= least + 1e-6 * x.float().abs()))[whole].all())


@pytest.mark.parametrize("rows, width, channels", [(300, 64, 96), (17, 1536, 576), (260, 4096, 32)])
def test_a_product_is_off_by_what_rounding_explains(rows, width, channels):
    torch.manual_seed(rows)
    x = (
        torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
        * torch.logspace(-2, 2, rows, device=DEVICE)[:, None].bfloat16()
    )
    weight = torch.randn(channels, width, device=DEVICE, dtype=torch.bfloat16)
    found = product(x, quantize_rows(weight, GPU), GPU)
    exact, sizes = (a.double() @ b.double().mT for a, b in ((x, weight), (x.abs(), weight.abs())))
    tiny = [a.double().abs().amax(-1) / 448 * 2**-10 for a in (x, weight)]
    below = tiny[0][:, None] * weight.double().abs().sum(-1) * (1 + U) + tiny[1] * x.double().abs().sum(-1)[:, None] * (
        1 + U
    )
    assert found.dtype == x.dtype and found.shape == (rows, channels)
    off = (found.double() - exact).abs()
    assert bool((off <= (2 * U + U * U) * sizes + below + 2**-8 * exact.abs() + 1e-3 * sizes).all())
    typical = (off.square().mean() / exact.square().mean()).sqrt()
    assert typical < 0.05, "rounding errors of either sign mostly cancel"


def test_few_rows_the_head_and_other_weights_are_multiplied_as_they_were(few):
    model = small()
    with float8.float8_enabled(model):
        layers = fused_of(model)
        assert isinstance(products := layers.products, Float8Products)
        weight = layers.layers[0].o[0]
        x = torch.randn(9, weight.shape[1], device=DEVICE, dtype=torch.bfloat16)
        out, plain = x.new_empty(9, len(weight)), GemmTable()
        assert torch.equal(products(x[:3], weight), plain(x[:3], weight))
        assert torch.equal(products.matmul_into(out[:3], x[:3], weight, None), plain(x[:3], weight))
        assert torch.equal(products(x, model.lm_head.weight), plain(x, model.lm_head.weight))
        assert not torch.equal(found := products(x, weight), plain(x, weight))
        assert torch.equal(products.matmul_into(out, x, weight, None), found) and torch.equal(out, found)
        bias = torch.randn(len(weight), device=DEVICE, dtype=torch.bfloat16)
        assert torch.equal(products(x, weight, bias), found + bias)
        assert torch.equal(products.matmul_into(out, x, weight, bias), found + bias)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_prompt_is_near_the_exact_one_in_one_pass_in_chunks_and_over_pages(name, few, monkeypatch):
    model, prompt = small(name), prompt_of(30, 21, 13)
    monkeypatch.setattr(forward, "packed_layers", fused_of) if not GPU else None

    def computed(chunk=0):
        request = all_rows(model, prompt.tokens)
        (out,) = [prefill_chunked(model, request, chunk, 0)] if chunk else prefill_many(model, [request])
        return out.logits.float()

    def over_pages():
        pool = Pool(model, 40, 16, kernels=GPU)
        runner = Runner(model, pool, layers="fused", measured=False)
        held = pool.open(pool.encode(model, [block_of(40)]), 20)
        return runner.prefill([held], [torch.arange(1, 21)]).float()

    exact, exact_pages = computed(), over_pages()
    with float8.float8_enabled(model):
        layers = fused_of(model)
        monkeypatch.setattr(forward, "packed_layers", lambda model: layers) if not GPU else None
        rounded_once = computed()
        chunked, paged = computed(16), over_pages()
    for found, wanted in ((rounded_once, exact), (chunked, exact), (paged, exact_pages)):
        assert not torch.equal(found, wanted), "float8 was not used"
        assert torch.nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), 0) > 0.98
    assert torch.nn.functional.cosine_similarity(rounded_once.flatten(), chunked.flatten(), 0) > 0.99
    monkeypatch.setattr(forward, "packed_layers", fused_of) if not GPU else None
    assert torch.equal(computed(), exact), "afterwards it is as it was"


def test_weights_that_were_written_or_exchanged_since_are_rounded_anew(few):
    model = small()
    with float8.float8_enabled(model):
        layers = fused_of(model)
        weight = layers.layers[1].down[0]
        x = torch.randn(8, weight.shape[1], device=DEVICE, dtype=torch.bfloat16)
        before, held = layers.products(x, weight), layers.products.weights.of(weight)
        other = fused_of(model)
        assert other.products.weights.of(weight)[0].data_ptr() == held[0].data_ptr(), "one copy for all layers"
        with torch.no_grad():
            model.get_decoder().layers[1].mlp.down_proj.weight.mul_(2)
        layers.follow()
        assert torch.equal(layers.products(x, weight), 2 * before)
        assert layers.products.weights.of(weight)[0].data_ptr() == held[0].data_ptr(), "graphs keep the address"
        module = model.get_decoder().layers[1].mlp.down_proj
        module.weight = torch.nn.Parameter(module.weight * 2)
        new = fused_of(model)
        assert torch.equal(new.products(x, new.layers[1].down[0]), 4 * before)


def test_graphs_between_attentions_multiply_in_float8_too(few, monkeypatch):
    """What is replayed is what each pass computes."""
    if not GPU:
        from tests.test_fused_layers import as_captured

        monkeypatch.setattr(between_attentions, "captured", as_captured)
    model, tokens = small(), block_of(64).tokens
    with float8.float8_enabled(model):
        layers = fused_of(model)
        monkeypatch.setattr(forward, "packed_layers", lambda model: layers)
        request = PrefillRequest(torch.tensor(tokens), Plan(torch.arange(64)), empty(model, 64))
        repeated = prefill_chunked(model, request, 16, 0).logits
        assert layers._graphs.get(16) is not None and not layers.why_uncaptured
        monkeypatch.setattr("workbench.engine.chunked.MANY", 99)
        request = PrefillRequest(torch.tensor(tokens), Plan(torch.arange(64)), empty(model, 64))
        once = prefill_chunked(model, request, 16, 0).logits
    torch.testing.assert_close(repeated.float(), once.float(), atol=0.02, rtol=0.02)


def test_a_model_that_asked_has_blocks_of_its_own():
    model, block = small(), Block((1, 2, 3))
    plain = key_of(fingerprint(model), model.dtype, block)
    with float8.float8_enabled(model):
        assert key_of(fingerprint(model), model.dtype, block) != plain
        assert float8.dtype_name(model) == "float8-products", "a page that verifies it says so"
    assert key_of(fingerprint(model), model.dtype, block) == plain and float8.dtype_name(model) == "bfloat16"


def test_what_cannot_multiply_in_float8_is_refused(monkeypatch):
    refused("bfloat16", float8.ask, model_of())
    if not GPU:
        refused("float8-products needs a GPU", models.load, "lab-full", dtype=float8.NAME)
    odd = model_of(intermediate_size=72).to(DEVICE, torch.bfloat16)
    with float8.float8_enabled(odd):
        refused("72", partial(fused_of, odd))
    model = small()
    with float8.float8_enabled(model):
        monkeypatch.setattr(fused_layers, "on_gpu", lambda device: True)
        monkeypatch.setattr(fused_layers, "reason_against", lambda model: "a module of it has a hook")
        refused("a module of it has a hook", fused_layers.packed_layers, model)
    assert fused_layers.packed_layers(model) is None


def test_weights_are_freed_with_their_model():
    model = small()
    with float8.float8_enabled(model):
        assert isinstance(fused_of(model).products.weights, Float8Weights)
        assert model in float8_products._WEIGHTS
    assert isinstance(products_of(model), GemmTable) and model not in float8_products._WEIGHTS


@pytest.mark.skipif(GPU, reason="the script itself is run there")
def test_times_and_answers_are_compared_with_those_of_bfloat16(few, monkeypatch, tmp_path):
    monkeypatch.setattr(whole_model, "DTYPE", torch.bfloat16)
    monkeypatch.setattr(forward, "packed_layers", fused_of)
    monkeypatch.setattr(float8, "check", lambda device: None)
    words = (
        "--tiny --lengths 4 --chunked 6 --encoded 2 --recomputed --runs 2 --parts times answers --device cpu".split()
    )
    words += ["--model", "lab-full", "--data", "lab", "--samples", "3", "--batch", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["float8_products.py", *words])
    script.main()
    found = results.read(tmp_path)
    times, counts = found.timings(), found.counts()
    assert len(times) == 12 and set(times.runs) == {2}
    assert {"faster", "cosine", "density", "em", "kl", "kl_first", "agree", "nll"} == set(counts.measure)
    assert counts[counts.measure == "cosine"].value.between(0.9, 0.99999999).all(), "one kind was compared with itself"
    kl = counts[(counts.measure == "kl") & (counts.method == "full attention")].set_index("kind").value
    assert kl["bfloat16"] == 0 < kl["float8 products"] < 0.1
