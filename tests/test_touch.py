"""data/benchmarks/touch.py: how long the prompt one can touch takes to show each kind of change."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "data" / "benchmarks" / "touch.py"


def test_every_change_is_answered_and_its_parts_come_in_order(loaded):
    spec = spec_from_file_location("touch", SCRIPT)
    touch = module_from_spec(spec)
    spec.loader.exec_module(touch)
    rows = list(touch.measured(loaded, repeats=1, passages=3))
    assert [row["change"] for row in rows] == ["ratio", "selector", "order", "word"]
    assert all(0 < row["shown"] <= row["both"] <= row["all"] for row in rows)
