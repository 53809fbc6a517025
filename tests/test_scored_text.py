"""Text that is scored on stays out of what is trained on."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import data
from workbench.core.errors import BadInput
from workbench.training.tuning.text.overlap import apart, words_of


def test_text_that_is_scored_on_is_refused_by_its_first_sample_or_left_out(texts, tmp_path):
    train_on, held = data.load(texts["train"]), data.load(texts["held"])
    shouted = replace(held[0].ctxs[0], title="Other", text=held[0].ctxs[0].text.upper().replace(" ", "  ") + "!")
    leaky = [*train_on, replace(train_on[0], id="leak", ctxs=(*train_on[0].ctxs, shouted))]
    with pytest.raises(BadInput, match=f"sample 'leak' shares a passage with sample '{held[0].id}' of .*held.jsonl"):
        apart(leaky, [texts["held"]])
    kept, record = apart(leaky, [texts["held"]], drop=True)
    assert kept == train_on and record["left_out"] == 1 and record["shared_passages"] == record["shared_questions"] == 0
    asked = [*train_on, replace(train_on[0], id="asked", question=held[1].question.lower().replace("?", " ?"))]
    with pytest.raises(BadInput, match=f"sample 'asked' shares a question with sample '{held[1].id}'"):
        apart(asked, [texts["held"]])
    with pytest.raises(BadInput, match="all 6 samples share"):
        apart(held, [texts["held"]], drop=True)
    assert apart(train_on, []) == (train_on, None)


def test_shared_runs_of_words_are_counted_though_the_passages_differ(texts):
    held, train_on = data.load(texts["held"]), data.load(texts["train"])[:1]
    text = held[0].ctxs[0].text
    longer = replace(train_on[0], ctxs=(replace(train_on[0].ctxs[0], text=f"{text} And more is told here."),))
    assert len(words_of(text).split()) >= 13
    _, record = apart([longer], [texts["held"]])
    assert record["passages_sharing_a_run"] == 1 and record["shared_passages"] == 0


@given(st.text(max_size=40), st.integers(0, 9))
def test_words_are_the_same_in_any_case_and_spacing(text, seed):
    spaced = text.replace(" ", " " * (1 + Random(seed).randrange(3)))
    assert words_of(words_of(text)) == words_of(text) == words_of(f"  {spaced}\n")
