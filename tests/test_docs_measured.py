"""What the page on reuse says of its own commands is made of their numbers, and turns with them."""

import sys
from pathlib import Path

import pytest

from workbench.app.docs import measured as docs_measured

ROOT = Path(__file__).parents[1]
FULL = {"way": "full", "n": 8, "kl": 0.0, "kl_low": 0.0, "kl_high": 0.0, "agree": 1.0, "em": 0.5, "f1": 0.6}
FULL |= {"rows_computed": 1000.0}
NEAR = FULL | {"way": "near", "kl": 0.1, "kl_low": 0.05, "kl_high": 0.2, "agree": 0.9, "rows_computed": 250.0}
KEPT = {"device": "a CPU", "cores": 2, "took": [{"command": "workbench data", "seconds": 90.0}]}


def test_the_page_tells_what_every_command_took(tmp_path):
    text = docs_measured.told(KEPT | {"found": [FULL, NEAR]})
    assert "took 2 minutes together" in text and "| `workbench data` | 90 |" in text
    assert "Not run yet" in docs_measured.page(f"# Page\n\n{docs_measured.PLACE}\n", tmp_path / "none.json")


def test_what_was_measured_are_the_commands_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import measured

    sys.modules.pop("measured")
    if not measured.KEPT.is_file():
        pytest.skip("python docs/measured.py has not been run: the page says so")
    kept = docs_measured.json.loads(measured.KEPT.read_text())
    assert [each["command"] for each in kept["took"]] == measured.commands(measured.PAGE.read_text())
    assert "moves predictions least" in docs_measured.verdict(kept["found"])
