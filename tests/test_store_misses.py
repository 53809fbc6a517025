"""Every miss says why: what is different between the block that is asked for and those that are kept."""

import json

import pytest
import torch
from typer.testing import CliRunner

from tests import tiny
from tests.random_models import block_of, model_of
from tests.store_blocks import earlier_folder, key_for, kv_of
from workbench import data
from workbench.app import cli
from workbench.core.errors import BadInput
from workbench.data.retrieval_corpus import Corpus
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods import prepare
from workbench.methods.preprocessing.lookups import Lookups
from workbench.methods.preprocessing.precompute import Preparation
from workbench.store import FolderStore, MemoryStore, fetch, fingerprint, key_of, keys
from workbench.store.views import ReadOnlyStore, RecordingStore, StagingStore

BLOCK, BEFORE, NEIGHBOUR = block_of(4, 1), block_of(3, 2), block_of(5, 3)
ROPE = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}


@pytest.fixture(params=["memory", "folder", "memory before a folder", "folder opened again"])
def stores(request, tmp_path):
    """A function that gives the store to write to, and one that gives the store to ask."""
    folder = FolderStore(tmp_path / "a", new=True)
    memory = MemoryStore()
    return {
        "memory": (memory, lambda: memory),
        "folder": (folder, lambda: folder),
        "memory before a folder": (folder, lambda: MemoryStore(behind=folder)),
        "folder opened again": (folder, lambda: FolderStore(tmp_path / "a")),
    }[request.param]


def test_another_dtype_model_scaling_context_neighbour_or_version_is_a_miss_that_says_so(stores, monkeypatch):
    model, (store, asked) = model_of(), stores
    fetch(model, [BLOCK], store, [[BEFORE]])
    key = fingerprint(model), model.dtype, BLOCK
    scaled = model_of(rope_parameters=ROPE)
    weights = model_of(seed=1)
    other = {
        key_of(fingerprint(model.to(torch.bfloat16)), torch.bfloat16, BLOCK, [BEFORE]): "other dtype",
        key_of(fingerprint(weights), weights.dtype, BLOCK, [BEFORE]): "other model",
        key_of(fingerprint(scaled), scaled.dtype, BLOCK, [BEFORE]): "other model",
        key_of(*key): "other context before it",
        key_of(*key, [NEIGHBOUR]): "other context before it",
        key_of(*key, [BEFORE], [NEIGHBOUR]): "other neighbours",
        key_of(*key[:2], NEIGHBOUR, [BEFORE]): "never seen",
        "no key of a block": "never seen",
    }
    monkeypatch.setattr(keys, "ENGINE_VERSION", 2)
    other[key_of(*key, [BEFORE])] = "other format version"
    store = asked()
    before = store.stats
    assert {key: store.get(key) for key in other} == dict.fromkeys(other)
    assert {key: store.why(key).reason for key in other} == other
    counted = store.stats.since(before)
    assert sum(counted.reasons.values()) == counted.misses == len(other) and counted.reasons["other model"] == 2
    monkeypatch.undo()
    assert store.get(key_of(*key, [BEFORE])) is not None


def test_the_nearest_of_many_kept_blocks_explains_a_miss():
    store = MemoryStore()
    for model in ("a", "b"):
        store.put(key_of(model, torch.float32, BLOCK, [BEFORE]), kv_of(1, 4))
    assert store.why(key_of("b", torch.float32, BLOCK)).reason == "other context before it"


def test_what_was_evicted_or_never_fitted_says_so():
    sizes = kv_of(1, 3).nbytes
    store = MemoryStore(2 * sizes)
    for seed in (1, 2, 3):
        store.put(key_for(seed), kv_of(seed))
    store.put(key_for(4, 30), kv_of(4, 30))
    assert [store.get(key) for key in (key_for(1), key_for(4, 30), key_for(5))] == [None] * 3
    assert store.stats.reasons == {"evicted": 1, "too large": 1, "never seen": 1}
    assert [miss.reason for miss in store.recent] == ["evicted", "too large", "never seen"]
    store.put(key_for(1), kv_of(1))
    assert store.get(key_for(1)) is not None
    store.clear()
    assert store.get(key_for(1)) is None and store.recent[-1].reason == "evicted"
    before = store.stats
    store.get(key_for(9))
    assert store.stats.since(before).reasons == {"never seen": 1}


