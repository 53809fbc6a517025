"""data/benchmarks/two_gpus.py: a share of the blocks is encoded as it is alone, from the moment that is told."""

import time

import pytest

pytest.importorskip("triton", reason="Triton is not available on this platform")

import two_gpus as script


def test_a_block_has_the_same_bits_whatever_it_is_encoded_with():
    size, at = (4, 8, True), time.time() + 0.02
    alone = script.encode(0, slice(1, None, 4), size)
    begin, end, checksum = script.encode(0, slice(1, None, 2), size, at)
    assert at <= begin < end and checksum == alone[2] != script.encode(0, slice(0, None, 2), size)[2]
