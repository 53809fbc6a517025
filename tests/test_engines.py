"""Answers over pages are those of contiguous KVs: every mode, selector, sparse choice, option; and who chooses."""

import copy
import gc
import pickle
from dataclasses import dataclass

import pytest
import torch

from tests.random_models import Letters, block_of, model_of, prompt_of
from tests.refusals import refused
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.masks import block_attention, window
from workbench.engine.device_rows import DeviceRows
from workbench.engine.pages.page_allocator import NoPages
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods import engines
from workbench.methods import select as selectors
from workbench.methods.engines import choose_engine, pages_of
from workbench.methods.generation import answer, generate, stream
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.paged import answers
from workbench.methods.paged.answers import PagedAnswers
from workbench.methods.paged.request import requests_of
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.sparse.bfla import Bfla
from workbench.store import MemoryStore

MODEL = model_of()
BFLA = Bfla(block=32, tile=16, flat=16, local=1)
BLOCKS = [block_of(n, seed=n) for n in (9, 70, 33, 16)]
PROMPTS = [
    Prompt((BLOCKS[0], BLOCKS[1], BLOCKS[2], block_of(6, 50))),
    Prompt((BLOCKS[0], BLOCKS[2], BLOCKS[3], block_of(3, 51))),
    Prompt((BLOCKS[0], BLOCKS[3], BLOCKS[3], BLOCKS[1], block_of(11, 52))),
]


def both(mode, prompts=PROMPTS, **options):
    options = {"max_new_tokens": 12} | options
    modes = {name: copy.deepcopy(mode) for name in ("contiguous", "paged")}  # neither knows what the other remembers
    return [generate(MODEL, Letters(), prompts, mode, engine=name, **options) for name, mode in modes.items()]