def test_what_is_remembered_of_evicted_blocks_is_bounded(monkeypatch):
    monkeypatch.setattr("workbench.store.memory.REMEMBERED", 10)
    store = MemoryStore(kv_of(1).nbytes)
    for seed in range(1, 40):
        store.put(key_for(seed), kv_of(seed))
        store.get(key_for(100 + seed))
    assert len(store._dropped) == 10 and len(list(store._index)) == 1
    assert store.why(key_for(38)).reason == "evicted" and store.why(key_for(1)).reason == "never seen"


def test_views_pass_the_reason_on():
    store = MemoryStore(kv_of(1).nbytes)
    for seed in (1, 2):
        store.put(key_for(seed), kv_of(seed))
    for view in (ReadOnlyStore(store), RecordingStore(store), StagingStore(MemoryStore(), store)):
        assert view.why(key_for(1)).reason == "evicted"
    assert ReadOnlyStore(store, set()).why(key_for(2)).reason == "never seen"


# Trials and the command line


DATA = {"samples": 4, "passages": 3}


@pytest.fixture(scope="module")
def prepared(folder, loaded, tmp_path_factory):
    out = tmp_path_factory.mktemp("misses") / "prepared"
    Preparation(str(folder), out, prepare="after_system", **DATA).run(loaded=loaded)
    return out


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(cli.app, ["store", *map(str, words)])


