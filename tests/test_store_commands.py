"""`workbench store`: filled, verified, repaired, kept within a budget, carried over; and trials over what it holds."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from store_serving import CPU, drawn, runs
from typer.testing import CliRunner

from tests import tiny
from tests.commands import refused_command, told
from tests.random_models import block_of, model_of
from tests.refusals import refused
from tests.store_blocks import folder_with, key_for, kv_of, same
from workbench import data, models
from workbench.app import cli
from workbench.core.utils.files import bytes_of
from workbench.data.retrieval_corpus import Corpus
from workbench.experiments.serving.baselines import reordered
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods import prepare
from workbench.methods.preprocessing.lookups import Lookups
from workbench.methods.preprocessing.precompute import Preparation
from workbench.results import expand_settings, scores
from workbench.results.reader import Results
from workbench.store import FolderStore, MemoryStore, fetch, fingerprint, key_of, keys
from workbench.store.files import quarantine
from workbench.store.files.eviction import collect_garbage
from workbench.store.remote import RemoteStore, file_system
from workbench.store.views import ReadOnlyStore, RecordingStore, StagingStore

PASSAGES = [
    {"title": f"Title {i}", "text": f"The door of house {i} is painted in colour number {i}."} for i in range(9)
]
QUESTIONS = [
    {"question": f"Which colour has the door of house {i}?", "answers": [str(i)], "ctxs": PASSAGES[i : i + 3]}
    for i in range(6)
]


def run(*words: object) -> tuple[int, str]:
    ended = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout + ended.stderr


def said(*words: object) -> dict:
    return json.loads(told(*words, "--json"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of questions, one of their passages alone and one of plain text."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "questions.json").write_text(json.dumps(QUESTIONS))
    (folder / "passages.jsonl").write_text("".join(json.dumps(each) + "\n" for each in PASSAGES))
    (folder / "text.md").write_text("\n\n".join(each["text"] for each in PASSAGES))
    return folder


@pytest.fixture(scope="module")
def encoded(folder, files, tmp_path_factory):
    """A store of the questions' passages, and what the command said."""
    to = tmp_path_factory.mktemp("store") / "kept"
    return to, said("store", "encode", files / "questions.json", "--model", folder, "--to", to)


@pytest.fixture
def kept(encoded, tmp_path):
    """A copy of the store, for a test to spoil."""
    return Path(shutil.copytree(encoded[0], tmp_path / "kept"))


