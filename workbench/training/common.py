"""What every training here shares: optimizers, and states to resume from, of which a killed run leaves no half."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator

from workbench.core.errors import BadInput
from workbench.core.files import earlier, replace_folder

RECORD = "progress.json"


class Settings(Protocol):
    """What a recipe says about its optimizer, "adamw" or "muon"."""

    @property
    def optimizer(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def weight_decay(self) -> float: ...


def optimizers(model: torch.nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """AdamW for everything that is trained, or Muon for the matrices of the layers and AdamW for the rest."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in trained if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    others = [p for _, p in trained if all(p is not m for m in matrices)]
    adamw = partial(torch.optim.AdamW, lr=settings.lr, betas=settings.betas, fused=trained[0][1].is_cuda)
    decay = settings.weight_decay
    if settings.optimizer == "adamw":
        groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        return [adamw([group for group in groups if group["params"]])]
    muon = torch.optim.Muon(matrices, lr=settings.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw(others, weight_decay=0.0)]


def save_state(accelerator: Accelerator, out: Path, record: dict[str, Any]) -> None:
    """Write weights, optimizers, random states and `record` (JSON values) to `out`/state, in place of the state before.

    All processes take part.
    """
    partial = out / "state.new"
    try:
        accelerator.save_state(str(partial))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (partial / RECORD).write_text(json.dumps(record))
            replace_folder(partial, out / "state")
        accelerator.wait_for_everyone()
    finally:
        if accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)


def saved_record(out: Path) -> dict[str, Any] | None:
    """The record of the state in `out`, None where there is none."""
    found = _state(out)
    return json.loads((found / RECORD).read_text()) if found else None


def load_state(accelerator: Accelerator, out: Path) -> None:
    """Go back to the state in `out`."""
    accelerator.load_state(str(_state(out)))


def check_same(out: Path, saved: dict[str, Any], asked: dict[str, Any]) -> None:
    """BadInput that names the settings in which the run in `out` differs from the one that is asked for."""
    asked = json.loads(json.dumps(asked))
    if changed := [name for name in asked if saved.get(name) != asked[name]]:
        raise BadInput(f"{out} holds a run of another recipe (different: {', '.join(changed)}); choose another folder")


def _state(out: Path) -> Path | None:
    """The folder of the last whole state; `state.old` is where earlier versions set one aside."""
    places = (out / "state", earlier(out / "state"), out / "state.old")
    return next((path for path in places if (path / RECORD).is_file()), None)