def flip(folder, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def copied(prepared, tmp_path):
    for path in prepared.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_trial_over_a_damaged_folder_answers_the_same_and_counts_the_damage(prepared, folder, loaded, tmp_path):
    there = copied(prepared, tmp_path)
    asked = {"model": str(folder), "mode": "block", "prepare": "after_system", "max_new_tokens": 4, "timed": 1, **DATA}
    trial = Trial(**asked, prepared=str(there), fidelity=False)
    record, rows = trial.run_each(loaded=loaded)
    assert record.misses == {} and record.hit_rate == 1
    flip(there, "passages-000000.safetensors")
    again, same_rows = trial.run_each(loaded=loaded)
    assert again.misses == {"damaged": 1} and same_rows == rows
    assert Record.from_json(json.loads(json.dumps(again.to_json()))).misses == {"damaged": 1}
    repaired, _ = trial.run_each(loaded=loaded)
    assert repaired.misses == {}, "the damaged block was replaced"
    full = Trial(**{**asked, "mode": "full", "prepare": "independent"}, fidelity=False).run(loaded=loaded)
    assert full.misses is None and "misses" not in full.to_json()


def test_what_is_damaged_is_named_deleted_and_made_again(prepared, folder, loaded, tmp_path, run):
    there = copied(prepared, tmp_path)
    done = run("verify", there)
    assert done.exit_code == 0 and done.stdout.endswith(": whole\n")
    flip(there, "passages-000000.safetensors")
    done = run("verify", there)
    text = " ".join(done.stdout.split())
    assert done.exit_code == 1 and "passages-000000.safetensors, block" in text
    assert "damaged: the checksum of the values of layer" in text
    found = json.loads(run("verify", there, "--repair", "--json").stdout)
    assert not found["whole"] and found["removed"] == ["passages-000000.safetensors"] and len(found["findings"]) == 1
    assert run("verify", there).exit_code == 0
    again = Preparation(str(folder), there, prepare="after_system", **DATA).run(loaded=loaded)
    assert again.made == len(found["findings"]) < again.passages  # whole blocks of a damaged file are kept
    made, before = FolderStore(there), FolderStore(prepared)
    for key in before:
        pairs = zip(made.get(key).tensors(), before.get(key).tensors(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_shard_whose_header_is_damaged_is_prepared_again(prepared, folder, loaded, tmp_path):
    there = copied(prepared, tmp_path)
    (there / "passages-000000.safetensors").write_bytes(b"no header")
    again = Preparation(str(folder), there, prepare="after_system", **DATA).run(loaded=loaded)
    assert again.made == again.passages and not FolderStore(there).set_aside


def test_explain_counts_hits_and_gives_each_miss_its_reason(prepared, folder, tmp_path, run):
    asked = ["explain", prepared, "--model", folder, "--samples", 4, "--passages", 3, "--json"]
    found = json.loads(run(*asked).stdout)
    assert found["hits"] > 3 and found["misses"] == 0 and found["prepare"] == "after_system(system=1)"
    other = json.loads(run(*asked, "--prepare", "independent").stdout)
    assert other["reasons"] == {"other context before it": found["hits"] - 1}, "the system block is the same"
    assert all(miss["block"] and miss["detail"] for miss in other["missed"])
    assert json.loads(run(*asked, "--dtype", "bfloat16").stdout)["reasons"] == {"other dtype": found["hits"]}
    model = tiny.checkpoint(tmp_path / "other", rms_norm_eps=1e-3)
    assert json.loads(run(*asked, "--model", model).stdout)["reasons"] == {"other model": found["hits"]}
    assert "never seen" in json.loads(run(*asked, "--seed", 5).stdout)["reasons"]
    text = " ".join(run(*asked[:-1], "--prepare", "independent").stdout.split())
    assert "blocks are there, for independent" in text and "other context before it: blocks before it: kept 1" in text


def test_explain_asks_for_what_a_trial_asks_for_behind_neighbours_too(folder, loaded, tmp_path):
    out = tmp_path / "out"
    spec = "with_neighbours(n=2)"
    Preparation(str(folder), out, prepare=spec, **DATA).run(loaded=loaded)
    found = Lookups(out, str(folder), **DATA).run(loaded)
    model, tokenizer, layout = loaded
    samples = data.load("lab", 4, 0, 3)
    policy = prepare.named(spec, corpus=Corpus.of(samples, layout, tokenizer))
    recording = RecordingStore(MemoryStore(behind=FolderStore(out)))
    policy(model, layout.prompts(samples, tokenizer), recording)
    assert not recording.stored and not found.misses and found.hits == recording.store.stats.entries
    fewer = Lookups(out, str(folder), prepare="with_neighbours(n=1)", **DATA).run(loaded)
    assert fewer.reasons == {"other neighbours": found.hits - 1}


def test_stats_tells_what_there_is(prepared, tmp_path, run):
    found = json.loads(run("stats", prepared, "--json").stdout)
    assert found["blocks"] == len(FolderStore(prepared)) and found["unchecked"] == 0 and not found["set_aside"]
    assert found["models"] == [found["kind"]["model"]] and found["dtypes"] == ["torch.float32"]
    (made,) = found["made"]
    assert made["device"] == "cpu" and made["torch"] == torch.__version__
    old = earlier_folder(tmp_path / "old", {key_for(1): kv_of(1)})
    (old / "broken.safetensors").write_bytes(b"1")
    found = json.loads(run("stats", old, "--json").stdout)
    assert (found["blocks"], found["tokens"], found["unchecked"]) == (1, 3, 1)
    assert found["set_aside"][0]["file"] == "broken.safetensors" and "damaged" in run("stats", old).stdout


@pytest.mark.parametrize("command", ["verify", "stats", "explain"])
def test_a_folder_of_something_else_is_one_error(command, run, tmp_path, folder):
    done = run(command, tmp_path, *(["--model", folder] if command == "explain" else []))
    assert done.exit_code == 2 and "is no folder of cached blocks" in done.stderr and done.stderr.count("\n") == 1


def test_explain_refuses_what_a_trial_refuses(prepared, folder):
    for change, says in (({"samples": 0}, "samples is 0"), ({"prepare": "fused"}, "unknown prepare 'fused'")):
        with pytest.raises(BadInput, match=says):
            Lookups(prepared, str(folder), **{**DATA, **change}).run()
