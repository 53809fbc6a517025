"""Attention from the question over pages: the scores of an assembled cache, without one."""

import pytest
import torch

from tests.random_models import model_of, prompt_of
from workbench.core.errors import BadInput
from workbench.engine import attention_maps
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages import paged_question
from workbench.engine.pages.paged_pool import Pool

PROMPT = prompt_of(4, 9, 7, 12, 5)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request):
    return model_of(request.param)


@pytest.fixture
def runner(model):
    return Runner(model, Pool(model, 12, size=8, kernels=False))


@pytest.mark.parametrize("layers", ["last", "all", (0, -1)])
@pytest.mark.parametrize("last", [None, 1, 3])
@pytest.mark.parametrize("over", ["block", "documents", "context"])
def test_scores_over_pages_are_those_over_an_assembled_cache(model, runner, layers, last, over):
    kv = assemble(model, PROMPT, encode_many(model, PROMPT.context))
    (wanted,) = attention_maps.from_question(model, [PROMPT], [kv], layers, last, over)
    cached = runner.pool.encode(model, PROMPT.context)
    free, question = runner.pool.free, PROMPT.tokens[PROMPT.question]
    found = paged_question.from_question(runner, cached, question, layers, last, over=over)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    assert runner.pool.free == free, "the question's pages are given back"


def test_blocks_that_stand_where_they_were_encoded_are_not_rerotated(model, runner):
    system, passage = PROMPT.context[:2]
    cached = [runner.pool.put(kv) for kv in encode_many(model, [system, passage], [(), (system,)])]
    assert paged_question.Places.of(runner.pool, cached).shift is None
    assert paged_question.Places.of(runner.pool, [*cached, cached[0]]).shift is not None


def test_a_long_question_is_scored_in_parts(model, runner, monkeypatch):
    cached, question = runner.pool.encode(model, PROMPT.context), PROMPT.tokens[PROMPT.question]
    whole = paged_question.from_question(runner, cached, question, "all")
    monkeypatch.setattr(attention_maps, "ELEMENTS", 1)
    torch.testing.assert_close(paged_question.from_question(runner, cached, question, "all"), whole)


def test_a_pool_without_room_for_the_question_is_refused_and_left_as_it_was(model):
    pool = Pool(model, 2, size=8, kernels=False)
    cached = pool.encode(model, PROMPT.context[:1])
    with pytest.raises(BadInput, match="0 of the pool are free"):
        paged_question.from_question(Runner(model, pool), cached, PROMPT.tokens[PROMPT.question])
    assert pool.free == 0


def test_queries_are_kept_for_the_layers_that_are_asked_for_and_prefill_is_what_it_was(model, runner):
    cached, question = runner.pool.encode(model, PROMPT.context), PROMPT.tokens[PROMPT.question]
    plain = runner.prefill([runner.pool.open(cached, len(question))], [question])
    logits, queries = runner.prefill_queries([runner.pool.open(cached, len(question))], [question], (0, 2))
    assert torch.equal(logits, plain) and sorted(queries) == [0, 2]
    assert all(x.shape == (1, 4, len(question), 16) for x in queries.values())
