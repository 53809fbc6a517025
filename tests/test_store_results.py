"""Serving from stores of blocks: runs by state and mode, beside full prefill and a prefix cache, as rows of results."""

import pytest
from store_serving import CPU, runs

from workbench import models
from workbench.core.errors import BadInput
from workbench.results import expanded, scores
from workbench.results.reader import Results

TINY = CPU | {"blocks": 6, "block": 8, "per_question": 3, "question": 4, "answer": 2, "questions": 3, "batch": 2}
TINY |= {"baseline": 2, "chosen": 2}


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
def test_serving_is_measured_by_state_and_mode_beside_its_baselines(paged, folder):
    counted = [row for rows in runs(models.load(folder), TINY, paged) for row in rows]
    found = Results({}).with_rows("counts", counted, experiment="serving").counts("serving")
    table = expanded(scores(found), "scheduler")
    assert len(table) == 14 and (table.ttft_ms > 0).all() and set(table.blocks) == {6}
    reuse = table[table.method == "reuse"]
    assert set(reuse.kind) == {"hot", "warm", "cold"} and (reuse.reused == 1).all()
    rows = table.set_index(["method", "ratio"]).rows_computed
    assert rows["full prefill", 0.0].item() == 28 > rows["prefix caching", 0.0].item() >= 4


def test_prompts_over_the_context_are_refused(folder):
    with pytest.raises(BadInput, match="2048"):
        list(runs(models.load(folder), TINY | {"block": 800}, False))
