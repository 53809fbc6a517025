"""Decoding: as the stock model does it, batched as one by one, streaming, stopping, sampling."""

from time import perf_counter

import pytest
import torch

from tests.random_models import VOCABULARY, Letters, model_of, prompt_of
from tests.refusals import refused
from workbench.core.masks import block_attention, causal, visible, window
from workbench.core.plan import Plan
from workbench.engine.assembly import empty
from workbench.engine.decoding import decode, text_of
from workbench.engine.forward import prefill
from workbench.methods.generation import generate
from workbench.methods.modes.full import Full
from workbench.store import MemoryStore

MODEL, LETTERS = model_of("qwen3", eos_token_id=VOCABULARY - 1), Letters()
PROMPTS = [prompt_of(5, 7, 3, seed=1), prompt_of(9, 2, seed=2), prompt_of(4, 6, 8, 2, seed=3)]


def ready(prompt, rule=causal):
    kv = empty(MODEL, len(prompt))
    return kv, prefill(MODEL, prompt.tokens, Plan(torch.arange(len(prompt)), rule), kv).logits


def tokens_of(steps, request=0):
    return [step[request] for step in steps if step[request] is not None]


def stock_answer(model, prompt, count):
    model.set_attn_implementation("sdpa")
    answer = model.generate(prompt.tokens[None], max_new_tokens=count, do_sample=False)[0, len(prompt) :].tolist()
    return answer[:-1] if answer[-1] == VOCABULARY - 1 else answer


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "glm4"])
def test_greedy_answers_are_those_of_the_stock_model(name):
    model = model_of(name, eos_token_id=VOCABULARY - 1)
    expected = [stock_answer(model, prompt, 30) for prompt in PROMPTS]
    answers = generate(model, LETTERS, PROMPTS, max_new_tokens=30)
    assert [list(answer.tokens) for answer in answers] == expected
    assert [(a.rows_computed, a.rows_reused) for a in answers] == [(len(p), 0) for p in PROMPTS]


def test_the_time_to_the_first_token_ends_before_the_next_one():
    model, moments = model_of(), []
    generate(model, LETTERS, PROMPTS[:1], max_new_tokens=1)  # the model is probed when it is first used
    model.get_output_embeddings().register_forward_hook(lambda *_: moments.append(perf_counter()))
    begin = perf_counter()
    answer = generate(model, LETTERS, PROMPTS[:1], max_new_tokens=5)[0]
    assert len(moments) == 5 and 0 < answer.ttft <= moments[1] - begin


def test_an_answer_that_ends_at_once_took_its_time_too():
    first = generate(model_of(), LETTERS, PROMPTS[:1], max_new_tokens=1)[0].tokens[0]
    (answer,) = generate(model_of(eos_token_id=first), LETTERS, PROMPTS[:1], max_new_tokens=5)
    assert answer.tokens == () and answer.ttft > 0


