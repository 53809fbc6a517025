"""Serving from stores of blocks: runs by state and mode, as rows of results."""

import pytest
import store_serving
from serving_load import Load
from serving_runs import runs
from stored_corpus import StoredCorpus

from workbench import models
from workbench.core.errors import BadInput
from workbench.results import scores
from workbench.results.reader import Results

TINY = Load(blocks=6, block=8, per_question=3, question=4, answer=2, questions=3, baseline=2, chosen=2, batch=2)


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
def test_serving_is_measured_by_state_and_mode_beside_its_baselines(paged, folder, tmp_path):
    bench = StoredCorpus(models.load(folder).model, TINY, tmp_path / "blocks", paged)
    bench.encode()
    assert len(bench.packed) == 6 and bench.copy_rates()["share"] > 0
    rows = list(runs(bench, 60))
    ran = [(row["run"], row["state"], row["mode"], row["ratio"]) for row in rows if "ttft" in row]
    assert len(ran) == len(set(ran)) == 15 and sum(row["run"] == "write" for row in rows) == 1
    assert not any(row.get("failed") for row in rows) and {row["reused"] for row in rows if row.get("state")} == {1.0}
    cold = next(row for row in rows if row.get("state") == "cold")
    assert cold["loaded"]["disk"] > 0 and cold["ttft"]["p50"] > 0
    counted = [one for row in rows for one in store_serving.counts(row, {"blocks": 6})]
    runs_ = scores(read_rows(counted))
    assert (runs_.ttft_ms > 0).sum() == 15 and cold["loaded"]["disk"] in set(runs_.bytes_disk)
    assert len(runs_[runs_.kind == "cold"]) == sum(row.get("state") == "cold" for row in rows)


def read_rows(counted):
    return Results({}).with_rows("counts", counted, experiment="serving").counts("serving")


def test_runs_that_would_begin_late_are_skipped_and_say_so(folder, tmp_path):
    bench = StoredCorpus(models.load(folder).model, TINY, tmp_path / "blocks")
    bench.encode()
    assert all("skipped" in row for row in runs(bench, 0) if row["run"] != "write")


def test_loads_that_make_no_sense_are_refused(folder, tmp_path):
    with pytest.raises(BadInput, match="per_question is 9"):
        Load(blocks=6, per_question=9)
    with pytest.raises(BadInput, match="batch is 0"):
        Load(batch=0)
    with pytest.raises(BadInput, match="context of 2048"):
        StoredCorpus(models.load(folder).model, Load(block=400), tmp_path)
