"""Times of a folder of blocks: what is measured, and the sentences on it."""

import os
from dataclasses import replace

import pandas as pd
import pytest
import torch

from workbench.experiments import store_faults, store_speed
from workbench.experiments.store_speed import BlockShape, disk_finding, measured

TINY = BlockShape("tiny", 2, 1, 4, torch.bfloat16, 8, 20)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="files are dropped from the page cache by Linux")
def test_every_layout_is_read_in_every_way_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(store_speed, "memory_hit", lambda shape: {"p50_us": 1.0, "p99_us": 1.0, "look_ups": 1})
    rows = list(measured(tmp_path, [TINY, replace(TINY, model="other")], rounds=2))
    assert [row["what"] for row in rows] == ["write", "read", "read", "write", "read", "read", "memory hit"] * 2
    reads = [row for row in rows if row["what"] == "read"]
    assert {(row["blocks_a_file"], row["cache"]) for row in reads} == {
        (n, c) for n in (1, 16) for c in ("warm", "cold")
    }
    assert all(min(row[f"{name}_gbs"] for name in ("raw", "copied", "mapped")) > 0 for row in reads)
    assert reads[0]["block_mb"] == TINY.nbytes / 1e6 == 256e-6 and not list(tmp_path.iterdir())


def test_look_ups_in_memory_are_counted():
    assert set(store_speed.memory_hit(TINY, 50)) == {"p50_us", "p99_us", "look_ups"}


def test_a_folder_that_loses_a_block_is_no_measurement(tmp_path):
    store_speed.filled(tmp_path / "a", TINY, 1, durable=False)
    next((tmp_path / "a").glob("file-*")).write_bytes(b"")
    with pytest.raises(ValueError, match="Sample larger than population"):
        store_speed.reads(tmp_path / "a", TINY, 1, False, 1)


@pytest.mark.parametrize("mapped, says", [([0.9, 0.85], "reach 80%"), ([0.9, 0.7], "do not always reach 80%")])
def test_the_sentence_turns_with_the_numbers(mapped, says):
    rows = [
        {"model": "m", "blocks_a_file": n, "cache": "warm", "mapped_share": share, "copied_share": 0.5}
        for n, share in zip((1, 16), mapped, strict=True)
    ]
    text = disk_finding(pd.DataFrame(rows))
    assert says in text and "least: m, 16 to a file, page cache warm" in text and "50% to 50% copied" in text


@pytest.mark.parametrize("lost, says", [(0, "none was lost and none wrong"), (2, "2 were lost and 0 wrong")])
def test_the_sentence_on_faults_turns_with_the_numbers(lost, says):
    rows = [{"fault": "bit flips", "tried": 2000, "lost": lost, "wrong": 0}]
    text = store_faults.faults_finding(pd.DataFrame(rows))
    assert says in text and "2,000 bit flips" in text


def test_as_many_faults_are_committed_as_are_asked_for_and_none_lost_or_served_anything_wrong():
    found = store_faults.faults().set_index("name")
    assert found[["lost", "wrong"]].to_numpy().sum() == 0 and found.found.min() > 0
    least = {"kills": 1_000, "flips": 1_000, "losses": 1_000, "soak": 100_000, "operations": 2_000_000}
    assert all(found.tried[name] >= count for name, count in least.items())
    for name in ("operations", "stateful"):
        assert found.about[name] == {"runs": 10_000, "steps": 200}
    soak = found.about["soak"]
    assert soak["MB at the end"] < 1.02 * soak["MB at half"], "memory stays flat"
