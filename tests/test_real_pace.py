"""The pace of a measurement beside what was asked for: sentences turn with the numbers, and what ships holds it."""

from workbench.experiments import results
from workbench.plots import real_pace as pace

GROUP = {"model": "tiny", "data": "nq", "group": "few", "device": "some GPU", "processes": 15, "questions": 500}
GROUP |= {"methods": 15, "pairs": 7500, "seconds": 300.0, "tokens": 1600.0}


def test_what_ships_is_within_what_was_asked_for():
    groups = results.read("real-pace")["groups"]
    assert any(group["tokens"] >= pace.TOKENS for group in groups)
    assert all(pace.asked_minutes(group) < pace.MINUTES and group["seconds"] > 0 for group in groups)
    assert "within" in pace.pace_table(groups).layout.annotations[-2].text
