"""Run notebooks in batch and publish their results as a small website.

    <out>/index.html     all notebooks of this run: picture, status, duration, finding
    <out>/plotly.min.js  draws the pictures
    <out>/docs/          the documentation, if it can be built (`docs.site`) and all notebooks are run
    <out>/<name>/        its files (see `notebooks.run`)

A failing notebook does not stop the others; the index and the exit code show it. `index.html` of an earlier run is
removed first and written last, so a killed run does not look complete.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from workbench import models
from workbench.app.console.text import duration, progress
from workbench.app.docs import site as docs_site
from workbench.app.notebooks.parameters import accepted_parameters, declared_parameters
from workbench.app.notebooks.run import NotebookRun, NotebookTask, NotebookWorkers
from workbench.app.reports import real_pages
from workbench.core.errors import BadInput, format_value
from workbench.core.utils.annotations import check_processes
from workbench.core.utils.files import check_folder, write_text
from workbench.core.utils.stages import NOTHING, keeps
from workbench.data.assets import SHIPPED

LINKS = [("docs/index.html", "Documentation"), (f"docs/{docs_site.BOARDS}", "Leaderboard")]
NAME = re.compile(r"\w[\w .-]*")  # notebook names become folders and addresses


@dataclass(frozen=True)
class ReportResult:
    """The place of the report and the outcome of every notebook, in the order of the request.

    `missing`: why pages of the real model are missing, or "".
    """

    index: Path
    runs: tuple[NotebookRun, ...]
    missing: str = ""

    @property
    def ok(self) -> bool:
        """Whether every notebook ran to its end."""
        return all(run.ok for run in self.runs)


def run(
    notebooks: Sequence[Path],
    out: Path,
    parameters: Mapping[str, Any] | None = None,
    jobs: int = 2,
    cell_timeout_s: int = 600,
    real: Sequence[Path] = (),
    docs: bool = False,
) -> ReportResult:
    """Run `notebooks`, `jobs` at a time, into `out`. Every notebook gets those `parameters` that it declares.

    Notebooks of `real` run with the real model (`real_pages.MODEL`) once it is fetched; if that fails, those also in
    `notebooks` run only once. With `docs`, the documentation is built in parallel. Raises BadInput, before any file is
    written, for no or unknown notebooks, a parameter that no notebook has, and an invalid value.
    """
    started, out = time.monotonic(), out.resolve()
    notebooks, real = [path.resolve() for path in notebooks], [path.resolve() for path in real]
    check_folder("out", out)
    chosen = _parameters(list(dict.fromkeys([*notebooks, *real])), dict(parameters or {}), jobs)
    tasks = [NotebookTask(str(path), str(out), chosen[path], cell_timeout_s, path.stem) for path in notebooks]
    real_tasks = [real_pages.task(path, out, chosen[path], cell_timeout_s, path in notebooks) for path in real]
    finished: dict[str, NotebookRun] = {}
    kept = f"finished pages are kept in {out}, running again rebuilds all of them"
    typer.echo(f"running {len(tasks) + len(real_tasks)} notebooks, {jobs} at a time, into {out}", err=True)
    with (
        keeps(lambda: kept if finished else NOTHING),
        progress("notebooks") as advance,
        NotebookWorkers(jobs) as workers,
    ):
        workers.check([*tasks, *real_tasks])
        out.mkdir(parents=True, exist_ok=True)
        (out / "index.html").unlink(missing_ok=True)
        model = real_pages.MODEL if real else None
        with real_pages.Fetching(model) as fetching, docs_site.Building(docs) as building:
            long_first = [*real_tasks, *sorted(tasks, key=real_pages.asks_real_model, reverse=True)]
            ordered = [*tasks, *real_tasks] if fetching.is_busy else long_first
            for run in _told(workers.run(ordered, fetching.leaves_out, advance)):
                finished[run.name] = run
            missing = fetching.missing()
            links = LINKS if building.copy_when_built(out / "docs") else []
            if building.wanted and not links:
                typer.echo("the documentation was not built: `make docs` says why", err=True)
    lab, ours = ([finished[task.name] for task in part if task.name in finished] for part in (tasks, real_tasks))
    _write_index(out, lab, ours, missing, time.monotonic() - started, links)
    return ReportResult(out / "index.html", (*lab, *ours), missing)


def _parameters(notebooks: Sequence[Path], given: dict[str, Any], jobs: int) -> dict[Path, dict[str, Any]]:
    """Return the `given` parameters that each notebook declares."""
    check_processes("jobs", jobs)
    if not notebooks:
        raise BadInput("there are no notebooks to run")
    for path in notebooks:
        if not NAME.fullmatch(path.stem):
            raise BadInput(
                f"{format_value(path.name)}: the name of a notebook has letters, digits, blanks, '.', '-' and '_' only"
            )
    if len({path.stem for path in notebooks}) < len(notebooks):
        raise BadInput("two notebooks have the same name: their results would share a folder")
    return {
        path: {name: given[name] for name in names} for path, names in accepted_parameters(notebooks, given).items()
    }


def _told(runs: Iterable[NotebookRun]) -> Iterator[NotebookRun]:
    """Print one line per finished notebook."""
    for run in runs:
        line = f"{run.name:<26} {'ok' if run.ok else 'failed':<7} {run.seconds:6.1f} s  {run.message}"
        typer.echo(line.rstrip(), err=True)
        yield run


def _write_index(
    out: Path,
    lab: Sequence[NotebookRun],
    real: Sequence[NotebookRun],
    missing: str,
    seconds: float,
    links: Sequence[tuple[str, str]] = (),
) -> None:
    from plotly.offline import get_plotlyjs  # these load while notebooks run, not before

    from workbench.app.reports import html
    from workbench.app.reports import index as report_index

    runs = (*lab, *real)
    failed = sum(not run.ok for run in runs)
    facts = report_index.measured_with([run.metrics for run in runs])
    facts += [("made", f"{datetime.now():%Y-%m-%d %H:%M}")]
    facts += [("notebooks", f"{len(runs)}, {failed or 'none'} failed, in {duration(seconds)}")]
    html.link([(page, run.title) for run in runs if (page := out / run.name / f"{run.name}.html").is_file()])

    def card(run: NotebookRun) -> dict[str, Any]:
        (folder := out / run.name).mkdir(exist_ok=True)
        status = "ok" if run.ok else "failed"
        return report_index.card(folder, run.title, status, run.seconds, run.message, run.metrics)

    groups = [report_index.Group([card(run) for run in lab])]
    if real or missing:
        note = missing or real_pages.note()
        groups.append(report_index.Group([card(run) for run in real], real_pages.HEADING, note))
    write_text(out / report_index.PLOTLY_FILE, get_plotlyjs())
    write_text(out / "index.html", report_index.page(facts, groups, links))


PARAMETER = "results"


def takes_results(notebooks: Sequence[Path]) -> list[Path]:
    """Return the notebooks with a parameter `results`. Raises BadInput if there is none."""
    chosen = [path for path in notebooks if PARAMETER in declared_parameters(path)]
    if not chosen:
        raise BadInput(f"none of {len(notebooks)} notebooks has a parameter {PARAMETER!r}")
    return chosen


def parameters_of(places: Sequence[str], notebooks: Sequence[Path]) -> dict[str, Any]:
    """Return notebook parameters for results in these places: {results}, and {model, data} if unique and declared.

    Folders are passed by name and absolute path, as notebooks run in other folders. Raises BadInput for a place without
    results.
    """
    from workbench import results as tables  # pandas: for one's own results

    found = tables.read(places)
    given: dict[str, Any] = {PARAMETER: [_whole(place) for place in places]}
    own = found.counts("trial")
    own = own[own.source != SHIPPED]
    for name in {"model", "data"} & {name for path in notebooks for name in declared_parameters(path)}:
        known = [value for value in own[name].unique() if value]
        if len(known) == 1 and (name == "data" or _is_there(known[0])):
            given[name] = str(Path(known[0]).resolve()) if Path(known[0]).exists() else known[0]
    return given


def _whole(place: str) -> str:
    if place == SHIPPED:
        return place
    name, equals, folder = place.partition("=")
    return f"{name}={Path(folder if equals else place).resolve()}"


def _is_there(model: str) -> bool:
    try:
        models.folder(model)
    except BadInput:
        return False
    return True
