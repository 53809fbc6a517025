"""Results of stores read back: rows for figures, and sentences that follow their numbers."""

import pytest
from serving_load import Load
from serving_runs import runs
from stored_corpus import StoredCorpus

from workbench import models
from workbench.core.errors import BadInput
from workbench.experiments import results, store_results

TINY = Load(blocks=6, block=8, per_question=3, question=4, answer=2, questions=3, baseline=2, chosen=2, batch=2)


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
def test_serving_is_measured_by_state_and_mode_beside_its_baselines(paged, folder, tmp_path, monkeypatch):
    bench = StoredCorpus(models.load(folder).model, TINY, tmp_path / "blocks", paged)
    bench.encode()
    assert len(bench.packed) == 6 and bench.copy_rates()["share"] > 0
    rows = list(runs(bench, 60))
    ran = [(row["run"], row["state"], row["mode"], row["ratio"]) for row in rows if "ttft" in row]
    assert len(ran) == len(set(ran)) == 15 and sum(row["run"] == "write" for row in rows) == 1
    assert not any(row.get("failed") for row in rows) and {row["reused"] for row in rows if row.get("state")} == {1.0}
    cold = next(row for row in rows if row.get("state") == "cold")
    assert cold["loaded"]["disk"] > 0 and cold["ttft"]["p50"] > 0
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.write_json(tmp_path / "store-serving-cpu.json", {"device": "a CPU", "runs": rows})
    read = store_results.serving()
    assert len(read) == 15 and "first token is" in store_results.overlap(read, "warm")
    assert store_results.overlap([], "warm") == "Serving warm blocks was not measured."
    assert "files read as they are" in store_results.from_disk(read) and "of their pages in memory" in (
        store_results.from_disk(read)
    )
    assert "instead of" in store_results.gathered(read)
    assert store_results.from_disk([]) == store_results.gathered([]) == ""


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


def row(low, high):
    return {"score": "em", "method": "reuse", "mean": (low + high) / 2, "low": low, "high": high, "n": 9, "bytes": 0.27}


def test_answers_a_second_stand_beside_every_baseline_and_what_is_printed():
    def run(name, state, rate, ratio=0.0):
        return {"run": name, "state": state, "mode": "request", "ratio": ratio, "per_second": rate}

    rows = [run("reuse", "warm", 20.0), run("reuse", "warm", 5.0, 0.15), run("full prefill", "", 2.5)]
    said = store_results.against_baselines(rows)
    assert "reuse 8.0 times full prefill" in said and "15% recomputed 2.0 times full prefill" in said
    assert "1.2 to 4.3 times" in said and store_results.against_baselines(rows[:2]) == ""


def test_rows_of_eight_bits_are_read(tmp_path, monkeypatch):
    gap = {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 2}
    entry = {"int8": {"bytes_kept": 1, "bytes_cached": 4, "deviation": {"k": 0.1, "v": 0.2}}, "difference": {"em": gap}}
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    results.write_json(tmp_path / "store-int8.json", {"methods": {"reuse": entry}})
    assert store_results.eight_bits() == [
        {"method": "reuse", "score": "em", **gap, "bytes": 0.25, "keys": 0.1, "values": 0.2}
    ]
