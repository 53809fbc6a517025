"""Execute one notebook: check its parameters, run it, make its page and picture, report its outcome.

<out>/<name>/<name>.ipynb, <name>.html   executed notebook; the same as one page, interactive without a network
             metrics.json, *.parquet     written by the notebook into its parameter `output` (`notebook.save`)
             picture.js                  picture of its main figure, for the index (`thumbnail`)
             _SUCCESS                    written last: a folder without it is partial or failed
"""

import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import papermill
from papermill.exceptions import PapermillExecutionError

from workbench.app.notebooks import counted_cells, notebook
from workbench.app.notebooks.parameters import check, declared_parameters
from workbench.app.notebooks.run import NotebookRun
from workbench.app.reports import html, thumbnail
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text


def execute(
    path: Path, out: Path, parameters: Mapping[str, Any], cell_timeout_s: int, name: str = "", counted: str = ""
) -> NotebookRun:
    """Execute one notebook in its own folder, and make its page and picture; `counted`: file for its progress."""
    name = name or path.stem
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    executed, started = folder / f"{name}.ipynb", time.monotonic()
    takes_output = "output" in declared_parameters(path)
    message = ""
    try:
        papermill.execute_notebook(
            path,
            executed,
            parameters={**parameters, **({"output": str(folder)} if takes_output else {})},
            kernel_name="python3",
            engine_name=counted_cells.NAME,
            counted=counted,
            cwd=path.parent,
            progress_bar=False,
            execution_timeout=cell_timeout_s,
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],
        )
    except PapermillExecutionError as error:
        message = f"{error.ename}: {error.evalue}" if error.ename != BadInput.__name__ else str(error.evalue)
    except Exception as error:  # a dead kernel, a timeout, an unreadable file: ends this notebook, not the report
        message = f"{type(error).__name__}: {error}"
    success, metrics = folder / notebook.SUCCESS, None
    if success.exists():  # written by the notebook; ours also covers page and picture
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        success.unlink()
    if executed.exists():
        html.notebook_page(executed, folder / f"{name}.html", (metrics or {}).get(notebook.FINDING, ""))
        thumbnail.write(executed, folder)
    if not message and takes_output and metrics is None:
        message = "it ended without results: metrics.json was not written"
    if not message:
        write_text(success, "")
    return NotebookRun(name, html.title(path), time.monotonic() - started, message, metrics or {})


def main(action: str, question: Path, answer: Path) -> None:
    """Answer a question of `NotebookWorkers` in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    logging.getLogger("papermill").setLevel(logging.ERROR)
    argument = json.loads(question.read_text(encoding="utf-8"))
    result: Any = None
    if action == "check":
        try:
            for task in argument:
                check(Path(task["path"]), task["parameters"])
        except BadInput as error:
            result = str(error)
    else:
        result = asdict(execute(Path(argument.pop("path")), Path(argument.pop("out")), **argument))
    write_text(answer, json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
