"""A call from Python shows how far it is where a person watches, and is silent elsewhere."""

import sys

import pytest

from workbench.core.utils.stages import stage, stages_reported_to
from workbench.core.utils.watched import BATCH, OPENED, progress_shown


def own(done, total):
    """Stand for a callback of the caller."""


@pytest.mark.parametrize(
    ("terminal", "variables", "given", "listened", "shows"),
    [
        (True, [], None, False, True),
        (False, [OPENED[0]], None, False, True),
        (False, [], None, False, False),
        (False, [OPENED[0], BATCH], None, False, False),
        (True, [], own, False, False),
        (True, [], None, True, False),
    ],
    ids=["a terminal", "an open notebook", "a log", "a notebook in batch", "the caller shows it", "a command shows it"],
)
def test_a_bar_is_shown_where_a_person_watches(monkeypatch, capsys, terminal, variables, given, listened, shows):
    for name in (*OPENED, BATCH):
        monkeypatch.delenv(name, raising=False)
    for name in variables:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    stages = []
    with (
        stages_reported_to(stages.append) if listened else progress_shown("outer", own),
        progress_shown("a sweep", given) as tell,
    ):
        stage("loading a model")
        for done in range(3):
            if tell:
                tell(done, 2)
    said = capsys.readouterr().err
    assert ("a sweep" in said and "loading a model" in said) == shows
    assert (said == "") != shows
    assert shows or tell is given
