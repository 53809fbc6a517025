"""Fused layers: one compilation for all of them, the same results, and the model as before afterwards."""

import pytest
import torch

from tests.random_models import model_of, prompt_of
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.engine.assembly import assemble, empty
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.layers.compile import fused
from workbench.engine.pages.paged_pool import Pool

PROMPT = prompt_of(20, 13, 6)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_layers_share_compilations_and_compute_the_same(name):
    model, compiled = model_of(name, num_hidden_layers=6), []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    def answers():
        kv = assemble(model, PROMPT, encode_many(model, PROMPT.context))
        step = prefill(model, PROMPT.tokens, Plan(PROMPT.question), kv)
        whole = prefill(model, PROMPT.tokens, Plan(torch.arange(len(PROMPT))), empty(model, len(PROMPT)))
        return torch.cat((step.logits, whole.logits))

    expected = answers()
    with fused(model, backend):
        first = answers()
        count = len(compiled)
        again = answers()
    assert 0 < count == len(compiled) <= 4 * 3 * 2, "three numbers of rows, few pieces of a layer each, for all layers"
    for found in (first, again, answers()):
        torch.testing.assert_close(found, expected)
    assert len(compiled) == count, "the model is as before"


def test_layers_are_compiled_for_graphs():
    model = model_of()
    with pytest.raises(BadInput, match="graphs"):
        Runner(model, Pool(model, 9, 16), graphs=False, compile=True)
