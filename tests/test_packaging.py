"""The package works however it is installed: wheel, sdist to wheel, editable, from the repository root; in any folder.

Builds need no network: they use this environment's setuptools. A fresh environment sees the dependencies of this one
through a .pth file, and also holds a package named `kernels` as Hugging Face ships one.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import workbench
from workbench.app.explore.editor.html import PARTS

ROOT = Path(__file__).resolve().parents[1]
HUGGING_FACE_KERNELS = {"__init__.py": "def get_kernel(name): raise RuntimeError(name)\n"}
# What must hold wherever the package came from. argv: the folder it must come from, and "load" to read all that ships.
CHECK = """
import importlib.util, sys
from pathlib import Path
import workbench, workbench.kernels
import kernels
from workbench.data import assets

home = Path(sys.argv[1]).resolve()
assert home in Path(workbench.__file__).resolve().parents, workbench.__file__
rotate_keys = importlib.util.find_spec("workbench.kernels.rotate_keys").origin
assert home in Path(rotate_keys).resolve().parents, rotate_keys
assert kernels.get_kernel, "Hugging Face's package is shadowed"
assert all(home in assets.model_path(name).parents for name in assets.models()), assets.ROOT
print(*assets.models(), *assets.corpora())
if sys.argv[2:] != ["load"]:
    sys.exit()
import transformers
from workbench import data, models
from workbench.kernels import rotate_keys
for name in assets.models():
    if not (assets.model_path(name) / "config.json").is_file():  # an adapter, whose base model is fetched
        assert models.describe(assets.model_path(name))["parameters"]
        continue
    model, tokenizer, layout = models.load(name)
    assert model.num_parameters() and tokenizer("a").input_ids and layout.name
for name in assets.corpora():
    assert data.load(f"{name}-sample", samples=1), name
"""
LARGEST = 50e6  # bytes of all tracked files


def test_the_tracked_tree_stays_small():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout: nothing says what is tracked")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert sum(file.stat().st_size for file in files if file.is_file()) < LARGEST


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The wheel built from the checkout, and the one built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
    if tracked.returncode:
        pytest.skip("not a git checkout: there is no list of source files to build from")
    for name in filter(None, tracked.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    build("wheel", source, folder / "direct")
    build("sdist", source, folder / "sdist")
    shutil.unpack_archive(next((folder / "sdist").glob("*.tar.gz")), folder / "unpacked", filter="data")
    build("wheel", next((folder / "unpacked").iterdir()), folder / "indirect")
    wheels = {kind: next((folder / kind).glob("*.whl")) for kind in ("direct", "indirect")}
    return {**wheels, "source": source}


def build(kind: str, source: Path, to: Path) -> None:
    to.mkdir()
    code = f"import setuptools.build_meta as backend; backend.build_{kind}({str(to)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> tuple[Path, Path]:
    """An environment of its own: its python, and its site-packages."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", query], capture_output=True, text=True, check=True).stdout.strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name, text in HUGGING_FACE_KERNELS.items():
        (site / "kernels").mkdir(exist_ok=True)
        (site / "kernels" / name).write_text(text)
    return python, site


def contents(wheel: Path) -> dict[str, int]:
    """Names and checksums of the files in a wheel, without the list of files that it holds itself."""
    with zipfile.ZipFile(wheel) as archive:
        return {file.filename: file.CRC for file in archive.infolist() if not file.filename.endswith("RECORD")}


def install(site: Path, wheel: Path) -> None:
    """What pip does with a pure wheel: unpack it."""
    shutil.rmtree(site / "workbench", ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def check(python: Path, home: Path, cwd: Path, *load: str) -> set[str]:
    """Run CHECK in `cwd`; the names of the models and corpora that ship."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([python, "-c", CHECK, home, *load], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stdout.split())


def test_installed_wheel_works_in_any_folder(built, fresh, tmp_path):
    python, site = fresh
    install(site, built["indirect"])
    assert check(python, site, tmp_path, "load") == shipped()


def test_repository_root_works_beside_an_installed_kernels_package(fresh):
    python, site = fresh
    shutil.rmtree(site / "workbench", ignore_errors=True)
    assert check(python, ROOT, ROOT) == shipped()


def test_editable_install_works_in_any_folder(built, fresh, tmp_path):
    python, site = fresh
    shutil.rmtree(site / "workbench", ignore_errors=True)
    code = f"import setuptools.build_meta as backend; backend.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=built["source"], check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(site)
    try:
        assert check(python, built["source"], tmp_path) == shipped()
    finally:
        for hook in site.glob("__editable__*"):
            hook.unlink()


def test_both_wheels_hold_the_same_files_and_nothing_at_the_top_but_the_package(built):
    files = {kind: contents(built[kind]) for kind in ("direct", "indirect")}
    assert files["direct"] == files["indirect"]
    top = {name.split("/")[0] for name in files["direct"]}
    assert {name for name in top if not name.endswith(".dist-info")} == {"workbench"}
    assert not any(name.endswith((".ipynb", ".sh")) for name in files["direct"])
    editor = "prompt_widget.css", *(f"{part}.js" for part in (*PARTS, "page_model"))
    assert {f"workbench/app/explore/editor/{name}" for name in editor} <= set(files["direct"])
    results = {Path(name).suffix for name in files["direct"] if "benchmarks" in name}
    assert results <= {".json", ".parquet"}, "results ship, the scripts that make them do not"


def test_every_package_folder_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "workbench").rglob("__init__.py")}
    folders |= {Path("workbench") / path.parent.relative_to(ROOT) for path in (ROOT / "kernels").rglob("__init__.py")}
    found = {".".join(folder.parts) for folder in folders} | {"workbench.shipped"}
    assert set(project["tool"]["setuptools"]["packages"]) == found


def test_no_public_name_is_also_the_name_of_a_module():
    """Python would hand out the module in its place, as soon as anything has imported it."""
    modules = {path.stem for path in (ROOT / "workbench").iterdir()}
    assert not modules & set(workbench.__all__)


def test_the_lab_model_ships():
    assert "lab-full" in shipped()


def shipped() -> set[str]:
    """Names of what lies in data/."""
    models = {path.parent.name for path in (ROOT / "data" / "models").glob("*/*.safetensors")}  # of adapters too
    return models | {path.parent.name for path in (ROOT / "data").glob("*/sample.jsonl")}
