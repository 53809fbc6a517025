"""Timelines and masks are read off plans."""

import pytest
import torch

from tests.random_models import model_of, prompt_of
from workbench.core.blocks import Block, Prompt
from workbench.data.retrieval_corpus import Corpus
from workbench.metrics.kv.token_stages import published, token_stages
from workbench.metrics.published_numbers import FUSION_FIGURE_6
from workbench.plots.tokens import plans


@pytest.fixture(scope="module")
def planned():
    prompt = prompt_of(3, 20, 20, 20, 4)
    corpus = Corpus(prompt.context[1:], tuple(f"passage {i}" for i in range(3)))
    return prompt, token_stages(model_of(), prompt, published(corpus, ratio=0.25))


def test_full_attention_computes_everything_and_full_reuse_the_question(planned):
    prompt, found = planned
    full, reuse = found["Full attention"], found["Full Reuse"]
    assert full.online.all() and not full.offline.any() and full.rows == len(prompt) and not full.encoded
    assert reuse.online.nonzero().flatten().tolist() == prompt.question.tolist()
    assert reuse.offline.sum() == reuse.encoded == prompt.starts[-1]


def test_selectors_compute_their_share_and_what_they_score_by(planned):
    prompt, found = planned
    blend, fusion = found["CacheBlend"], found["FusionRAG"]
    again = 0.25 * (prompt.starts[-1] - prompt.starts[1])
    for one in (blend, fusion):
        assert one.online.sum() == again + len(prompt.question)
    assert blend.scored[: prompt.starts[-1]].all() and not fusion.scored[: prompt.starts[-1]].any()
    assert fusion.encoded > blend.encoded, "chunks are encoded again behind their neighbours"


def test_the_mask_of_cache_fusion_is_the_papers_example():
    prompt = Prompt(tuple(map(Block, FUSION_FIGURE_6["blocks"])))
    fig = plans.fusion_mask(prompt, FUSION_FIGURE_6["chosen"])
    assert [int(n) for n in (torch.as_tensor(fig.data[0].z) > 0).sum(1)] == list(FUSION_FIGURE_6["seen"])
