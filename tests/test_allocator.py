"""Memory that is kept for the next request."""

import resource
import sys

import pytest
import torch

from workbench.models.loading import keep_freed


@pytest.mark.skipif(not keep_freed(), reason="this C library gives memory back")
def test_memory_that_was_freed_is_taken_again_without_new_pages():
    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [torch.ones(1 << 20) for _ in range(16)]  # 64 MiB, as the keys and values of a request
        assert len(parts) == 16
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pages = (64 << 20) // resource.getpagesize()
    assert min(faults() for _ in range(6)) < pages / 10, "the same memory, over and over"


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed() is False
