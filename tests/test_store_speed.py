"""Times of a folder of blocks: what data/benchmarks/store_disk.py measures."""

import os
from dataclasses import replace

import pytest
import store_disk
import torch
from store_disk import BlockShape, measured

TINY = BlockShape("tiny", 2, 1, 4, torch.bfloat16, 8, 20)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="files are dropped from the page cache by Linux")
def test_every_layout_is_read_in_every_way_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(store_disk, "memory_hit", lambda shape: {"p50_us": 1.0, "p99_us": 1.0, "look_ups": 1})
    rows = list(measured(tmp_path, [TINY, replace(TINY, model="other")], rounds=2))
    assert [row["what"] for row in rows] == ["write", "read", "read", "write", "read", "read", "memory hit"] * 2
    reads = [row for row in rows if row["what"] == "read"]
    assert {(row["blocks_a_file"], row["cache"]) for row in reads} == {
        (n, c) for n in (1, 16) for c in ("warm", "cold")
    }
    assert all(min(row[f"{name}_gbs"] for name in ("raw", "copied", "mapped")) > 0 for row in reads)
    assert reads[0]["block_mb"] == TINY.nbytes / 1e6 == 256e-6 and not list(tmp_path.iterdir())


def test_look_ups_in_memory_are_counted():
    assert set(store_disk.memory_hit(TINY, 50)) == {"p50_us", "p99_us", "look_ups"}


def test_a_folder_that_loses_a_block_is_no_measurement(tmp_path):
    store_disk.filled(tmp_path / "a", TINY, 1, durable=False)
    next((tmp_path / "a").glob("file-*")).write_bytes(b"")
    with pytest.raises(ValueError, match="Sample larger than population"):
        store_disk.reads(tmp_path / "a", TINY, 1, False, 1)
