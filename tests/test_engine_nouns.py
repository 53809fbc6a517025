"""Blocks, prompts, plans, KV and the rotation of keys."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import workbench
from tests.random_models import prompt_of
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.rope import rotate

TABLE = 1e4 ** (-torch.arange(0, 16, 2) / 16)


def kv_of(length: int, reserve: int = 0) -> KV:
    torch.manual_seed(length)
    kv = KV.zeros([(2, 4), (1, 6)], length, reserve)
    for x in kv.tensors():
        x.normal_()
    return kv


def test_a_block_is_its_tokens_and_not_its_label():
    assert Block((1, 2), "a") == Block([1, 2], "b") and Block((1, 2)).key == Block((1, 2), "x").key
    assert Block((1, 23)).key != Block((12, 3)).key and len(Block((4, 5, 6))) == 3


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_a_prompt_knows_where_its_blocks_stand(lengths):
    prompt = prompt_of(*lengths)
    for i, block in enumerate(prompt.blocks):
        span = slice(prompt.starts[i], prompt.starts[i] + len(block))
        assert tuple(prompt.tokens[span].tolist()) == block.tokens and set(prompt.block_of[span].tolist()) == {i}
    assert prompt.question.tolist() == list(range(sum(lengths[:-1]), sum(lengths))) and len(prompt) == sum(lengths)
    assert prompt.context == prompt.blocks[:-1]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Block((), "passage 3"), "block 'passage 3' is empty"),
        (lambda: Block((1, -2)), "token id -2"),
        (lambda: Prompt((Block((1,)),)), "at least one block before its question, got 1"),
        (lambda: Prompt(()), "got 0"),
        (lambda: Plan(torch.tensor([], dtype=torch.long)), "at least one position"),
        (lambda: Plan(torch.tensor([0.5])), "float32"),
        (lambda: Plan(torch.tensor([2, 1])), "strictly rising"),
        (lambda: Plan(torch.tensor([1, 1])), "strictly rising"),
        (lambda: Plan(torch.tensor([-1, 1])), "from 0"),
        (lambda: kv_of(4).slice(2, 9), "2:9 of a KV of 4"),
        (lambda: kv_of(4).lock().grow(1), "read-only"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()


@given(st.integers(1, 9), st.integers(0, 9), st.lists(st.integers(1, 5), max_size=5))
def test_growing_keeps_what_is_there_and_adds_zeros(length, reserve, steps):
    kv = kv_of(length, reserve)
    before = [x.clone() for x in kv.tensors()]
    for step in steps:
        kv.grow(step)
    assert len(kv) == length + sum(steps)
    for new, old in zip(kv.tensors(), before, strict=True):
        assert torch.equal(new[:, :length], old) and not new[:, length:].any()


def test_growing_within_the_capacity_copies_nothing():
    kv = kv_of(5)
    kv.reserve(7)
    place = [x.data_ptr() for x in kv.tensors()]
    for _ in range(7):
        kv.grow(1)
    assert [x.data_ptr() for x in kv.tensors()] == place and kv.nbytes == 12 * (2 * 4 + 6) * 2 * 4


def test_growing_after_somebody_put_other_tensors_in():
    kv = kv_of(5, reserve=7)
    kv.keys[0] = torch.ones(2, 5, 4)
    kv.grow(2)
    assert torch.equal(kv.keys[0][:, :5], torch.ones(2, 5, 4)) and len(kv) == kv.keys[1].shape[1] == 7


def test_slices_clones_and_locks_share_nothing():
    kv = kv_of(6).lock()
    part, copy = kv.slice(2, 5), kv.clone(reserve=3)
    before = kv.keys[0].clone()
    part.keys[0].zero_()
    copy.grow(1)
    copy.keys[0].zero_()
    assert torch.equal(kv.keys[0], before) and (part.start, len(part)) == (2, 3)
    assert kv.to("cpu") is kv and not copy.read_only and not part.read_only


@given(st.integers(-300, 300), st.integers(-300, 300), st.sampled_from(["neox", "interleaved"]), st.booleans())
def test_rotations_add_up_and_leave_still_channels_alone(first, second, pairing, per_token):
    torch.manual_seed(0)
    keys = torch.randn(2, 3, 24)
    move = (lambda d: torch.full((3,), d)) if per_token else (lambda d: d)
    twice = rotate(rotate(keys, move(first), TABLE, pairing), second, TABLE, pairing)
    torch.testing.assert_close(twice, rotate(keys, first + second, TABLE, pairing), atol=2e-5, rtol=1e-4)
    assert torch.equal(twice[..., 16:], keys[..., 16:])
    assert torch.equal(rotate(keys, move(0), TABLE, pairing), keys)


def test_rotation_is_the_complex_product():
    keys = torch.randn(1, 4, 16)
    turned = torch.view_as_complex(keys.unflatten(-1, (8, 2)).double())
    expected = torch.view_as_real(turned * torch.polar(torch.ones(8).double(), 777 * TABLE.double())).flatten(-2)
    torch.testing.assert_close(rotate(keys, 777, TABLE, "interleaved").double(), expected, atol=1e-6, rtol=1e-5)


def test_every_token_may_move_by_its_own_distance():
    keys, distance = torch.randn(2, 4, 16), torch.tensor([0, 5, 5, -9])
    moved = rotate(keys, distance, TABLE)
    for i, d in enumerate(distance.tolist()):
        torch.testing.assert_close(moved[:, i : i + 1], rotate(keys[:, i : i + 1], d, TABLE))


def test_half_precision_keys_are_turned_in_fp32_and_rounded_once():
    keys = torch.randn(2, 50, 16).bfloat16()
    assert torch.equal(rotate(keys, 300, TABLE), rotate(keys.float(), 300, TABLE).bfloat16())


def test_every_public_name_is_there_and_importing_costs_no_torch():
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None and name in dir(workbench)
    with pytest.raises(AttributeError, match="nothing"):
        _ = workbench.nothing
    code = "import sys, workbench; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
