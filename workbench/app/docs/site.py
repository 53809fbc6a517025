"""The documentation as a static, self-contained site: `make docs`, or `python -m workbench.app.docs.site`.

docs/ holds the hand-written pages. Method pages and the API reference are generated from docstrings by autodoc,
`leaderboard.html` from the shipped results. A site built from the same files is not built again.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text

ROOT = Path(__file__).resolve().parents[3]
SITE = ROOT / "runs" / "docs"
NEEDED = ("sphinx", "furo", "myst_parser", "latex2mathml")
READ = "docs/**/*.md docs/**/*.css docs/**/*.svg docs/**/*.png docs/*.py workbench/**/*.py kernels/**/*.py".split()
READ += "workbench/plots/pages/* data/benchmarks/*/trial@*.parquet data/benchmarks/*/methods@*.parquet".split()
# Files of docs/ that are not pages.
OTHER = ("__pycache__", "*.json", "answers.py", "explorers.py", "measured.py", "picture.py", "tutorial.py")
STAMP = ".built_from"
BOARDS, BUDGET = "leaderboard.html", 0.15  # page of shipped results; charged share of its tables
LIMIT_S = 120  # maximum wait of a report


def missing() -> str:
    """Return why the documentation cannot be built here, or ""."""
    if not (ROOT / "docs" / "conf.py").is_file():
        return "the documentation is built in a checkout: its pages are not installed"
    gone = [name for name in NEEDED if find_spec(name) is None]
    return f"the documentation needs {', '.join(gone)}: pip install 'cached-block-workbench[docs]'" if gone else ""


def build(site: Path = SITE) -> Path:
    """Build the site into the folder `site`, unless it is up to date, and return its first page.

    Raises BadInput for a missing package, and if Sphinx reports a problem.
    """
    if problem := missing():
        raise BadInput(problem)
    state = _state()
    if (site / STAMP).is_file() and (site / STAMP).read_text(encoding="utf-8") == state:
        return site / "index.html"
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "source"), Path(folder, "site")
        write_sources(source)
        options = "-b html -j auto -q -W --keep-going".split()
        command = [sys.executable, "-m", "sphinx", *options, str(source), str(made)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise BadInput(f"the documentation was not built: {done.stderr.strip()[-2000:]}")
        shutil.rmtree(made / ".doctrees", ignore_errors=True)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(made, site)
    write_text(site / BOARDS, _boards())
    write_text(site / STAMP, state)
    return site / "index.html"


class Building:
    """Builds the site in a separate process, in parallel with other work:

        with Building(True) as docs:
            ...
            docs.put(report / "docs")

    Leaving the `with` block ends the process.
    """

    def __init__(self, wanted: bool, limit_s: float = LIMIT_S) -> None:
        self.wanted, self.limit_s = wanted and not missing(), limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Building":
        if self.wanted:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def copy_when_built(self, folder: Path) -> bool:
        """Wait for the build and copy the site to `folder`; return whether that succeeded."""
        shutil.rmtree(folder, ignore_errors=True)
        if self._process is None:
            return False
        try:
            built = self._process.wait(self.limit_s) == 0
        except subprocess.TimeoutExpired:
            built = False
        if built:
            shutil.copytree(SITE, folder)
        return built


def write_sources(folder: Path) -> None:
    """Write Sphinx's sources into `folder`: hand-written and generated pages."""
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns(*OTHER))
    for part, pages in _made():
        (folder / part).mkdir(exist_ok=True)
        for name, text in pages:
            (folder / part / f"{name}.md").write_text(text, encoding="utf-8")


def _made() -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    from workbench.app.docs import methods as docs_methods  # imports every method

    yield "methods", docs_methods.pages(ROOT)
    yield "api", docs_methods.api(ROOT)


def _boards() -> str:
    """Return the leaderboards of shipped results: tables at one budget, curves over all."""
    from workbench import results
    from workbench.app.leaderboard import page
    from workbench.experiments.leaderboard import ranking

    return page.page([board for board in ranking.boards(results.read(), published=True) if board.budget], budget=BUDGET)


def _state() -> str:
    """Return a digest of all source files."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in READ for path in ROOT.glob(pattern)):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def main() -> None:
    """Build the site and print its path; exit with code 2 and one sentence if that fails."""
    try:
        print(build())
    except BadInput as problem:
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
