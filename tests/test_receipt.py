"""Receipts of requests: what was reused, from where, what was missed and why."""

import json
from dataclasses import replace

import pytest

from tests.random_models import Letters, block_of, model_of
from tests.refusals import refused
from workbench.core.blocks import Block, Prompt
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods.generation import generate
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.request_report import BlockReceipt, Receipt
from workbench.methods.select.first_k import FirstK
from workbench.store import FolderStore, HostTier, MemoryStore, StoreTier, TieredStore

MODEL = model_of()
BLOCKS = [Block(block_of(n, n).tokens, f"passage {n}") for n in (6, 4, 9)]


def prompt(*which: int, seed: int = 50) -> Prompt:
    return Prompt((*(BLOCKS[i] for i in which), block_of(3, seed)))


def answer(prompts, mode, store):
    return [g.receipt for g in generate(MODEL, Letters(), prompts, mode, store, max_new_tokens=2)]


def test_blocks_are_encoded_at_first_and_reused_and_shifted_later():
    store = MemoryStore()
    (first,) = answer([prompt(0, 1)], "block", store)
    assert [block.status for block in first.blocks] == ["encoded", "encoded"] and first.misses == {"never seen": 2}
    (second,) = answer([prompt(1, 0, 2)], "block", store)
    assert second.blocks[0] == BlockReceipt("passage 4", 4, "reused", "host", second.blocks[0].bytes, 0)
    assert second.blocks[1].shift == 4 and second.rerotated == 2, "the last one was encoded, and shifted too"
    assert second.count("reused") == 2 and second.question == 3
    assert second.bytes == {"host": sum(block.bytes for block in second.blocks)} and second.bytes["host"] > 0
    assert set(second.seconds) == {"load", "encode", "store", "place", "prefill", "decode"}
    assert all(seconds > 0 for seconds in second.seconds.values())


def test_a_block_that_two_requests_share_is_encoded_by_the_first():
    one, other = answer([prompt(0, 1), prompt(2, 0, seed=51)], "block", MemoryStore())
    assert [block.status for block in one.blocks] == ["encoded", "encoded"] and one.batch == other.batch == 2
    assert [block.status for block in other.blocks] == ["encoded", "reused"] and other.blocks[1].shift == 9


def test_recomputed_tokens_are_counted_by_block():
    store, method = MemoryStore(), Reuse(select=FirstK(system=0), ratio=0.5)
    (receipt,) = answer([prompt(0, 1)], method, store)
    assert receipt.recomputed == sum(block.recomputed for block in receipt.blocks) == 5
    (naive,) = answer([prompt(1, 0)], Reuse(positions="naive"), store)
    assert naive.rerotated == 0


def test_full_attention_looks_nothing_up():
    (receipt,) = answer([prompt(0, 1)], "full", None)
    assert [block.status for block in receipt.blocks] == ["computed", "computed"]
    assert receipt.bytes == {} and receipt.misses == {} and receipt.rerotated == 0


def test_preparations_are_told_by_the_key_that_is_made_of_most():
    store = MemoryStore()
    answer([prompt(0, 1)], "block", store)
    (receipt,) = answer([prompt(0, 1)], Reuse(prepare=AfterSystem()), store)
    assert [block.status for block in receipt.blocks] == ["reused", "encoded"]
    assert receipt.misses == {"other context before it": 1} and receipt.also == 0
    (receipt,) = answer([prompt(0, 1)], Superposition(paths=1), store)
    assert [block.status for block in receipt.blocks] == ["reused", "reused"]


def test_bytes_are_counted_by_tier(tmp_path):
    folder = FolderStore(tmp_path / "blocks", new=True)
    size = answer([prompt(0, 1)], "block", MemoryStore())[0]
    store = TieredStore([HostTier(1 << 14), StoreTier(folder)], write="through")
    answer([prompt(0, 1, 2)], "block", store)
    cold = TieredStore([HostTier(1 << 20), StoreTier(folder)])
    (first,), (second,) = (answer([prompt(0, 1, 2)], "block", cold) for _ in range(2))
    assert list(first.bytes) == ["disk"] and list(second.bytes) == ["host"]
    assert first.bytes["disk"] == second.bytes["host"] and size.bytes == {}
    behind = MemoryStore(behind=folder)
    assert [list(answer([prompt(0, 1)], "block", behind)[0].bytes) for _ in range(2)] == [["disk"], ["host"]]


def test_a_receipt_is_plain_json_and_a_table():
    (receipt,) = answer([Prompt((Block(BLOCKS[0].tokens, "<b>"), block_of(2)))], "block", None)
    values = json.loads(json.dumps(receipt.to_json()))
    assert Receipt.from_json(values) == receipt
    assert "&lt;b&gt;" in receipt._repr_html_() and "<b>" not in receipt._repr_html_()
    assert "1 encoded (1 never seen)" in str(receipt)
    refused("no receipt", Receipt.from_json, {"blocks": [{"colour": 1}]})


def test_generations_are_equal_whatever_their_receipts_say():
    cold, warm = MemoryStore(), MemoryStore()
    answer([prompt(0, 1)], "block", warm)
    one, other = (generate(MODEL, Letters(), [prompt(0, 1)], "block", s, max_new_tokens=4)[0] for s in (cold, warm))
    assert one == other and one.receipt != other.receipt


def test_a_trial_adds_the_receipts_of_all_requests_to_its_record(folder, loaded):
    trial = Trial(
        str(folder), samples=3, batch=2, timed=1, max_new_tokens=2, mode="block", fidelity=False, receipt=True
    )
    record = Record.from_json(json.loads(json.dumps(trial.run(loaded=loaded).to_json())))
    receipts = [Receipt.from_json(row["receipt"]) for row in record.receipts]
    assert [receipt.batch for receipt in receipts] == [2, 2, 1] and len({row["id"] for row in record.receipts}) == 3
    assert record.receipts[0]["at"] == record.receipts[1]["at"] == 0.0
    assert record.receipts[2]["at"] == pytest.approx(sum(receipts[0].seconds.values()))
    misses = sum(sum(receipt.misses.values()) for receipt in receipts)
    assert misses == sum(record.misses.values())
    without = replace(trial, receipt=False)
    assert "receipt" not in without.settings() and "receipts" not in without.run(loaded=loaded).to_json()
    refused("receipt is 1", replace, trial, receipt=1)
