"""Fidelity to full attention: teacher-forced likelihood, KL and agreement, of one method and of many."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests import tiny
from workbench import data, models
from workbench.core.plan import Pass
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.trials import trial_measures
from workbench.experiments.trials.trial import Trial
from workbench.methods import finish, generation
from workbench.methods.config import MethodConfig
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.paged import answers
from workbench.metrics import cost, fidelity

METHODS = {
    "full": {"mode": "full"},
    "in chunks": {"mode": "full", "chunk": 64},
    "reuse": {"mode": "block"},
    "naive": {"mode": "block", "positions": "naive"},
    "all recomputed": {"mode": "block", "prepare": "after_system", "select": "random", "ratio": 1.0},
    "query_guided": {"mode": "block", "select": "query_guided"},
    "superposition": {"mode": "superposition(paths=2)"},
    "ape": {"mode": "block", "positions": "shared", "prepare": "after_system", "attend": "ape(temperature=0.5)"},
}
TOKENS = 6  # of an answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model whose attention is not all but uniform, so that what a row sees is felt."""
    return tiny.checkpoint(tmp_path_factory.mktemp("models") / "sharp", initializer_range=0.2)


@pytest.fixture(scope="module")
def loaded(folder):
    return models.load(folder)


@pytest.fixture(scope="module")
def samples():
    return data.load("lab", 5, 0, 3)


def asked(folder, samples, batch=3, **given):
    """A trial of samples on a model."""
    return Trial(str(folder), samples, max_new_tokens=TOKENS, batch=batch, timed=1, **given)


@pytest.fixture(scope="module")
def tried(folder, loaded, samples):
    return {name: asked(folder, samples, **given).run_each(loaded=loaded) for name, given in METHODS.items()}


@pytest.fixture(scope="module")
def rows(tried):
    return {(name, row["id"]): row for name, (_, made) in tried.items() for row in made}


def of(rows, method):
    return [row for (name, _), row in rows.items() if name == method]


@pytest.mark.parametrize("method", ["full", "in chunks", "all recomputed"])
def test_what_computes_every_token_is_full_attention(rows, method):
    for row in of(rows, method):
        assert row["kl"] <= 1e-6 and row["kl_gold"] <= 1e-6 and row["kl_first"] <= 1e-6
        assert row["agree"] == row["agree_gold"] == row["agree_first"] == 1
        assert row["nll"] == pytest.approx(row["nll_full"], abs=1e-5)
        assert row["answer"] == rows["full", row["id"]]["answer"] and row["em"] == row["full_em"]


@pytest.mark.parametrize("method", ["reuse", "naive", "query_guided", "superposition"])
def test_what_leaves_tokens_out_is_not(rows, method):
    assert all(row["kl"] > 1e-6 and row["kl_first"] > 0 for row in of(rows, method))
    assert all(0 <= row["agree"] <= 1 for row in of(rows, method))


def test_likelihood_is_that_of_one_forward_pass_of_plain_transformers(folder, loaded, rows, samples):
    _, tokenizer, layout = loaded
    plain = AutoModelForCausalLM.from_pretrained(folder)
    for sample in samples:
        prompt = layout.prompt(sample, tokenizer)
        answer = tokenizer(layout.answer.format(answer=sample.answers[0]), add_special_tokens=False)["input_ids"]
        whole = torch.cat((prompt.tokens, torch.tensor(answer)))[None]
        with torch.no_grad():
            logits = plain(whole).logits[0, len(prompt) - 1 : -1]
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(answer))
        assert rows["full", sample.id]["nll"] == pytest.approx(float(expected), abs=1e-4)


def test_divergence_is_that_of_what_decoding_would_see(loaded, samples):
    """KL of the second token: by hand, from one more row over the method's own cache."""
    model, tokenizer, layout = loaded
    prompt = layout.prompt(samples[0], tokenizer)
    known = fidelity.reference(model, tokenizer, [prompt], [()], 2)
    method = Reuse()
    ready = method.begin(model, [prompt])
    (row,) = fidelity.compare(model, ready, finish(model, ready), known)
    again = method.begin(model, [prompt])
    first = finish(model, again)[0]
    predicted = fidelity.predict(model, again, [first], [known[0].own])[0]
    p, q = known[0].logits.log_softmax(-1), predicted.log_softmax(-1)
    assert row["kl"] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), abs=1e-6)
    assert row["kl_first"] == pytest.approx(float((p[0].exp() * (p[0] - q[0])).sum()), abs=1e-6)


def test_the_own_answer_is_the_greedy_one_and_its_end(loaded, samples):
    model, tokenizer, layout = loaded
    prompts = layout.prompts(samples[:2], tokenizer)
    known = fidelity.reference(model, tokenizer, prompts, [(), ()], TOKENS)
    for prompt, one in zip(prompts, known, strict=True):
        request = fidelity.predict(model, *_full(model, prompt), [one.own])[0]
        assert tuple(request.argmax(-1).tolist()) == one.own and len(one.own) <= TOKENS


