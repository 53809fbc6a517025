"""Command lines and calls drawn at random end in an answer or in one sentence; weekly for ten minutes."""

import pytest

from tests.stress import fuzz


@pytest.mark.parametrize("seconds", [4, pytest.param(600, marks=[pytest.mark.weekly, pytest.mark.timeout(900)])])
def test_whatever_is_asked_ends_in_an_answer_or_one_sentence(tmp_path, seconds):
    found = list(fuzz.faults(seconds, 0, tmp_path))
    assert found and not (faults := [str(fault) for fault in found if fault]), "\n".join(faults)
