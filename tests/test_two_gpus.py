"""data/benchmarks/two_gpus.py: two workers take turns, share the blocks, and tell what goes wrong."""

from multiprocessing.dummy import Pipe
from threading import Barrier, Thread

import pytest

pytest.importorskip("triton", reason="Triton is not available on this platform")

import two_gpus as script


def pair():
    """Two workers as threads, in the place of processes on two GPUs."""
    both, pipes = object.__new__(script.Both), [Pipe() for _ in range(2)]
    both.ends, barrier = [mine for mine, _ in pipes], Barrier(2)
    threads = [Thread(target=script.work, args=(i, 5, 8, True, pipes[i][1], barrier)) for i in range(2)]
    for thread in threads:
        thread.start()
    return both, threads


def test_workers_compute_the_same_bits_take_turns_and_end(monkeypatch):
    models = [script.whole_model.build(script.whole_model.LLAMA | script.TINY) for _ in range(2)]
    monkeypatch.setattr(script.whole_model, "build", lambda shape: models.pop())  # threads share the seed of torch
    both, threads = pair()
    assert both.ready() is True
    assert all(both.seconds(turn) > 0 for turn in (script.ALONE, script.SHARED, script.ALONE))
    for end, thread in zip(both.ends, threads, strict=True):
        end.send(None)
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_what_goes_wrong_in_a_worker_is_told(monkeypatch):
    monkeypatch.setattr(script.whole_model, "build", lambda shape: {}["no model"])
    both, threads = pair()
    with pytest.raises(RuntimeError, match="no model"):
        both.ready()
    for thread in threads:
        thread.join(10)
