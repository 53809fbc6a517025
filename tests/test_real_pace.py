"""The pace of a measurement beside what was asked for: sentences turn with the numbers, and what ships holds it."""

import pytest

from workbench.experiments import results
from workbench.plots import real_pace as pace

GROUP = {"model": "tiny", "data": "nq", "group": "few", "device": "some GPU", "processes": 15, "questions": 500}
GROUP |= {"methods": 15, "pairs": 7500, "seconds": 300.0, "tokens": 1600.0}


def test_the_pace_is_within_what_was_asked_for_or_beyond():
    assert pace.asked_minutes(GROUP) == 5 and pace.asked_minutes(GROUP | {"pairs": 15000}) == 2.5
    assert "take 5.0 minutes" in pace.pace_sentence([GROUP]) and "within the 10 minutes" in pace.pace_sentence([GROUP])
    assert "take 15.0 minutes" in (words := pace.pace_sentence([GROUP | {"seconds": 900.0}])) and "beyond the" in words


@pytest.mark.parametrize(("tokens", "said"), [(2000.0, "8.0 minutes"), (900.0, "5.0 minutes")])
def test_only_prompts_that_are_long_enough_are_asked(tokens, said):
    assert said in pace.pace_sentence([GROUP, GROUP | {"tokens": tokens, "seconds": 480.0}])


def test_where_all_prompts_are_short_the_longest_are_taken():
    short = [GROUP | {"tokens": 900.0}, GROUP | {"tokens": 100.0, "seconds": 900.0}]
    assert "prompts of 900 tokens and more" in pace.pace_sentence(short)


def test_what_ships_is_within_what_was_asked_for():
    groups = results.read("real-pace")["groups"]
    assert any(group["tokens"] >= pace.TOKENS for group in groups)
    assert all(pace.asked_minutes(group) < pace.MINUTES and group["seconds"] > 0 for group in groups)
    assert "within" in pace.pace_table(groups).layout.annotations[-2].text
