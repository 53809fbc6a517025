"""Methods: what they compute and reuse, and superposition against its definition."""

import pytest
import torch

from tests.random_models import Letters, model_of, prompt_of
from tests.refusals import refused
from workbench.core.blocks import Block, Prompt
from workbench.core.masks import MaskRule
from workbench.core.plan import Plan
from workbench.core.rope import rotate
from workbench.engine.assembly import empty
from workbench.engine.attention_backends import choice
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill, prefill_many
from workbench.methods.generation import first_token, generate
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.select.random import RandomTokens
from workbench.models.spec import attach
from workbench.store import MemoryStore

MODEL, LETTERS = model_of("qwen3"), Letters()
PROMPT = prompt_of(6, 9, 5, 12, 4)
EVEN = prompt_of(6, 7, 7, 7, 4, seed=3)  # documents of one length: equilibrium moves nothing within a path


@torch.no_grad()
def logits_of(start):
    (step,) = prefill_many(MODEL, [start.request], logits_to_keep=1)
    return step.logits[-1]


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_a_ratio_counts_document_tokens_and_the_question_is_extra(ratio):
    (start,) = Reuse(prepare=AfterSystem(), select=RandomTokens(), ratio=ratio).begin(MODEL, [PROMPT])
    documents = len(PROMPT) - len(PROMPT.question) - len(PROMPT.blocks[0])
    assert start.computed == round(ratio * documents) + len(PROMPT.question)
    assert start.computed + start.reused == len(PROMPT)
    assert len(start.passes[-1].rows) == start.computed


def test_superposition_reads_a_document_for_its_prior_once():
    method = Superposition(paths=1)
    (first,), (again,) = (method.begin(MODEL, [PROMPT]) for _ in range(2))
    documents = sum(map(len, PROMPT.context[1:]))
    assert first.computed - again.computed == documents == again.reused - first.reused
    assert torch.equal(first.request.tokens, again.request.tokens) and len(again.passes) < len(first.passes)


def superposed(prompt, kept):
    """Superposition by definition, documents of one length: one sequence with shared positions and a mask of paths."""
    system, *documents = prompt.context
    asked, last = prompt.blocks[-1].tokens[:-1], prompt.blocks[-1].tokens[-1]
    tokens, position, path = [*system.tokens], [*range(len(system))], [-1] * len(system)
    for i in kept:
        body = [*documents[i].tokens, *asked]
        tokens, path = tokens + body, path + [i] * len(body)
        position += [len(system) + j for j in range(len(body))]
    tokens, position, path = [*tokens, last], [*position, max(position) + 1], [*path, -2]
    of = torch.tensor(path)
    sees = (of[:, None] == of) | (of == -1) | (of == -2)[:, None]
    causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    MODEL.set_attn_implementation("sdpa")
    with torch.no_grad():
        out = MODEL(
            torch.tensor(tokens)[None],
            attention_mask=(sees & causal)[None, None],
            position_ids=torch.tensor(position)[None],
            use_cache=False,
        )
    return out.logits[0, -1]


def test_superposition_is_a_mask_of_paths_over_shared_positions():
    (start,) = Superposition(paths=3, prior=False).begin(MODEL, [EVEN])
    torch.testing.assert_close(logits_of(start), superposed(EVEN, [0, 1, 2]), atol=2e-5, rtol=1e-4)
    (start,) = Superposition(paths=3, prior=True).begin(MODEL, [EVEN])
    torch.testing.assert_close(logits_of(start), superposed(EVEN, [0, 1, 2]), atol=2e-5, rtol=1e-4)