@pytest.mark.parametrize("mode", ["full", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_is_answered_as_one_by_one(mode, temperature):
    settings = {"mode": mode, "temperature": temperature, "top_p": 0.9, "max_new_tokens": 12, "stop": ("##", "Z")}
    together = generate(MODEL, LETTERS, PROMPTS, seed=[5, 6, 5], **settings)
    alone = [generate(MODEL, LETTERS, [p], seed=s, **settings)[0] for p, s in zip(PROMPTS, (5, 6, 5), strict=True)]
    assert together == alone and generate(MODEL, LETTERS, PROMPTS[::-1], seed=[5, 6, 5], **settings) == together[::-1]


def test_block_mode_computes_the_question_only_and_answers_as_block_attention_in_place():
    store = MemoryStore()
    reused = generate(MODEL, LETTERS, PROMPTS, "block", store=store, max_new_tokens=10)
    in_place = generate(MODEL, LETTERS, PROMPTS, Full(block_attention), max_new_tokens=10)
    assert [a.tokens for a in reused] == [a.tokens for a in in_place]
    assert [a.rows_computed for a in reused] == [3, 2, 2] and [a.rows_reused for a in reused] == [12, 9, 18]
    assert generate(MODEL, LETTERS, PROMPTS, "block", store=store, max_new_tokens=10) == reused
    assert (store.stats.misses, store.stats.hits) == (6, 6)


def test_any_rule_holds_for_what_is_generated_too():
    kv, logits = ready(PROMPTS[0], window(3))
    answer = tokens_of(decode(MODEL, [kv], [logits], 6, sees=window(3)))
    tokens = torch.tensor([*PROMPTS[0].tokens.tolist(), *answer])
    rows = torch.arange(len(tokens))
    MODEL.set_attn_implementation("sdpa")
    with torch.no_grad():
        dense = MODEL(tokens[None], attention_mask=visible(window(3), rows, rows)[None, None]).logits[0]
    assert dense[len(PROMPTS[0]) - 1 : -1].argmax(-1).tolist() == answer


def test_tokens_stream_one_step_at_a_time_and_the_cache_grows_in_place():
    kv, logits = ready(PROMPTS[0])
    kv.reserve(20)
    place = kv.keys[0].data_ptr()
    stream = decode(MODEL, [kv], [logits], 20, temperature=1.0)
    first = next(stream)
    assert isinstance(first[0], int) and len(kv) == len(PROMPTS[0])
    next(stream)
    assert len(kv) == len(PROMPTS[0]) + 1 and kv.keys[0].data_ptr() == place


def test_requests_of_a_batch_end_each_at_its_own_time_at_a_stop_string_over_two_tokens():
    def answers(stop):
        pairs = [ready(prompt) for prompt in PROMPTS]
        kvs, logits = [kv for kv, _ in pairs], [x for _, x in pairs]
        return list(decode(MODEL, kvs, logits, 8, temperature=3.0, seed=2, stop=stop, tokenizer=LETTERS))

    free = answers(())
    wanted = [tokens_of(free, i) for i in range(3)]
    assert LETTERS.decode(wanted[1]).count(LETTERS.decode(wanted[1][2:4])) == 1 and wanted[1][3] not in wanted[1][:3]
    stop = LETTERS.decode(wanted[1][2:4])
    steps = answers(("never this", stop))
    assert tokens_of(steps, 1) == wanted[1][:4] and [step[1] for step in steps[4:]] == [None] * 4
    assert text_of(LETTERS, tokens_of(steps, 1), ("never this", stop)) == LETTERS.decode(wanted[1][:2])
    assert [tokens_of(steps, i) for i in (0, 2)] == [wanted[0], wanted[2]]


def test_the_end_of_text_is_not_streamed_and_ends_a_request():
    logits = torch.zeros(2, VOCABULARY)
    logits[0, VOCABULARY - 1] = logits[1, 7] = 9
    pairs = [ready(prompt) for prompt in PROMPTS[:2]]
    steps = list(decode(MODEL, [kv for kv, _ in pairs], logits, 3))
    assert all(step[0] is None for step in steps) and steps[0][1] == 7
    assert list(decode(MODEL, [ready(PROMPTS[0])[0]], logits[:1], 3)) == []


def test_draws_follow_the_temperature_and_stay_in_the_nucleus():
    probability = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = torch.full((VOCABULARY,), -1e9)
    logits[:4] = probability.log()

    def share(temperature, top_p):
        kv = empty(MODEL, 4)
        drawn = [next(decode(MODEL, [kv], [logits], 1, temperature, top_p, seed))[0] for seed in range(600)]
        return torch.bincount(torch.tensor(drawn), minlength=4) / 600

    torch.testing.assert_close(share(1.0, 1.0), probability, atol=0.06, rtol=0)
    torch.testing.assert_close(share(1.0, 0.7), torch.tensor([0.625, 0.375, 0, 0]), atol=0.06, rtol=0)
    torch.testing.assert_close(share(0.5, 1.0), probability**2 / (probability**2).sum(), atol=0.06, rtol=0)
    assert share(1.0, 0.01)[0] == 1 == share(0.0, 0.01)[0]


class Refusing:
    """A store that is not to be asked: bad input is refused before any work."""

    def get(self, key):
        raise AssertionError("work was done")

    put = get


(KV, LOGITS), REFUSING = ready(PROMPTS[0]), Refusing()
BAD = {
    "count": (lambda: decode(MODEL, [KV], [LOGITS], 0), "max_new_tokens 0"),
    "temperature": (lambda: decode(MODEL, [KV], [LOGITS], 1, temperature=-1), "temperature -1"),
    "top_p": (lambda: decode(MODEL, [KV], [LOGITS], 1, top_p=0), "top_p 0"),
    "stop without tokenizer": (lambda: decode(MODEL, [KV], [LOGITS], 1, stop="x"), "need the tokenizer"),
    "empty stop": (lambda: decode(MODEL, [KV], [LOGITS], 1, stop=("a", ""), tokenizer=LETTERS), "stop string is empty"),
    "logits": (lambda: decode(MODEL, [KV], [LOGITS, LOGITS], 1), "2 logits for 1 requests"),
    "seeds": (lambda: decode(MODEL, [KV], [LOGITS], 1, seed=[1, 2]), "2 seeds for 1 requests"),
    "rules": (lambda: decode(MODEL, [KV], [LOGITS], 1, sees=[]), "0 mask rules for 1 requests"),
    "one KV twice": (lambda: decode(MODEL, [KV, KV], [LOGITS] * 2, 1), "two requests share one KV"),
    "read-only": (lambda: decode(MODEL, [KV.clone().lock()], [LOGITS], 1), "read-only"),
    "one prompt over the context": (
        lambda: generate(MODEL, LETTERS, [*PROMPTS, prompt_of(510, 3)], "block", store=REFUSING),
        "513 tokens is over the model's context of 512",
    ),
    "options of decode": (
        lambda: generate(MODEL, LETTERS, PROMPTS, "block", store=REFUSING, temperature=-1),
        "temperature -1",
    ),
    "mode": (lambda: generate(MODEL, LETTERS, PROMPTS, "fast"), "unknown mode 'fast': allowed are full, block, super"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_when_called_not_when_streamed(what):
    call, sentence = BAD[what]
    refused(sentence, call)
