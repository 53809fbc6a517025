"""What all tests share."""

import atexit
import gc
import multiprocessing
import os
import signal
from contextlib import ExitStack, nullcontext

import pytest
import quick_interpreter
import torch
from hypothesis import settings

import workbench.app.notebooks  # noqa: F401  (before test files import nbformat)

# What a terminal would change: commands are tested as they print to a file of 80 columns, without colours.
for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["COLUMNS"], os.environ["TERM"] = "80", "dumb"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background: tests send it to their processes
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # while test files are imported: modules stay

# Must be set before Triton is imported, as transformers may do: without a GPU, Triton interprets kernels on the CPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The same examples in every run, and no deadline on a busy machine.
settings.register_profile("workbench", deadline=None, derandomize=True)
settings.load_profile("workbench")


# Files that take longest, which two processes share best when they begin with them (`make test` hands out whole files).
LONG = ("test_browser", "test_notebooks", "test_hopper", "test_types", "test_explorers", "test_packaging")
LONG += ("test_kernels", "test_sweep", "test_documented", "test_scheduler", "test_results_tables")
LONG += ("test_report_index_browser", "test_bench_models", "test_tuning", "test_self_teacher", "test_cli")
LONG += ("test_leaderboard", "test_choice", "test_report", "test_claims")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_collection_finish():
    if "TRITON_INTERPRET" in os.environ:
        quick_interpreter.install()
    gc.freeze()  # the collector need not go through modules after every few tests
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session")
def python():
    """Stands for `python -m`: forks of one process that has imported the workbench (app/notebooks/forked.py)."""
    from forked import MODULES

    from workbench.app.notebooks import forked

    with forked.serve_forks(os.environ | {"OMP_NUM_THREADS": "1"}, MODULES) as command:
        yield command


@pytest.fixture(scope="module")
def forked_workers(python):
    """Processes that run notebooks, and their kernels, are forks of the process that all tests share."""
    from workbench.app.notebooks import forked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forked, "serve_forks", lambda *_: nullcontext(python))
        yield


@pytest.fixture
def one_thread():
    """Torch computes on one thread: a forked process has none of its others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forked_pool(one_thread, monkeypatch):
    """Pools of processes fork this one, rather than start interpreters that import the workbench."""
    forks = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda how: forks)


@pytest.fixture(scope="session")
def jupyterlab(tmp_path_factory, request):
    """JupyterLab (tests/browser.py), which starts with the first notebook that is opened."""
    from workbench.app.reports.thumbnail import chromium  # needs plotly, which a GPU machine may lack

    if chromium() is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    import browser  # needs playwright, which only these tests use

    with ExitStack() as stack:
        yield browser.JupyterLab(tmp_path_factory.mktemp("lab"), lambda: request.getfixturevalue("python"), stack)


@pytest.fixture(scope="module")
def lab(jupyterlab):
    """Headless Chromium beside JupyterLab. It holds asyncio: run papermill in another process."""
    import browser

    with browser.lab(jupyterlab) as running:
        yield running


@pytest.fixture(scope="module")
def sharp(tmp_path_factory):
    """The folder of a tiny model that is tuned (tests/self_teacher.py)."""
    from self_teacher import sharp_model  # imports Triton, which must see the variable above

    return sharp_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Files of questions to tune on, with and without labels, and of held-out ones (tests/self_teacher.py)."""
    from self_teacher import question_files

    return question_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny checkpoint (tests/tiny.py); tests that write into a model's folder make their own."""
    import tiny  # imports Triton, which must see the variable above

    return tiny.checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def loaded(folder):
    """The tiny model, loaded once; tests that change its weights load their own."""
    from workbench import models  # takes seconds, which the process that only hands out tests need not wait for

    return models.load(folder)


@pytest.fixture(scope="module")
def model():
    """A random Llama of three layers, the same in every file of tests."""
    from tests.random_models import model_of

    return model_of()


@pytest.fixture
def unknown_again(monkeypatch):
    """Forget, after a test, the policies that it made known."""
    from workbench.methods import own  # imports Triton, which must see the variable above

    monkeypatch.setenv(own.FILES, "")
    monkeypatch.setattr(own, "_known", {kind: {} for kind in own.KINDS})
    monkeypatch.setattr(own, "_read", {})


@pytest.fixture
def method_file(tmp_path, unknown_again):
    """A file with a selector of one's own (tests/own_method.py)."""
    from own_method import LAST

    path = tmp_path / "mine.py"
    path.write_text(LAST)
    return path


@pytest.fixture(scope="session")
def smollm2():
    """The folder of the real model, for tests that are skipped where it was never fetched."""
    from workbench.data import assets
    from workbench.models import pretrained

    if not pretrained.is_there("smollm2"):
        pytest.skip(f"smollm2 is not in {assets.cache()}: workbench models get smollm2")
    return pretrained.folder("smollm2")