def test_paths_by_one_kernel_call_a_layer_are_those_path_by_path(monkeypatch):
    prompt = prompt_of(6, 20, 5, 130, 4)
    store = MemoryStore()
    (expected,) = Superposition(paths=3, prior=False).begin(MODEL, [prompt], store)
    wanted, launched = logits_of(expected), []
    kernel = choice.kernel("question_attention")
    monkeypatch.setattr(choice, "backend_for", lambda problem: choice.backend_named("question_attention"))
    monkeypatch.setattr(
        kernel, "launch", lambda *given, of=kernel.launch, **more: launched.append(1) or of(*given, **more)
    )
    (start,) = Superposition(paths=3, prior=False).begin(MODEL, [prompt], store)
    assert len(launched) == MODEL.config.num_hidden_layers
    monkeypatch.undo()
    assert torch.equal(start.request.tokens, expected.request.tokens)
    torch.testing.assert_close(logits_of(start), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prior", [False, True])
def test_the_paths_that_are_kept_have_the_highest_posterior(prior):
    system, *documents = EVEN.context
    asked = EVEN.blocks[-1].tokens[:-1]
    scores = []
    for document in documents:
        tokens = torch.tensor([*system.tokens, *document.tokens, *asked])
        whole = prefill(MODEL, tokens, Plan(torch.arange(len(tokens))), empty(MODEL, len(tokens))).logits
        said = whole[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        body = said[len(system) : len(system) + len(document) - 1]
        scores.append(float(said[len(system) + len(document) :].sum() + (body.mean() if prior else 0)))
    best = max(range(len(documents)), key=lambda i: scores[i])
    (start,) = Superposition(paths=1, prior=prior).begin(MODEL, [EVEN])
    torch.testing.assert_close(logits_of(start), superposed(EVEN, [best]), atol=2e-5, rtol=1e-4)


def test_documents_of_different_lengths_end_at_one_position():
    """Seen from the last token, the last keys of all documents stand equally far away."""
    prompt = prompt_of(4, 3, 9, 3, seed=5)
    short, long = prompt.context[1:]
    (start,) = Superposition(paths=2, prior=False).begin(MODEL, [prompt])
    kv, span = start.request.kv, 2 / (1 / 3 + 1 / 9)
    cached = encode_many(MODEL, [short, long], [[prompt.blocks[0]]] * 2)
    end = len(start.request.tokens) - 1 - (len(prompt.blocks[-1]) - 1)  # where the questions begin
    facts = attach(MODEL)
    for block, alone, at in ((short, cached[0], 4), (long, cached[1], 4 + len(short))):
        step = span / len(block)
        move = end - span + step * torch.arange(len(block)).double() - (4 + torch.arange(len(block)))
        expected = rotate(alone.keys[0], move, facts.inv_freq[0], facts.pairing)
        torch.testing.assert_close(kv.keys[0][:, at : at + len(block)], expected, atol=1e-5, rtol=1e-5)


def test_superposition_reuses_documents_unless_the_prior_is_wanted():
    store = MemoryStore()
    (start,) = Superposition(prior=False).begin(MODEL, [PROMPT], store)
    assert (start.computed, start.reused) == (3 * 3 + 1, 6 + 9 + 5 + 12)
    (start,) = Superposition(prior=True).begin(MODEL, [PROMPT], store)
    assert (start.computed, start.reused) == (3 * 3 + 1 + 26, 6) and store.stats.hits == 4


def test_answers_of_every_method_begin_with_its_first_token():
    for mode in (
        "full",
        "block",
        "superposition",
        Full(lambda prompt: MaskRule(lambda r, c: (c <= r) & (r - c < 9), "near")),
    ):
        (answer,) = generate(MODEL, LETTERS, [PROMPT], mode, max_new_tokens=1)
        assert answer.tokens == (first_token(MODEL, PROMPT, mode),)


BAD = {
    "no path": (lambda: Superposition(paths=0), "paths is 0: at least 1"),
    "no document": (lambda: Superposition().begin(MODEL, [prompt_of(4, 3)]), "needs a system block, a document"),
    "a question of one token": (
        lambda: Superposition().begin(MODEL, [Prompt((Block((1,)), Block((2,)), Block((3,))))]),
        "question of at least two tokens",
    ),
    "ratio": (lambda: Reuse(ratio=1.5), "ratio 1.5"),
    "positions": (lambda: Reuse(positions="moved"), "unknown positions 'moved': allowed are re-encoded, naive"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence(what):
    call, sentence = BAD[what]
    refused(sentence, call)
