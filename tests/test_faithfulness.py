"""Faithfulness: exact on the lab corpus, and the mechanics of a model that judges."""

from dataclasses import replace

import pytest
import torch

from tests import tiny
from tests.refusals import refused
from workbench import data, models
from workbench.data.lab_corpus.facts import supported_answers
from workbench.data.sample import Passage, Sample
from workbench.metrics.faithfulness import LabJudge, ModelJudge, faithfulness, verdict
from workbench.models.spec import attach

ADA = (
    Passage("Ada Kelric", "Ada Kelric is a potter by trade. Nobody seems to remember why. She works for the Lantern."),
    Passage("Continued (the potter)", "She was born in the year 1950."),
    Passage("Lordex Mills", "Lordex Mills is also called the Lantern. It is based in Tamby. It opened in 1960."),
    Passage("Otto Dorman", "Otto Dorman works for Barova Labs. He was born in 1944."),
)


def about(question: str, *answers: str, ctxs=ADA) -> Sample:
    return Sample(question, answers or ("?",), ctxs, id="x")


@pytest.mark.parametrize(
    "question, answer, expected",
    [
        ("Who does Ada Kelric work for?", "the Lantern", "supported"),
        ("Who does Ada Kelric work for?", "Lordex Mills.", "supported"),
        ("Who does Ada Kelric work for?", "Barova Labs", "of another subject"),
        ("Who does Ada Kelric work for?", "Tamby", "in another place"),
        ("Who does Ada Kelric work for?", "Rosdex Group", "nowhere"),
        ("Who does Ada Kelric work for?", "", "nowhere"),
        ("Where is the employer of Ada Kelric based?", "Tamby", "supported"),
        ("When was Ada Kelric born?", "1950", "supported"),
        ("When was Ada Kelric born?", "195", "nowhere"),
        ("Who is older, Ada Kelric or Otto Dorman?", "Otto Dorman", "supported"),
        ("Who is older, Ada Kelric or Otto Dorman?", "Ada Kelric", "in another place"),
        ("Which passage comes first?", "Ada Kelric", "supported"),
        ("Which passage comes last?", "Ada Kelric", "in another place"),
        ("Where does Ada Kelric live?", "Tamby", "in another place"),
    ],
)
def test_a_verdict_says_where_an_answer_is_stated(question, answer, expected):
    assert verdict(about(question), answer) == expected


def test_what_is_not_retrieved_supports_nothing():
    question = "Where is the employer of Ada Kelric based?"
    assert supported_answers(about(question)) == ("Tamby",)
    assert supported_answers(about(question, ctxs=ADA[:2])) == () == supported_answers(about(question, ctxs=ADA[2:]))


def test_a_question_of_another_corpus_cannot_be_checked_exactly():
    refused("the lab corpus does not ask 'Why\\?'", lambda: LabJudge()([about("Why?")], ["because"]))


def test_faithfulness_is_the_mean_share_of_supported_claims():
    samples = data.load("lab", 30, 3, 5)
    right = [sample.answers[0] for sample in samples]
    assert faithfulness(LabJudge(), samples, right).mean == 1
    half = [answer if i % 2 else "Nobody Atall" for i, answer in enumerate(right)]
    found = faithfulness(LabJudge(), samples, half)
    assert found.mean == 0.5 and found.low < 0.5 < found.high and (found.n, found.claims) == (30, 30)
    silent = faithfulness(LabJudge(), samples, [""] * 30)
    assert (silent.mean, silent.claims) == (0, 0)
    graded = faithfulness(lambda *_: [[True, False], [True, True, True, False]], samples[:2], right[:2])
    assert graded.mean == (0.5 + 0.75) / 2
    refused("1 answers for 2 samples", lambda: faithfulness(LabJudge(), samples[:2], right[:1]))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    model, tokenizer, _ = models.load(tiny.checkpoint(tmp_path_factory.mktemp("models") / "tiny"))
    return model, tokenizer


