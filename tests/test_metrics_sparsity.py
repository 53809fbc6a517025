"""What a choice keeps and loses, counted pair by pair by a slow reference."""

from math import sqrt

import pytest
import torch

from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench import data
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.tiling import tiles as tiling
from workbench.engine.assembly import empty
from workbench.engine.forward import prefill
from workbench.experiments.trials.trial import Trial
from workbench.methods import sparse
from workbench.metrics.tiles.sparsity import measure, of_layer
from workbench.metrics.tiles.thresholds import compare
from workbench.models.spec import attach

MODEL = model_of("llama")
PROMPTS = [prompt_of(20, 30, 7), prompt_of(9, 40, 5, seed=1)]
LENGTH = 60
CHOICES = [
    "flash_prefill(block=8, alpha=0.6, sink=0, window=1, tail=0)",
    "quoka(block=8, keep=0.3)",
    "vertical_slash(vertical=5, slash=3, front=1, near=1, block=8)",
    "compact(over=oracle(block=8, mass=0.3))",
]


def states():
    torch.manual_seed(0)
    queries = 1.5 * torch.randn(4, LENGTH, 8)
    return queries, KV([torch.randn(2, LENGTH, 8)], [torch.randn(2, LENGTH, 8)])


@pytest.mark.parametrize("chunk", [None, 25])
@pytest.mark.parametrize("spec", CHOICES)
def test_every_number_by_hand(spec, chunk, monkeypatch):
    monkeypatch.setattr(tiling, "ELEMENTS", 5000)
    method, (queries, kv) = sparse.from_spec(spec), states()
    compact = sparse.from_spec(f"compact(over={spec}, heads=0)") if "compact" not in spec else method
    keys, values = kv.keys[0], kv.values[0]
    found = list(of_layer(queries, kv, 0, method, chunk).heads(5))
    assert [(head.layer, head.head) for head in found] == [(5, h) for h in range(4)]
    for h, head in enumerate(found):
        pairs = kept = united = tiles = causal = hits = 0
        masses, gap, norm = [], 0.0, 0.0
        for rows in torch.arange(LENGTH).split(chunk or LENGTH):
            end = int(rows[-1]) + 1
            asked = queries[:, rows], keys[:, :end], rows, sparse.HERE
            inner = compact.inner(*asked)
            chosen, union = inner.visible(len(rows), end)[h], compact(*asked).visible(len(rows), end)[h]
            used = union if compact is method else chosen
            paged, true = inner.paged().kept[h], torch.zeros(inner.kept.shape[1:])
            for at, row in enumerate(rows.tolist()):
                share = (queries[h, row] @ keys[h // 2, : row + 1].T / sqrt(8)).softmax(0)
                pairs += row + 1
                kept += int(chosen[at, : row + 1].sum())
                united += int(union[at, : row + 1].sum())
                held = share * used[at, : row + 1]
                masses.append(float(held.sum()))
                dense, ours = share @ values[h // 2, : row + 1], held / held.sum() @ values[h // 2, : row + 1]
                gap += float((dense - ours).square().sum())
                norm += float(dense.square().sum())
                for key, value in enumerate(share.tolist()):
                    true[at // 8, key // 8] += value
            for i in range(true.shape[0]):
                seen = [j for j in range(true.shape[1]) if 8 * j <= rows[8 * i : 8 * i + 8][-1]]
                mine = {j for j in seen if paged[i, j]}
                best = sorted(seen, key=lambda j: -true[i, j])[: len(mine)]
                causal, tiles, hits = causal + len(seen), tiles + len(mine), hits + len(mine & set(best))
        expected = (kept / pairs, united / pairs, tiles / causal, sum(masses) / LENGTH, min(masses), hits / tiles)
        ours = (head.density, head.union, head.tiles, head.mass, head.lowest, head.recall)
        assert ours == pytest.approx(expected, abs=1e-5)
        assert head.error == pytest.approx(sqrt(gap / norm), rel=1e-4, abs=1e-6)


def test_a_choice_that_keeps_everything_loses_nothing():
    found = measure(MODEL, PROMPTS, sparse.from_spec("dense(block=8)"), 16)
    assert len(found.heads) == 12
    for head in found.heads:
        assert (head.density, head.union, head.tiles, head.recall) == (1, 1, 1, 1)
        assert head.mass == pytest.approx(1) and head.lowest == pytest.approx(1, abs=1e-5) and head.error < 1e-5
    record = found.record()
    assert record["kl"] < 1e-6 and (record["agree"], record["answer"], record["high"]) == (1, 1, 1)
    assert record["prompts"] == len(found.seconds) == 2 and all(s > 0 for s in found.seconds)


@pytest.mark.parametrize("chunk", [None, 16])
def test_the_answer_is_that_of_a_prefill_under_the_choice(chunk):
    method = sparse.from_spec("window(block=8, sink=0, local=0)")
    found = measure(MODEL, PROMPTS, method, chunk)
    for prompt, kl, agree, answer in zip(PROMPTS, found.kl, found.agree, found.answer, strict=True):
        rows, length = torch.arange(len(prompt)), len(prompt)
        a, b = (
            prefill(MODEL, prompt.tokens, Plan(rows, sparse=tiles), empty(MODEL, length)).logits[prompt.question]
            for tiles in (method, None)
        )
        p, q = a.softmax(-1), b.softmax(-1)
        assert kl == pytest.approx(float((q * (q / p).log()).sum(-1).mean()), rel=1e-3)
        same = a.argmax(-1) == b.argmax(-1)
        assert (agree, answer) == (pytest.approx(float(same.float().mean())), bool(same[-1]))
    assert found.record()["kl"] > 0.01


def test_more_mass_means_less_error():
    records = [
        measure(MODEL, PROMPTS, sparse.from_spec(f"oracle(block=8, mass={m})")).record() for m in (0.3, 0.6, 0.95)
    ]
    for what, sign in (("density", 1), ("mass", 1), ("error", -1)):
        values = [sign * record[what] for record in records]
        assert values == sorted(values) and values[0] < values[-1]
    assert records[-1]["recall"] > 0.9, "a row's own tile is the only one that it did not choose"


def test_layers_with_a_window_and_the_scale_of_the_model():
    model = model_of("gemma3", query_pre_attn_scalar=64)
    full = [layer for layer, size in enumerate(attach(model).windows) if not size]
    found = measure(model, PROMPTS[:1], sparse.from_spec("oracle(block=8, mass=0.9)"))
    assert sorted({head.layer for head in found.heads}) == full
    assert all(head.mass >= 0.9 - 1e-5 for head in found.heads)


def test_a_chunk_below_a_tile_is_refused():
    refused("chunk 4 is smaller than a tile", measure, MODEL, PROMPTS, sparse.from_spec("dense(block=8)"), 4)


# --- Several sparse methods on one prompt give what each gives alone
SPECS = {
    "dense": "dense(block=16)",
    "window": "window(block=16, local=1)",
    "quoka": "quoka(block=16, keep=0.2)",
    "compact": "compact(over=flash_prefill(block=16, alpha=0.9, window=1, sink=1, tail=1))",
}


@pytest.fixture(scope="module")
def samples():
    return data.load("lab", 2, 5, 4)


@pytest.mark.parametrize("chunk", [None, 48])
def test_every_method_gives_what_it_gives_alone(loaded, samples, chunk):
    model, tokenizer, layout = loaded
    methods = {name: sparse.from_spec(spec) for name, spec in SPECS.items()}
    for prompt in layout.prompts(samples, tokenizer):
        found = compare(loaded, prompt, methods, chunk, max_new_tokens=3)
        assert list(found) == list(SPECS) and found["dense"].kl < 1e-6
        for name, method in methods.items():
            alone = measure(model, [prompt], method, chunk)
            assert found[name].kl == pytest.approx(alone.kl[0], abs=1e-5)
            assert (found[name].agree, found[name].first) == (alone.agree[0], alone.answer[0])


def test_answers_are_those_of_a_trial(loaded, samples):
    _, tokenizer, layout = loaded
    name = str(loaded[0].config.name_or_path)
    for spec in ("window(block=16, local=0)", "dense(block=16)"):
        trial = Trial(name, samples=2, seed=5, passages=4, sparse=spec, chunk=48, max_new_tokens=4, timed=1, batch=2)
        _, rows = trial.run_each(loaded=loaded)
        prompts = layout.prompts(samples, tokenizer)
        ours = [compare(loaded, p, {"a": sparse.from_spec(spec)}, 48, 4)["a"] for p in prompts]
        assert [found.text for found in ours] == [row["answer"] for row in rows]


def test_a_chunk_smaller_than_a_tile_is_refused_before_any_work(loaded, samples):
    _, tokenizer, layout = loaded
    (prompt, _) = layout.prompts(samples, tokenizer)
    methods = {"a": sparse.from_spec("window(block=16)"), "b": sparse.from_spec("window(block=64)")}
    refused("chunk 32 is smaller than a tile", compare, loaded, prompt, methods, 32)