def damage(store: Path) -> Path:
    path = max(store.glob("passages-*.safetensors"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
    return path


def trial(folder, files, *words: object) -> dict:
    about = ("--samples", 6, "--timed", 1, "--max-new-tokens", 3, "--no-fidelity")
    return said("trial", "--model", folder, "--data", files / "questions.json", *about, *words)


def test_a_trial_finds_all_that_was_encoded_and_answers_as_without_a_store(encoded, folder, files):
    to, told = encoded
    assert (told["passages"], told["made"], told["prepare"]) == (8, 8, "independent")
    with_store = trial(folder, files, "--store", to)
    without = trial(folder, files, "--mode", "block")
    assert with_store["hit_rate"] == 1 and not with_store.get("misses")
    assert with_store["em"] == without["em"] and with_store["f1"] == without["f1"]


def test_encoding_again_makes_nothing_and_another_corpus_is_added(kept, folder, files):
    again = said("store", "encode", files / "questions.json", "--model", folder, "--to", kept)
    assert (again["made"], again["passages"]) == (0, 8)
    before = len(FolderStore(kept))
    added = said("store", "encode", files / "passages.jsonl", "--model", folder, "--to", kept)
    assert added["passages"] == 9 and len(FolderStore(kept)) == before + 1, "eight of its nine passages were there"
    text = said("store", "encode", files / "text.md", "--model", folder, "--to", kept)
    for name in ("questions.json", "passages.jsonl", "text.md"):
        assert said("store", "encode", files / name, "--model", folder, "--to", kept)["made"] == 0
    assert text["passages"] == 9 and len(FolderStore(kept)) == before + 10


def test_verify_says_which_block_is_damaged_and_repair_encodes_it_again(kept, folder, files):
    assert run("store", "verify", kept)[0] == 0
    blocks = {key: FolderStore(kept).get(key) for key in FolderStore(kept)}
    path = damage(kept)
    code, text = run("store", "verify", kept)
    assert code == 1 and text.count("damaged: the checksum of") == 1 and text.startswith(path.name)
    code, text = run("store", "repair", kept)
    assert code == 0 and "passages encoded again: 1" in text and "kept: 7" in text and ": whole\n" in text
    assert list(quarantine.reasons(kept)) == [path.name]
    again = {key: FolderStore(kept).get(key) for key in FolderStore(kept)}
    assert again.keys() == blocks.keys() and all(len(again[key]) == len(blocks[key]) for key in again)
    for _ in range(2):  # and once more, of the file that was written anew
        damage(kept)
        assert run("store", "repair", kept)[0] == 0
    assert FolderStore(kept).blocks_of(path.stem) and len(FolderStore(kept)) == len(blocks)
    assert trial(folder, files, "--store", kept)["hit_rate"] == 1


def test_verify_says_which_file_is_gone_and_repair_encodes_it_again(kept, folder, files, tmp_path):
    blocks = sorted(FolderStore(kept))
    path = max(kept.glob("passages-*.safetensors"))
    path.unlink()
    code, text = run("store", "verify", kept)
    assert code == 1 and text.startswith(f"{path.name}: gone") and ": damaged\n" in text
    refused_command("store", "export", kept, tmp_path / "kept.tar")
    assert run("store", "repair", kept, "--no-encode")[0] == 1
    found = said("store", "repair", kept)
    assert found["whole"] and found["made"] == 8 and sorted(FolderStore(kept)) == blocks
    path.unlink()
    text = refused_command("store", "encode", files / "text.md", "--model", folder, "--to", kept)  # would take its name
    assert f"lacks {path.name}" in text
    assert said("store", "encode", files / "questions.json", "--model", folder, "--to", kept)["made"] == 8
    said("store", "encode", files / "text.md", "--model", folder, "--to", kept)
    path.unlink()
    assert run("store", "verify", kept)[0] == 1 and run("store", "repair", kept)[0] == 0
    assert said("store", "gc", kept, "--budget", 1)["files"] and said("store", "verify", kept)["whole"]


def test_links_to_themselves_and_to_nowhere_are_named_and_never_followed(kept, tmp_path):
    (kept / "loop.safetensors").symlink_to("loop.safetensors")
    (kept / "nowhere.safetensors").symlink_to("nothing")
    code, text = run("store", "verify", kept)
    assert code == 1 and text.count("loop.safetensors: damaged") == 1
    assert "loop.safetensors" in run("store", "stats", kept)[1]
    refused_command("store", "export", kept, tmp_path / "kept.tar")
    assert run("store", "gc", kept, "--budget", "1GB")[0] == 0
    assert run("store", "verify", kept)[0] == 0


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_what_is_lacking_is_not_guessed_by_a_damaged_record(kept, place):
    record = Path(kept) / "prepared.json"
    path, whole = damage(kept), record.read_bytes()
    at = int(place * len(whole))
    record.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    text = refused_command("store", "repair", kept)
    assert "prepared.json" in text and path.is_file() and not list(quarantine.reasons(kept))
    record.write_bytes(whole)
    assert run("store", "repair", kept)[0] == 0


def test_repair_without_encoding_leaves_misses(kept, folder, files):
    damage(kept)
    found = said("store", "repair", kept, "--no-encode")
    assert found["whole"] and found["made"] == 0 and len(found["repaired"]) == 1
    assert trial(folder, files, "--store", kept)["hit_rate"] < 1


def test_a_trial_keeps_what_a_store_lacks_and_replaces_what_is_damaged(kept, folder, files, tmp_path):
    damage(kept)
    found = trial(folder, files, "--store", kept)
    assert found["misses"] == {"damaged": 1} and run("store", "verify", kept)[0] == 0
    new = tmp_path / "new"
    trial(folder, files, "--store", new)
    assert trial(folder, files, "--store", new)["hit_rate"] == 1 and len(FolderStore(new)) == len(FolderStore(kept))


def test_a_trial_takes_the_preparation_of_its_store(folder, files, tmp_path):
    to = tmp_path / "after"
    said("store", "encode", files / "questions.json", "--model", folder, "--to", to, "--prepare", "after_system")
    found = trial(folder, files, "--store", to)
    assert found["trial"]["prepare"].startswith("after_system") and found["hit_rate"] == 1
    asked = ("--model", folder, "--data", files / "questions.json", "--store", to, "--prepare=independent")
    assert "holds blocks of another preparation" in refused_command("trial", *asked)


def test_garbage_is_collected_down_to_a_budget_and_misses_say_so(kept, folder, files):
    whole = said("store", "stats", kept)
    assert whole["blocks"] == 9
    damage(kept)
    said("store", "repair", kept, "--no-encode")
    assert quarantine.reasons(kept)
    left = said("store", "gc", kept, "--budget", "1GB")
    assert left["blocks"] == 0 and not quarantine.reasons(kept)
    gone = said("store", "gc", kept, "--budget", 1)
    assert gone["after"] == 0 and (gone["blocks"], gone["files"]) == (8, 2) and len(FolderStore(kept)) == 0
    told = said("store", "explain", kept, "--model", folder, "--data", files / "questions.json")
    assert told["hits"] == 0 and told["reasons"]["evicted"] == 8
    why = next(miss["detail"] for miss in told["missed"] if miss["reason"] == "evicted")
    assert "UTC, to make room: the budget is 0.0 MB" in why


def test_what_was_read_longest_ago_goes_first(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    for i in range(4):
        store.put(f"b{i}", kv_of(i))
    for i, when in enumerate((400, 100, 300, 200)):
        os.utime(tmp_path / "a" / f"b{i}.safetensors", (when, 50))
    size = store.bytes // 4
    found = collect_garbage(tmp_path / "a", 2 * size + 10)
    assert (found.blocks, found.after) == (2, 2 * size)
    again = FolderStore(tmp_path / "a")
    assert sorted(again) == ["b0", "b2"] and same(again.get("b0"), kv_of(0))
    assert store.get("b1") is None and store.miss_reason("b1").reason == "evicted"


@pytest.mark.parametrize("ending", [".tar", ".tar.zst"])
def test_an_archive_gives_the_same_store_back(kept, tmp_path, ending):
    archive = tmp_path / f"a{ending}"
    out, back = said("store", "export", kept, archive), said("store", "import", archive, tmp_path / "back")
    assert out["blocks"] == back["blocks"] == 9 and out["bytes"] == back["bytes"]
    names = {path.name for path in kept.iterdir()}
    assert {path.name for path in (tmp_path / "back").iterdir()} == names
    assert all((tmp_path / "back" / name).read_bytes() == (kept / name).read_bytes() for name in names)


def test_a_damaged_archive_or_store_is_refused_and_nothing_is_left(kept, tmp_path):
    archive = tmp_path / "a.tar"
    said("store", "export", kept, archive)
    whole = archive.read_bytes()
    for place, change in ((len(whole) // 2, b"\1\2\3"), (whole.index(b'"model"') + 15, b"..")):
        archive.write_bytes(whole[:place] + change + whole[place + len(change) :])
        assert "damaged" in refused_command("store", "import", archive, tmp_path / "back")
    for broken in (whole[: len(whole) // 2], b"", b"no archive" * 100):
        archive.write_bytes(broken)
        refused_command("store", "import", archive, tmp_path / "back")
    assert not (tmp_path / "back").exists() and not list(tmp_path.glob(".*"))
    damage(kept)
    text = refused_command("store", "export", kept, tmp_path / "b.tar.zst")
    assert "is damaged" in text and not (tmp_path / "b.tar.zst").exists()


def test_an_archive_cannot_write_outside_its_folder(kept, tmp_path):
    for name in ("../escape.safetensors", "/tmp/escape.safetensors", "notes.txt", "a/b.safetensors"):
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
        said = refused_command("store", "import", tmp_path / "a.tar", tmp_path / "back")
        assert "which is no file of cached blocks" in said
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "a.tar"}


@pytest.mark.parametrize(
    "words, says",
    [
        (("encode", "{files}/empty.md", "--model", "{model}", "--to", "{new}"), "empty.md holds no text"),
        (("encode", "{files}/empty.json", "--model", "{model}", "--to", "{new}"), "empty.json holds no text"),
        (("encode", "{files}/blank.json", "--model", "{model}", "--to", "{new}"), "blank.json holds no text"),
        (("encode", "{files}/none.md", "--model", "{model}", "--to", "{new}"), "no such file"),
        (("encode", "{files}/text.md", "--model", "{model}", "--to", "nowhere://a"), "unknown scheme 'nowhere'"),
        (("encode", "{files}/text.md", "--model", "{model}", "--to", "{files}"), "holds something else"),
        (("encode", "{files}/text.md", "--model", "{other}", "--to", "{kept}"), "holds blocks of another model"),
        (("encode", "{files}/text.md", "--model", "{model}", "--to", "{new}", "--workers", "0"), "workers is 0"),
        (("gc", "memory://a", "--budget", "1MB"), "memory://a is a URL: a folder is needed"),
        (("export", "s3://a/b", "{files}/a.tar"), "s3://a/b is a URL: a folder is needed"),
        (("verify", "nowhere://a"), "unknown scheme 'nowhere'"),
        (("repair", "nowhere://a"), "unknown scheme 'nowhere'"),
        (("stats", "nowhere://a"), "unknown scheme 'nowhere'"),
        (
            ("explain", "nowhere://a", "--model", "{model}", "--data", "{files}/questions.json"),
            "unknown scheme 'nowhere'",
        ),
        (
            ("encode", "{files}/text.md", "--model", "{model}", "--to", "/proc/none"),
            "nothing can be written there (/proc",
        ),
        (("gc", "{kept}", "--budget", "0"), "budget is 0: at least 1 byte"),
        (("gc", "{kept}", "--budget", "-3MB"), "budget is -3000000: at least 1 byte"),
        (("gc", "{kept}", "--budget", "much"), "'much' is no size"),
        (("gc", "{files}", "--budget", "1MB"), "is no folder of cached blocks"),
        (("verify", "{files}"), "is no folder of cached blocks"),
        (("stats", "{files}"), "is no folder of cached blocks"),
        (("explain", "{files}", "--model", "{model}"), "is no folder of cached blocks"),
        (("verify", "memory://nothing-here"), "is no store of cached blocks"),
        (("export", "{kept}", "{files}/a.zip"), "an archive ends in .tar or .tar.zst"),
        (("import", "{files}/none.tar", "{new}"), "no such file"),
        (("import", "{files}/text.tar", "{kept}"), "a new or empty folder is needed"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(words, says, kept, folder, files, tmp_path):
    other = tiny.checkpoint(tmp_path / "other", rms_norm_eps=1e-3) if "{other}" in words else ""
    (files / "empty.md").write_text(" \n\n ")
    (files / "empty.json").write_text("[]")
    (files / "blank.json").write_text('[{"question": "a?", "answers": ["b"], "ctxs": [{"title": "", "text": " "}]}]')
    (files / "text.tar").write_text("")
    before = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    names = {"files": files, "model": folder, "other": other, "kept": kept, "new": tmp_path / "new"}
    assert says in refused_command("store", *(word.format(**names) for word in words))
    assert not (tmp_path / "new").exists()
    assert {path.name: path.stat().st_mtime_ns for path in kept.iterdir()} == before


@pytest.mark.parametrize(
    "text, size",
    [("10GB", 10**10), ("1.5 MiB", 1572864), ("4096", 4096), ("2k", None), ("7 kb", 7000), ("1TB", 10**12)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    if size is None:
        refused("is no size", bytes_of, text)
    else:
        assert bytes_of(text) == size


def test_a_store_and_a_folder_of_prepare_exclude_each_other(folder, tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    assert "give one of them" in refused_command("trial", "--model", folder, "--store", "a", "--prepared", tmp_path)
    assert "is for mode block" in refused_command("trial", "--model", folder, "--store", "a", "--mode", "full")


def test_a_url_is_filled_resumed_verified_and_answers_a_trial(folder, files, tmp_path):
    to = f"memory://{tmp_path.name}/kept"
    words = ("store", "encode", files / "questions.json", "--model", folder, "--to", to, "--prepare")
    told = said(*words, "with_neighbours(n=2)")
    assert (told["made"], told["passages"]) == (8, 8)
    assert said(*words, "with_neighbours(n=2)")["made"] == 0
    refused_command(*words, "independent")
    assert said("store", "verify", to)["whole"] and said("store", "stats", to)["blocks"] == 9
    assert trial(folder, files, "--store", to)["hit_rate"] == 1
    assert Preparation(str(folder), to, str(files / "questions.json"), "with_neighbours(n=2)").run().made == 0


def test_damaged_blocks_at_a_url_are_encoded_again_and_no_others(folder, files, tmp_path):
    to = f"memory://{tmp_path.name}/repaired"
    said("store", "encode", files / "questions.json", "--model", folder, "--to", to)
    blocks = sorted(RemoteStore(to).block_sizes())
    fs, root = file_system(to)
    for key in (blocks[0], blocks[1], blocks[0]):
        path = f"{root}/{key}.safetensors"
        whole = fs.cat_file(path)
        fs.pipe_file(path, whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
        assert run("store", "verify", to)[0] == 1
        found = said("store", "repair", to)
        assert found["whole"] and found["repaired"] == [f"{key}.safetensors"] and found["made"] <= 1
        assert sorted(RemoteStore(to).block_sizes()) == blocks
    fs.rm_file(f"{root}/{blocks[0]}.safetensors")
    code, text = run("store", "verify", to)
    assert code == 1 and f"{blocks[0]}.safetensors" in text and ": gone" in text
    assert said("store", "repair", to)["whole"] and sorted(RemoteStore(to).block_sizes()) == blocks
    assert said("store", "encode", files / "questions.json", "--model", folder, "--to", to)["made"] == 0


def test_look_ups_at_a_url_are_explained(folder, files, tmp_path):
    to = f"memory://{tmp_path.name}/explained"
    said("store", "encode", files / "passages.jsonl", "--model", folder, "--to", to)
    told = said("store", "explain", to, "--model", folder, "--data", files / "questions.json")
    assert (told["hits"], told["misses"]) == (9, 0)
    words = ("--model", folder, "--data", files / "questions.json", "--prepare", "after_system")
    told = said("store", "explain", to, *words)
    assert (told["hits"], told["reasons"]) == (1, {"never seen": 8})


# --- Serving from stores of blocks: runs by state and mode, as rows of results
TINY = CPU | {"blocks": 6, "block": 8, "per_question": 3, "question": 4, "answer": 2, "questions": 5, "batch": 2}
TINY |= {"baseline": 5, "chosen": 2}  # the fifth begins as the third did, which is kept by then, whatever runs at once


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
def test_serving_is_measured_by_state_and_mode_beside_its_baselines(paged, folder):
    counted = [row for rows in runs(models.load(folder), TINY, paged) for row in rows]
    found = Results({}).with_rows("counts", counted, experiment="serving").counts("serving")
    table = expand_settings(scores(found), "scheduler")
    assert len(table) == 21 and (table.ttft_ms > 0).all() and set(table.blocks) == {6}
    reuse = table[table.method == "reuse"]
    assert set(reuse.kind) == {"hot", "warm", "cold"} and (reuse.reused == 1).all()
    rows = table.set_index(["method", "ratio"]).rows_computed
    assert rows["full prefill", 0.0].item() == 28 > rows["prefix caching", 0.0].item() >= 4
    assert 4 <= rows["reordered prefix caching", 0.0].item() <= 28


def test_a_reordering_prefix_cache_finds_more_of_the_same_blocks():
    asked = drawn(CPU, 97)
    before, after = ([prompt.context for prompt in prompts] for prompts in (asked, reordered(asked)))
    beginnings = [[context[:n] for context in order for n in range(1, len(context) + 1)] for order in (before, after)]
    assert len(set(beginnings[1])) < len(set(beginnings[0]))
    assert [set(context) for context in before] == [set(context) for context in after]


def test_prompts_over_the_context_are_refused(folder):
    refused("2048", lambda: list(runs(models.load(folder), TINY | {"block": 800}, False)))


# --- Every miss says why: what is different between the block that is asked for and those that are kept
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
    assert {key: store.miss_reason(key).reason for key in other} == other
    counted = store.stats.since(before)
    assert sum(counted.reasons.values()) == counted.misses == len(other) and counted.reasons["other model"] == 2
    monkeypatch.undo()
    assert store.get(key_of(*key, [BEFORE])) is not None


def test_the_nearest_of_many_kept_blocks_explains_a_miss():
    store = MemoryStore()
    for model in ("a", "b"):
        store.put(key_of(model, torch.float32, BLOCK, [BEFORE]), kv_of(1, 4))
    assert store.miss_reason(key_of("b", torch.float32, BLOCK)).reason == "other context before it"


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
    assert len(store._dropped) == 10 and sum(map(len, store._index._keys.values())) == 1
    assert store.miss_reason(key_for(38)).reason == "evicted" and store.miss_reason(key_for(1)).reason == "never seen"


def test_views_pass_the_reason_on():
    store = MemoryStore(kv_of(1).nbytes)
    for seed in (1, 2):
        store.put(key_for(seed), kv_of(seed))
    for view in (ReadOnlyStore(store), RecordingStore(store), StagingStore(MemoryStore(), store)):
        assert view.miss_reason(key_for(1)).reason == "evicted"
    assert ReadOnlyStore(store, set()).miss_reason(key_for(2)).reason == "never seen"


# Trials and the command line


DATA = {"samples": 4, "passages": 3}


@pytest.fixture(scope="module")
def prepared(folder, loaded, tmp_path_factory):
    out = tmp_path_factory.mktemp("misses") / "prepared"
    Preparation(str(folder), out, prepare="after_system", **DATA).run(loaded=loaded)
    return out


@pytest.fixture
def spare(prepared, tmp_path):
    """A copy of what was prepared, for a test to spoil."""
    return Path(shutil.copytree(prepared, tmp_path / "spare"))


def test_a_trial_over_a_damaged_folder_answers_the_same_and_counts_the_damage(spare, folder, loaded):
    asked = {"model": str(folder), "mode": "block", "prepare": "after_system", "max_new_tokens": 4, "timed": 1, **DATA}
    trial = Trial(**asked, prepared=str(spare), fidelity=False)
    record, rows = trial.run_each(loaded=loaded)
    assert record.misses == {} and record.hit_rate == 1
    damage(spare)
    again, same_rows = trial.run_each(loaded=loaded)
    assert again.misses == {"damaged": 1} and same_rows == rows
    assert Record.from_json(json.loads(json.dumps(again.to_json()))).misses == {"damaged": 1}
    repaired, _ = trial.run_each(loaded=loaded)
    assert repaired.misses == {}, "the damaged block was replaced"
    full = Trial(**{**asked, "mode": "full", "prepare": "independent"}, fidelity=False).run(loaded=loaded)
    assert full.misses is None and "misses" not in full.to_json()


def test_what_is_damaged_is_named_deleted_and_made_again(prepared, spare, folder, loaded):
    code, text = run("store", "verify", spare)
    assert code == 0 and text.endswith(": whole\n")
    name = damage(spare).name
    code, text = run("store", "verify", spare)
    text = " ".join(text.split())
    assert code == 1 and f"{name}, block" in text
    assert "damaged: the checksum of the values of layer" in text
    found = json.loads(run("store", "verify", spare, "--repair", "--json")[1])
    assert not found["whole"] and found["removed"] == [name] and len(found["findings"]) == 1
    assert run("store", "verify", spare)[0] == 0
    again = Preparation(str(folder), spare, prepare="after_system", **DATA).run(loaded=loaded)
    assert again.made == len(found["findings"]) < again.passages  # whole blocks of a damaged file are kept
    made, before = FolderStore(spare), FolderStore(prepared)
    for key in before:
        pairs = zip(made.get(key).tensors(), before.get(key).tensors(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_shard_whose_header_is_damaged_is_prepared_again(spare, folder, loaded):
    max(spare.glob("passages-*")).write_bytes(b"no header")
    again = Preparation(str(folder), spare, prepare="after_system", **DATA).run(loaded=loaded)
    assert again.made == again.passages and not FolderStore(spare).set_aside


def test_explain_counts_hits_and_gives_each_miss_its_reason(prepared, folder, tmp_path):
    asked = ["store", "explain", prepared, "--model", folder, "--samples", 4, "--passages", 3]
    found = said(*asked)
    assert found["hits"] > 3 and found["misses"] == 0 and found["prepare"] == "after_system(system=1)"
    other = said(*asked, "--prepare", "independent")
    assert other["reasons"] == {"other context before it": found["hits"] - 1}, "the system block is the same"
    assert all(miss["block"] and miss["detail"] for miss in other["missed"])
    assert said(*asked, "--dtype", "bfloat16")["reasons"] == {"other dtype": found["hits"]}
    model = tiny.checkpoint(tmp_path / "other", rms_norm_eps=1e-3)
    assert said(*asked, "--model", model)["reasons"] == {"other model": found["hits"]}
    assert "never seen" in said(*asked, "--seed", 5)["reasons"]
    words = json.loads((model / "tokenizer.json").read_text())
    first, second = list(words["model"]["vocab"])[5:7]
    vocabulary = words["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (model / "tokenizer.json").write_text(json.dumps(words))
    assert said(*asked, "--model", model, "--seed", 5)["reasons"].keys() == {"other model"}
    text = " ".join(run(*asked, "--prepare", "independent")[1].split())
    assert "blocks are there, for independent" in text and "other context before it: blocks before it: kept 1" in text


def test_explain_asks_for_what_a_trial_asks_for_behind_neighbours_too(folder, loaded, tmp_path):
    out = tmp_path / "out"
    spec = "with_neighbours(n=2)"
    Preparation(str(folder), out, prepare=spec, **DATA).run(loaded=loaded)
    found = Lookups(out, str(folder), **DATA).run(loaded)
    model, tokenizer, layout = loaded
    samples = data.load("lab", 4, 0, 3)
    policy = prepare.from_spec(spec, corpus=Corpus.of(samples, layout, tokenizer))
    recording = RecordingStore(MemoryStore(behind=FolderStore(out)))
    policy(model, layout.prompts(samples, tokenizer), recording)
    assert not recording.stored and not found.misses and found.hits == recording.store.stats.entries
    fewer = Lookups(out, str(folder), prepare="with_neighbours(n=1)", **DATA).run(loaded)
    assert fewer.reasons == {"other neighbours": found.hits - 1}


def test_stats_tells_what_there_is(prepared, tmp_path):
    found = said("store", "stats", prepared)
    assert found["blocks"] == len(FolderStore(prepared)) and not found["set_aside"]
    assert found["models"] == [found["kind"]["model"]] and found["dtypes"] == ["torch.float32"]
    text = run("store", "stats", prepared)[1]
    assert f"{found['kind']['model_name']} ({found['kind']['model'][:16]}…)" in text and "torch.float32" not in text
    (made,) = found["made"]
    assert made["device"] == "cpu" and made["torch"] == torch.__version__
    old = folder_with(tmp_path / "old", {key_for(1): kv_of(1)})
    (old / "broken.safetensors").write_bytes(b"1")
    found = said("store", "stats", old)
    assert (found["blocks"], found["tokens"]) == (1, 3)
    assert found["set_aside"][0]["file"] == "broken.safetensors" and "damaged" in run("store", "stats", old)[1]


def test_explain_refuses_what_a_trial_refuses(prepared, folder):
    for change, says in (({"samples": 0}, "samples is 0"), ({"prepare": "fused"}, "unknown prepare 'fused'")):
        refused(says, Lookups(prepared, str(folder), **{**DATA, **change}).run)
