"""data/benchmarks/touch.py: how long the prompt one can touch takes to show each kind of change."""

import touch


def test_every_change_is_answered_and_its_parts_come_in_order(loaded):
    rows = list(touch.measured(loaded, repeats=1, passages=3))
    assert [row["change"] for row in rows] == ["ratio", "selector", "order", "word"]
    assert all(0 < row["shown"] <= row["both"] <= row["all"] for row in rows)