def _full(model, prompt):
    ready = Full().begin(model, [prompt])
    return ready, finish(model, ready)


def test_an_answer_that_ends_at_once_is_one_token(loaded, samples, monkeypatch):
    model, tokenizer, layout = loaded
    prompt = layout.prompt(samples[0], tokenizer)
    likeliest = fidelity.reference(model, tokenizer, [prompt], [()], 1)[0].own
    monkeypatch.setattr(model.generation_config, "eos_token_id", likeliest[0])
    (known,) = fidelity.reference(model, tokenizer, [prompt], [()], 4)
    assert known.own == likeliest and known.text == "" and len(known.logits) == 1
    (row,) = fidelity.compare(model, *_full(model, prompt), [known])
    assert row["kl"] == row["kl_first"] <= 1e-6 and row["agree"] == 1
    monkeypatch.setattr(trial_measures, "_KEPT", type(trial_measures._KEPT)())  # references of this end alone
    _, (silent,) = asked("tiny", samples[:1]).run_each(loaded=loaded)
    assert silent["answer"] == "" and silent["em"] == 0 == silent["full_em"]


def test_a_sample_without_an_answer_has_divergence_and_agreement_only(folder, loaded, samples):
    nameless = [replace(samples[0], answers=()), samples[1]]
    _, (without, with_answer) = asked(folder, nameless, mode="block").run_each(loaded=loaded)
    for name in ("nll", "nll_full", "kl_gold", "agree_gold", "em", "f1", "full_em"):
        assert without[name] is None and with_answer[name] is not None
    assert without["kl"] > 0 and without["nll_own"] > 0 and without["answer"]


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_predicted_over_pages_as_over_copies_of_them(method, loaded, samples, monkeypatch):
    model, tokenizer, layout = loaded
    prompts, gold = layout.prompts(samples, tokenizer), fidelity.gold_answers(samples, layout, tokenizer)
    known = fidelity.reference(model, tokenizer, prompts, gold, TOKENS)
    chosen, params = MethodConfig(**METHODS[method]).method(), SamplingParams(4 * TOKENS)
    copied, paged = (
        generation.answer(model, tokenizer, prompts, chosen, None, params, engine=engine)
        for engine in ("contiguous", "paged")
    )
    expected = fidelity.compared(fidelity.predictor(model, copied), known)
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "gather", None)  # nothing is copied out of the pages
        patch.setattr(answers, "FORCED", 2 * TOKENS)  # in several steps
        for _ in range(2):
            for row, theirs in zip(fidelity.compared(fidelity.predictor(model, paged), known), expected, strict=True):
                assert row == pytest.approx(theirs, abs=1e-4)
    paged.ready[:] = []  # read: the pages are given back
    assert paged.force([(1, 2)] * len(prompts)) is None


def test_an_answer_that_pages_have_no_room_for_is_predicted_over_a_copy(loaded, samples):
    model, tokenizer, layout = loaded
    prompts, longer = layout.prompts(samples[:2], tokenizer), [tuple(range(9)), (1,)]
    found = generation.answer(model, tokenizer, prompts, Reuse(), None, SamplingParams(2), engine="paged")
    expected = generation.answer(model, tokenizer, prompts, Reuse(), None, SamplingParams(2), engine="contiguous")
    for one, other in zip(*(fidelity.predictor(model, each)(longer) for each in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_rows_do_not_depend_on_the_batch(folder, loaded, samples, rows):
    for row in asked(folder, samples, batch=1, **METHODS["naive"]).run_each(loaded=loaded)[1]:
        for name in fidelity.FIELDS:
            assert row[name] == pytest.approx(rows["naive", row["id"]][name], abs=1e-4)


def test_passes_of_the_selector_are_charged(tried, loaded, samples):
    _, tokenizer, layout = loaded
    question = sum(len(layout.prompt(sample, tokenizer).question) for sample in samples) / len(samples)
    plain, guided = tried["reuse"][0], tried["query_guided"][0]
    assert plain.rows_charged == question
    assert guided.rows_charged > guided.prompt_tokens - guided.rows_reused > question
    assert guided.flops > plain.flops


def test_a_pass_of_few_layers_counts_for_its_share():
    assert cost.rows_charged((Pass(range(8), 8, 1), Pass([8, 9], 10)), 4) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_on_the_accelerator_are_those_of_the_cpu(folder, samples, rows):
    for name, given in METHODS.items():
        for row in asked(folder, samples, device="cuda", dtype="float32", **given).run_each()[1]:
            for score in ("nll", "kl", "kl_first", "nll_full"):
                assert row[score] == pytest.approx(rows[name, row["id"]][score], abs=0.02)
    for row in asked(folder, samples, device="cuda", dtype="bfloat16").run_each()[1]:
        assert row["kl"] <= 1e-6
