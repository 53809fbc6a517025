"""Folder of a training: its settings, and the state to resume from."""

import json
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.utils import json_text
from workbench.core.utils.files import check_folder, old_folder_path
from workbench.core.utils.stages import NOTHING

RECORD = "progress.json"
BEGUN = ("state", "state.new", "seconds", "curve.json", "own_answers.json")  # written before the first state


def saved_record(out: Path) -> dict[str, Any] | None:
    """Return the record of the state in `out`; None without a state."""
    state = state_folder(out)
    return json_text.read_json(state / RECORD) if state else None


def check_run_folder(out: Path) -> None:
    """Raise BadInput if `out` cannot be the folder of a run, or contains other files."""
    check_folder("--out", out)
    if not out.is_dir() or state_folder(out):
        return
    others = sorted(path.name for path in out.iterdir() if path.name not in BEGUN and not path.name.startswith("."))
    if others:
        raise BadInput(
            f"--out {str(out)!r} holds {others[0]!r} and no run to go on with: choose an empty or new folder"
        )


def check_same(out: Path, settings: dict[str, Any]) -> None:
    """Raise BadInput, naming the settings that differ, if `out` has a training with other `settings`."""
    saved, settings = saved_record(out), json.loads(json.dumps(settings))
    if saved is None:
        return
    recipe = saved.get("recipe", {})
    if changed := [name for name in settings if recipe.get(name) != settings[name]]:
        raise BadInput(f"{out} holds a run of another recipe (different: {', '.join(changed)}); choose another folder")


def state_folder(out: Path) -> Path | None:
    """Return the folder of the last complete state (earlier versions kept one as `state.old`); None without one."""
    places = (out / "state", old_folder_path(out / "state"), out / "state.old")
    return next((path for path in places if (path / RECORD).is_file()), None)


def saved_state_message(out: Path) -> str:
    """Return a message on the state that a stopped training has saved (`core.utils.stages.keeps`)."""
    saved = saved_record(out)
    return f"step {saved['progress']['step']:,} is kept in {out}: run again to go on" if saved else NOTHING


def check_minutes(minutes: float) -> None:
    """Raise BadInput for a negative time limit, or one that is not a number."""
    if not minutes >= 0:
        raise BadInput(f"minutes is {minutes}: a number of at least 0 is needed")
