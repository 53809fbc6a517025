"""Several sparse methods on one prompt give what each gives alone."""

import pytest

from workbench import data
from workbench.core.errors import BadInput
from workbench.experiments.trials.trial import Trial
from workbench.methods import sparse
from workbench.metrics.tiles.sparsity import measure
from workbench.metrics.tiles.thresholds import compare, compare_many

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
    methods = {name: sparse.named(spec) for name, spec in SPECS.items()}
    for prompt in layout.prompts(samples, tokenizer):
        found = compare(loaded, prompt, methods, chunk, max_new_tokens=3)
        assert list(found) == list(SPECS)
        for name, method in methods.items():
            alone, ours = measure(model, [prompt], method, chunk), found[name].measures()
            for what in ("density", "union", "tiles", "mass", "recall", "error", "lowest"):
                assert ours[what] == pytest.approx(alone.record()[what], abs=1e-6), (name, what)
            assert ours["kl"] == pytest.approx(alone.kl[0], abs=1e-5) and ours["agree"] == alone.agree[0]
            assert found[name].first == alone.answer[0] and len(found[name].heads) == 2 * 4
        assert found["dense"].kl < 1e-6 and found["dense"].measures()["density"] == pytest.approx(1)


@pytest.mark.parametrize("together", [1, 3, 100])
def test_prompts_may_be_packed_in_any_number(loaded, samples, together):
    methods = {name: sparse.named(SPECS[name]) for name in ("window", "quoka")}
    prompts = loaded[2].prompts(samples, loaded[1])
    packed = compare_many(loaded, prompts, methods, 48, 3, heads=False, together=together)
    for prompt, found in zip(prompts, packed, strict=True):
        for name, alone in compare(loaded, prompt, methods, 48, 3, heads=False).items():
            assert (found[name].text, found[name].first) == (alone.text, alone.first)
            assert found[name].kl == pytest.approx(alone.kl, abs=1e-5)


def test_answers_are_those_of_a_trial(loaded, samples):
    _, tokenizer, layout = loaded
    name = str(loaded[0].config.name_or_path)
    for spec in ("window(block=16, local=0)", "dense(block=16)"):
        trial = Trial(name, samples=2, seed=5, passages=4, sparse=spec, chunk=48, max_new_tokens=4, timed=1, batch=2)
        _, rows = trial.run_each(loaded=loaded)
        prompts = layout.prompts(samples, tokenizer)
        ours = [compare(loaded, p, {"a": sparse.named(spec)}, 48, 4, heads=False)["a"] for p in prompts]
        assert [found.text for found in ours] == [row["answer"] for row in rows]
        assert ours[0].heads == () and set(ours[0].measures()) == {"kl", "agree", "first"}


def test_a_chunk_smaller_than_a_tile_is_refused_before_any_work(loaded, samples):
    _, tokenizer, layout = loaded
    (prompt, _) = layout.prompts(samples, tokenizer)
    methods = {"a": sparse.named("window(block=16)"), "b": sparse.named("window(block=64)")}
    with pytest.raises(BadInput, match="chunk 32 is smaller than a tile"):
        compare(loaded, prompt, methods, 32)