SELECTORS = [name for name in selectors.names() if name != "none"]
METHODS = {
    "full": Full(),
    "full block": Full(block_attention),
    "full sparse": Full(sparse=BFLA),
    "full chunked": Full(chunk=32),
    "block": Reuse(),
    "naive": Reuse("naive"),
    "after system": Reuse(prepare=AfterSystem()),
    "shared": Reuse("shared"),
    "shared after system": Reuse("shared", prepare=AfterSystem()),
    "block sparse": Reuse(sparse=BFLA),
    "block sparse chosen": Reuse(select=selectors.from_spec("query_guided"), ratio=0.3, sparse=BFLA, chunk=32),
    "superposition": Superposition(paths=2),
    "fresh": Reuse(select=selectors.from_spec("kv_deviation(part=v, fresh=True, system=0)"), ratio=0.2),
    "naive chosen": Reuse("naive", select=selectors.from_spec("query_guided"), ratio=0.3),
    "whole prompt": Reuse(select=selectors.from_spec("query_guided(softmax=prompt)"), ratio=0.3),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_tokens_rows_and_receipts_of_a_method_are_those_of_the_other_engine(method):
    plain, paged = both(method)
    assert paged == plain
    for one, other in zip(plain, paged, strict=True):
        assert one.receipt.blocks == other.receipt.blocks


@pytest.mark.parametrize("few", [1024, 8], ids=["in steps", "over copies"])
@pytest.mark.parametrize("name", SELECTORS)
def test_a_selector_chooses_over_pages_what_it_chooses_over_a_copy(name, few, monkeypatch):
    for module in ("request", "chosen_rows"):
        monkeypatch.setattr(f"workbench.methods.paged.{module}.LARGE", few)
    method = Reuse(select=selectors.from_spec(name), ratio=0.4)
    plain, paged = both(method)
    assert paged == plain


@dataclass(frozen=True)
class Given(selectors.Select):
    """Scores that repeat, with `always` on the first token."""

    always: float = 0.0

    def score(self, prompt):
        scores = torch.arange(prompt.starts[-1]) % 7
        return torch.cat((torch.tensor([self.always]), scores[1:].float()))


@pytest.mark.parametrize("always", [0.0, torch.inf], ids=["as the host", "unlike the host"])
def test_rows_that_the_device_selects_are_computed_before_the_host_knows_them_and_kept_if_it_selects_them(
    always, monkeypatch
):
    for module in ("request", "chosen_rows"):
        monkeypatch.setattr(f"workbench.methods.paged.{module}.LARGE", 8)
    began, later, compute_copied = [], [], answers._compute_copied
    compute = DeviceRows.compute
    monkeypatch.setattr(DeviceRows, "compute", lambda *x: began.append(x) or compute(*x))
    monkeypatch.setattr(answers, "_compute_copied", lambda *x: later.append(x) or compute_copied(*x))
    method = Reuse(select=Given(system=0, always=always), ratio=0.4)
    for tokens in (1, 12):
        plain, paged = both(method, PROMPTS[:1], max_new_tokens=tokens)
        assert paged == plain
    assert len(began) == 2 and len(later) == (2 if always else 0)


@pytest.mark.parametrize("mode", ["full", "block"])
def test_draws_and_stop_strings_are_those_of_the_other_engine(mode):
    drawn = both(mode, temperature=0.8, top_p=0.9, seed=[3, 4, 3])
    assert drawn[0] == drawn[1] and drawn[0] != both(mode)[0]
    said = both(mode)[0][0].text
    stopped = both(mode, stop=[said[4:6]])
    assert stopped[0] == stopped[1] and len(stopped[0][0].tokens) < 12


def test_a_stream_gives_the_tokens_of_every_prompt_in_order():
    for name in ("contiguous", "paged"):
        said = [[] for _ in PROMPTS]
        for number, token in stream(MODEL, Letters(), PROMPTS, "block", max_new_tokens=9, engine=name):
            said[number].append(token)
        assert [tuple(one) for one in said] == [one.tokens for one in both("block", max_new_tokens=9)[0]]


def test_a_stream_that_is_left_gives_its_pages_back():
    kept = pages_of(MODEL)
    running = stream(MODEL, Letters(), PROMPTS, "full", max_new_tokens=9, engine="paged")
    next(running)
    running.close()
    _, blocks = kept.of(MODEL, 1)
    assert blocks.available_pages == blocks.pool.pages - 1


def test_answers_end_where_the_context_ends_and_after_one_token():
    model = model_of(max_position_embeddings=160)
    prompts = [prompt_of(100, 50), prompt_of(100, 60)]
    assert [len(p) for p in prompts] == [150, 160]
    options = {"max_new_tokens": 30}
    plain, paged = (generate(model, Letters(), prompts, engine=e, **options) for e in ("contiguous", "paged"))
    assert plain == paged and [len(one.tokens) for one in paged] == [11, 1]
    assert len({tuple(one.tokens for one in both("block", max_new_tokens=1)[i]) for i in range(2)}) == 1


def test_a_kept_batch_has_its_keys_and_values_whenever_they_are_read():
    plain = answer(
        MODEL, Letters(), PROMPTS, Reuse(select=selectors.from_spec("first_k"), ratio=0.2), engine="contiguous"
    )
    paged = answer(MODEL, Letters(), PROMPTS, Reuse(select=selectors.from_spec("first_k"), ratio=0.2), engine="paged")
    held = answer(MODEL, Letters(), PROMPTS, Full(chunk=32), engine="paged")
    generate(MODEL, Letters(), [prompt_of(150, 12, seed=i) for i in range(18)], engine="paged", max_new_tokens=1)
    full = answer(MODEL, Letters(), PROMPTS, Full(), engine="contiguous")
    for expected, got in ((plain, paged), (full, held)):
        torch.testing.assert_close(torch.stack(got.logits), torch.stack(expected.logits), atol=1e-4, rtol=1e-4)
        for one, other, prompt in zip(expected.ready, got.ready, PROMPTS, strict=True):
            for x, y in zip(one.request.kv.tensors(), other.request.kv.tensors(), strict=True):
                torch.testing.assert_close(y[:, : len(prompt)], x[:, : len(prompt)], atol=1e-4, rtol=1e-4)
    _, blocks = pages_of(MODEL).of(MODEL, 1)
    assert blocks.available_pages == blocks.pool.pages - 1, "what was read gave its pages back"
    lost = answer(MODEL, Letters(), PROMPTS, Full(), engine="paged")
    assert blocks.available_pages < blocks.pool.pages - 1
    del lost
    gc.collect()
    pages_of(MODEL).sweep()
    assert blocks.available_pages == blocks.pool.pages - 1


def test_more_prompts_than_pages_wait_for_those_that_end(monkeypatch):
    monkeypatch.setattr(engines, "LEAST_TOKENS", 0)
    model = model_of()
    prompts = [prompt_of(60, 70, 8, seed=i) for i in range(7)]
    generate(model, Letters(), prompts[:1], "block", engine="paged", max_new_tokens=9)
    runner, _ = pages_of(model).of(model, 1)
    assert runner.pool.pages < 12
    plain, paged = (
        generate(model, Letters(), prompts, "block", engine=e, max_new_tokens=9) for e in ("contiguous", "paged")
    )
    assert plain == paged
    assert pages_of(model).of(model, 1)[0] is runner


def test_methods_and_options_run_side_by_side():
    store, requests = MemoryStore(), []
    methods = [Full(), Reuse(), Full(sparse=BFLA), Superposition(paths=2), Reuse()]
    options = [{}, {"temperature": 0.9, "seed": 7}, {}, {}, {"stop": "Z"}]
    for i, (method, more) in enumerate(zip(methods, options, strict=True)):
        requests += requests_of(MODEL, Letters(), [PROMPTS[i % 3]], method, store, SamplingParams(5 + 3 * i, **more))
    list(PagedAnswers(MODEL, requests, most=3).run())
    for i, (method, more) in enumerate(zip(methods, options, strict=True)):
        given = more | {"max_new_tokens": 5 + 3 * i, "engine": "contiguous"}
        (alone,) = generate(MODEL, Letters(), [PROMPTS[i % 3]], method, **given)
        assert tuple(requests[i].tokens) == alone.tokens


def test_one_place_chooses_the_engine_and_says_why():
    assert choose_engine(MODEL, Full()).name == "contiguous"
    assert "on cpu" in choose_engine(MODEL, Full()).reason
    assert str(choose_engine(MODEL, Full(), asked="paged")) == "paged: asked for by name"
    assert choose_engine(MODEL, Full(), asked="contiguous").reason == "asked for by name"
    narrow = model_of("mistral", sliding_window=32)
    refused("sliding window of 32", choose_engine, narrow, Full(), asked="paged")
    with pytest.raises(BadInput, match="rule of prompt 1"):
        blind = Full(lambda prompt: window(9) if prompt is PROMPTS[1] else block_attention(prompt))
        generate(MODEL, Letters(), PROMPTS, blind, engine="paged")
    with pytest.raises(BadInput, match="unknown engine 'quick': allowed are auto, paged, contiguous"):
        generate(MODEL, Letters(), PROMPTS, engine="quick")


def test_on_a_gpu_pages_are_taken_wherever_the_model_and_the_rule_allow(monkeypatch):
    monkeypatch.setattr(engines, "on_gpu", lambda device: True)
    assert choose_engine(MODEL, Reuse()).name == "paged"
    narrow = choose_engine(model_of("mistral", sliding_window=32), Reuse())
    assert narrow.name == "contiguous" and "sliding window" in narrow.reason
    odd = choose_engine(model_of(head_dim=264), Reuse())
    assert odd.name == "contiguous" and "head width is 264" in odd.reason


def test_a_pool_that_finds_no_memory_names_the_pages_and_auto_goes_on_without(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("nothing is left")

    model = model_of()
    monkeypatch.setattr(engines, "Pool", full)
    with pytest.raises(NoPages, match=r"no memory for a pool.* \d+ are missing"):
        generate(model, Letters(), PROMPTS, engine="paged", max_new_tokens=2)
    monkeypatch.setattr(engines, "on_gpu", lambda device: True)
    got = answer(model, Letters(), PROMPTS, Full(), params=SamplingParams(max_new_tokens=2))
    assert got.engine.startswith("contiguous: no memory for a pool")


def test_what_is_kept_of_a_model_is_not_copied_and_is_made_again_where_its_weights_have_moved():
    model = model_of()
    generate(model, Letters(), PROMPTS, engine="paged", max_new_tokens=2)
    runner, _ = pages_of(model).of(model, 1)
    other = copy.deepcopy(model)
    assert pages_of(other) is not pages_of(model)
    assert isinstance(pickle.loads(pickle.dumps(pages_of(model))), type(pages_of(model)))
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    assert pages_of(model).of(model, 1)[0] is not runner


def test_a_trial_by_pages_finds_what_a_trial_by_copies_finds(folder):
    given = {"model": str(folder), "samples": 5, "passages": 3, "batch": 3, "max_new_tokens": 6, "timed": 1}
    for more in ({"mode": "full"}, {"mode": "block", "select": "query_guided", "fidelity": False}):
        trials = [Trial(**given, **more, engine=name) for name in ("contiguous", "paged")]
        (plain, expected), (paged, rows) = (trial.run_each() for trial in trials)
        for one, other in zip(expected, rows, strict=True):
            assert {k: v for k, v in other.items() if isinstance(v, str | int)} == {
                k: v for k, v in one.items() if isinstance(v, str | int)
            }
        assert (paged.hit_rate, paged.rows_computed, paged.flops) == (plain.hit_rate, plain.rows_computed, plain.flops)
        assert paged.engine == "paged: asked for by name" and paged.trial["engine"] == "paged"
        assert Record.from_json(paged.to_json()) == paged
        assert plain.kl is None or abs(plain.kl - paged.kl) < 1e-4


def test_a_trial_that_names_no_engine_says_nothing_of_it():
    assert "engine" not in Trial("lab-full").settings()
    refused("engine 'fast'", Trial, "lab-full", engine="fast")


def test_damaged_weights_are_refused_by_both_engines():
    model = model_of()
    model.get_output_embeddings().weight.data[3] = torch.nan
    for engine in ("contiguous", "paged"):
        refused(
            "contain nan or infinity", generate, model, Letters(), PROMPTS, "block", max_new_tokens=3, engine=engine
        )
    _, blocks = pages_of(model).of(model, 1)
    assert blocks.available_pages == blocks.pool.pages - 1