def test_a_model_is_asked_what_is_claimed_and_whether_each_claim_holds(loaded, monkeypatch):
    model, tokenizer = loaded
    judge = ModelJudge(model, tokenizer, batch=2, max_new_tokens=12)
    samples = [about("Who does Ada Kelric work for?"), about("When?"), about("Where?")]
    claims = [["Ada works.", "Ada lives."], [], ["It is so."]]
    asked = []
    prompts = ModelJudge._prompts
    monkeypatch.setattr(ModelJudge, "list_claims", lambda *_: claims)
    monkeypatch.setattr(ModelJudge, "_prompts", lambda self, texts: asked.extend(texts) or prompts(self, texts))
    found = judge(samples, ["a", "", "b"])
    assert [len(one) for one in found] == [2, 0, 1] and len(asked) == 3
    assert "Statement: Ada lives." in asked[1] and ADA[2].text in asked[1] and asked[1].endswith("Answer:")
    assert found == ModelJudge(model, tokenizer, batch=8)(samples, ["a", "", "b"])


def test_the_verdict_is_the_more_probable_of_yes_and_no(loaded):
    model, tokenizer = loaded
    judge = ModelJudge(model, tokenizer, batch=2)
    prompts = ["Is it so? Answer:", "And this, is it so? Answer:", "Well:"]
    yes, no = (
        [tokenizer(s + w)["input_ids"][0] for s in ("", " ") for w in (v, v.capitalize())] for v in ("yes", "no")
    )
    both = set(yes) & set(no)
    direct = []
    model.set_attn_implementation("sdpa")
    for text in prompts:
        with torch.no_grad():
            odds = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1].softmax(0)
        direct.append(bool(sum(odds[list(set(yes) - both)]) > sum(odds[list(set(no) - both)])))
    attach(model)
    assert judge._entailed(prompts) == direct


def test_claims_are_lines_and_a_model_that_says_nothing_leaves_the_answer_itself(loaded, monkeypatch):
    model, tokenizer = loaded
    said = iter(["- one\n\n* two\n three", "  \n", "a\nb\nc\nd"])

    class Said:
        def __init__(self, text):
            self.text = text

    monkeypatch.setattr(
        "workbench.metrics.faithfulness.generate", lambda m, t, prompts, **_: [Said(next(said)) for _ in prompts]
    )
    judge = ModelJudge(model, tokenizer, most=3, batch=2)
    assert judge.list_claims(["q1", "q2", "q3", "q4"], ["x", " ", "y", "z"]) == [
        ["one", "two", "three"],
        [],
        ["q3 y"],
        ["a", "b", "c"],
    ]


def test_a_random_model_judges_end_to_end_and_again_the_same(loaded):
    model, tokenizer = loaded
    judge = ModelJudge(model, tokenizer, max_new_tokens=6)
    samples = data.load("lab", 3, 0, 2)
    answers = [sample.answers[0] for sample in samples]
    found = faithfulness(judge, samples, answers)
    assert (
        found.n == 3 and 0 <= found.mean <= 1 and found.claims >= 3 and found == faithfulness(judge, samples, answers)
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"claims": "{question}"}, "template `claims` has no {answer}"),
        ({"supported": "{claim}"}, "template `supported` has no {passages}"),
        ({"no": "yes"}, "begin with the same token"),
    ],
)
def test_a_judge_that_cannot_judge_is_refused(loaded, change, message):
    refused(message, ModelJudge, *loaded, **change)


def test_chat_models_are_asked_in_their_own_template(loaded):
    model, tokenizer = loaded
    chat = type(tokenizer).from_pretrained(model.config.name_or_path)
    chat.chat_template = "<s>{{ messages[0].content }}|"
    (prompt,) = replace(ModelJudge(model, chat))._prompts(["Is it?"])
    assert chat.decode(prompt.tokens) == "<s>Is it?|"
