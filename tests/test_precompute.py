"""A corpus prepared into a folder: whole files, resumed after a kill, refused to another model or preparation."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from forked import ended, forked

from tests import tiny
from tests.commands import refused_command, told
from tests.refusals import refused
from workbench import data
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils import runner
from workbench.data.retrieval_corpus import Corpus
from workbench.experiments.trials.trial import Trial
from workbench.methods import prepare
from workbench.methods.preprocessing import precompute
from workbench.methods.preprocessing.precompute import Preparation, kind_of
from workbench.store import FolderStore, MemoryStore
from workbench.store.files import block_file

DATA = {"samples": 16, "passages": 3, "prepare": "with_neighbours(n=2)", "shard": 2}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread, as workers and forks have: on some processors products of two differ in their last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(one_thread, folder, loaded, tmp_path_factory):
    """An uninterrupted preparation."""
    out = tmp_path_factory.mktemp("prepared") / "whole"
    return Preparation(str(folder), out, **DATA).run(loaded=loaded)


def held(folder) -> dict[str, KV]:
    store = FolderStore(folder)
    return {key: store.get(key) for key in store._files}


def same(one: dict[str, KV], other: dict[str, KV]) -> None:
    assert one.keys() == other.keys()
    for key, kv in one.items():
        assert kv.start == other[key].start
        assert all(torch.equal(a, b) for a, b in zip(kv.tensors(), other[key].tensors(), strict=True))


def test_folders_that_are_something_else_are_refused(tmp_path):
    refused("is no folder of cached blocks", FolderStore, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    refused("holds something else", FolderStore, tmp_path, new=True)
    refused(r"notes.txt is no folder of cached blocks", FolderStore, tmp_path / "notes.txt", {})
    store = FolderStore(tmp_path / "a", {"model": "one", "preparation": "independent"}, new=True)
    store.put("key", KV([torch.zeros(1, 2, 2)], [torch.zeros(1, 2, 2)]))
    refused(r"'../escape' is no name for a file of blocks", store.write, "../escape", {})


def test_what_lies_in_the_folder_is_what_a_request_would_make(whole, loaded):
    model, tokenizer, layout = loaded
    samples = data.load("lab", 16, 0, 3)
    corpus = Corpus.of(samples, layout, tokenizer)
    policy = prepare.from_spec("with_neighbours(n=2)", corpus=corpus)
    store = MemoryStore(behind=FolderStore(whole.folder, kind_of(model, policy)))
    prompts = layout.prompts(samples, tokenizer)
    found = policy(model, prompts, store)
    assert store.stats.misses == 0 and whole.passages == len(corpus) == whole.made
    for one, other in zip(found, policy(model, prompts, MemoryStore()), strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.start == b.start
            torch.testing.assert_close([*a.tensors()], [*b.tensors()], rtol=1e-4, atol=1e-5)


def test_a_finished_folder_holds_nothing_but_its_result(whole):
    names = {path.name for path in Path(whole.folder).iterdir()}
    shards = {name for name in names if name.startswith("passages-") and name.endswith(".safetensors")}
    assert len(shards) == (whole.passages + 1) // 2
    assert names == shards | {"system.safetensors", "manifest.json", "prepared.json", "_SUCCESS"}
    assert json.loads((Path(whole.folder) / "prepared.json").read_text())["found"]["passages"] == whole.passages
    assert whole.passages_per_second == pytest.approx(whole.passages / whole.seconds)


def test_a_finished_folder_is_left_as_it_is(whole, folder, loaded):
    again = Preparation(str(folder), Path(whole.folder), **DATA).run(loaded=loaded)
    assert (again.made, again.passages, again.bytes) == (0, whole.passages, whole.bytes)


def test_what_a_kill_leaves_is_taken_up_and_ends_as_if_nothing_had_been(whole, folder, loaded, tmp_path):
    """The process dies by SIGKILL while a shard is half written."""
    out = tmp_path / "out"
    save = block_file.save

    def half(path, blocks):
        if path.parent.name == "out" and len(list(path.parent.glob("*.safetensors"))) == 3:
            path.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        save(path, blocks)

    def dies():
        block_file.save = half
        Preparation(str(folder), out, **DATA).run(loaded=loaded)

    assert ended(forked(dies)) == -signal.SIGKILL
    assert not (out / "_SUCCESS").exists() and list(out.rglob(".*.safetensors.*")) and (out / "unprepared").is_dir()
    told = []
    found = Preparation(str(folder), out, **DATA).run(lambda done, total: told.append((done, total)), loaded)
    assert found.made == whole.passages - 4 and told[-1] == (found.made, found.made)
    same(held(out), held(whole.folder))
    assert {path.name for path in out.iterdir()} == {path.name for path in Path(whole.folder).iterdir()}


def test_an_interruption_among_the_unprepared_is_taken_up_too(whole, folder, loaded, tmp_path):
    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Preparation(str(folder), tmp_path / "out", **DATA).run(stop, loaded)
    told = []
    found = Preparation(str(folder), tmp_path / "out", **DATA).run(lambda *done: told.append(done), loaded)
    assert found.made == whole.passages and told[-1] == (2 * whole.passages - 4,) * 2
    same(held(found.folder), held(whole.folder))


def test_workers_make_what_one_process_makes(whole, folder, loaded, tmp_path, forked_pool):
    found = Preparation(str(folder), tmp_path / "out", workers=2, **DATA).run(loaded=loaded)
    assert (found.made, found.workers) == (whole.passages, 2)
    same(held(found.folder), held(whole.folder))


def test_a_shard_that_another_process_has_written_meanwhile_stays(folder, loaded, tmp_path):
    """So it is where two processes fill one store, and where a Dask worker dies after it wrote a shard."""
    about = {"samples": 8, "passages": 3, "prepare": "independent", "shard": 2}
    found = Preparation(str(folder), tmp_path / "a", **about).run(loaded=loaded)
    model, tokenizer, layout = loaded
    corpus = Corpus.of(data.corpus("lab", 8, 0, 3), layout, tokenizer)
    before, name = held(found.folder), next((tmp_path / "a").glob("passages-*")).stem
    policy = prepare.from_spec("independent")
    precompute.ShardMaker(model, policy, tmp_path / "a", ()).make((name, corpus.blocks[:2]))
    same(held(found.folder), before)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"prepare": "fused"}, "unknown prepare 'fused'"),
        ({"prepare": "with_neighbours(n=-1)"}, "n is -1"),
        ({"workers": 0}, "workers is 0"),
        ({"shard": True}, "shard is True"),
        ({"data": "nothing.json"}, "no such file"),
        ({"model": "no-such-model"}, "unknown model"),
    ],
)
def test_bad_input_writes_nothing(change, message, folder, tmp_path):
    refused(message, lambda: Preparation(**{"model": str(folder), "out": tmp_path / "out", **DATA, **change}).run())
    assert not (tmp_path / "out").exists()


def test_another_preparation_corpus_or_model_is_refused_and_the_folder_kept(whole, folder, loaded, tmp_path):
    before = held(whole.folder)
    for change, name in (({"prepare": "after_system"}, "preparation"), ({"samples": 8}, "corpus")):
        with pytest.raises(BadInput, match=f"blocks of another {name}"):
            Preparation(str(folder), Path(whole.folder), **{**DATA, **change}).run(loaded=loaded)
    other = tiny.checkpoint(tmp_path / "other", rms_norm_eps=1e-3)
    refused("blocks of another model", lambda: Preparation(str(other), Path(whole.folder), **DATA).run())
    same(before, held(whole.folder))
    assert (Path(whole.folder) / "_SUCCESS").exists()


def test_the_command_prepares_and_says_how_fast(folder, tmp_path):
    out = tmp_path / "out"
    command = ["prepare", "--model", folder, "--samples", "4", "--passages", "3", "--n", "2", "--out", out]
    found = json.loads(told(*command, "--json"))
    assert found["prepare"].startswith("with_neighbours(n=2, embedder=tfidf") and found["passages_per_second"] > 0
    assert ": 0 encoded in" in told(*command)
    said = refused_command(*command, "--embedder", "tfidf", "--prepare", "independent")
    assert "prepare 'independent' has no option" in said


def test_options_of_generated_data_are_refused_for_a_file(folder, tmp_path):
    (tmp_path / "q.csv").write_text("question,passages\nWho?,A text\n")
    for given in (("--samples", 1), ("--passages", 2), ("--seed", 3)):
        asked = ("store", "encode", tmp_path / "q.csv", "--model", folder, "--to", tmp_path / "out", *given)
        assert "is for generated data" in refused_command(*asked)
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_this_run_wrote_and_what_the_store_holds(folder, tmp_path):
    out = tmp_path / "out"
    before = 0
    for samples, fresh in ((1, "2 encoded"), (1, "0 encoded"), (4, " encoded")):
        asked = ("--samples", samples, "--passages", 2, "--prepare", "independent", "--out", out)
        said = " ".join(told("prepare", "--model", folder, *asked).split())
        store = FolderStore(out)
        written, before = store.bytes - before, store.bytes
        assert fresh in said and f"{written / 1e6:.1f} MB written" in said
        assert f"the store holds {len(store)} blocks, {store.bytes / 1e6:.1f} MB" in said


def test_a_worker_process_that_dies_is_reported(folder, loaded, tmp_path, monkeypatch):
    class Broken(ThreadPoolExecutor):
        def submit(self, *asked):
            return super().submit(self.dies)

        def dies(self):
            raise BrokenProcessPool

    monkeypatch.setattr(runner, "pool", lambda workers, shared: Broken(workers))
    with pytest.raises(RuntimeError, match="a worker process: its process ended"):
        Preparation(str(folder), tmp_path / "out", workers=2, **DATA).run(loaded=loaded)
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_trial_takes_from_the_folder_what_it_would_compute(whole, folder, loaded):
    asked = {"model": str(folder), "mode": "block", "samples": 16, "passages": 3, "max_new_tokens": 4, "timed": 1}
    ways = [{"prepare": "with_neighbours(n=2)"}, {"prepare": "with_neighbours(n=2)", "prepared": whole.folder}]
    (fresh, said), (found, again) = (Trial(**asked, **way).run_each(loaded=loaded) for way in ways)
    assert said == again and found.hit_rate == 1 > fresh.hit_rate
    with pytest.raises(BadInput, match=r"blocks of another preparation: .*and not after_system"):
        Trial(**asked, prepare="after_system", prepared=whole.folder).run(loaded=loaded)
    refused("prepared 'x' is for mode block", Trial, str(folder), mode="full", prepared="x")
