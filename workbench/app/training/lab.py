"""`workbench lab`: train a lab model, and convert it for shipping."""

import logging
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.app.console.text import importing, progress
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text
from workbench.core.utils.stages import keeps, stage
from workbench.training.lab.config import STORAGES, PretrainConfig
from workbench.training.run_folder import check_minutes, saved_state_message

LINE_EVERY = 500  # steps

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Train a lab model, or convert one to its shipped form."
)


@app.command("train", epilog="Example: workbench lab train --out runs/lab --seed 1 --minutes 60")
def train_model(
    out: Annotated[Path, typer.Option(help="Folder of the run; rerun with the same folder to resume")],
    seed: Annotated[int, typer.Option(help="Seed for weights and data")] = 0,
    minutes: Annotated[
        float, typer.Option(help="Stop after this many minutes; can be resumed", show_default="no limit")
    ] = float("inf"),
    workers: Annotated[int, typer.Option(help="Processes that generate training text")] = 8,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Recipe setting, e.g. lr=0.002")] = None,
) -> None:
    """Train a lab model from scratch (several GPUs: `accelerate launch`) and write it to OUT/model."""
    config = _config(seed, settings or [])
    check_minutes(minutes)

    with progress("a lab model"):
        with importing():
            import torch  # and modules that import it: not for `--help`
            from accelerate import PartialState

            from workbench.training.common import show_curve
            from workbench.training.lab import checkpoint
            from workbench.training.lab.train import STAGES, check, is_finished, train, train_tokenizer

        check(config, out, workers)  # before the tokenizer is trained
        logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)  # warns at every save about tied embeddings
        stage("training the tokenizer")
        tokenizer, begin = train_tokenizer(), time.monotonic()
    clock = out / "seconds"
    spent = float(clock.read_text(encoding="utf-8")) if clock.is_file() else 0.0
    main = PartialState().is_main_process
    stages = len(STAGES)
    shown = show_curve(main, LINE_EVERY, lambda row: _postfix(row, stages), minutes=minutes)
    with keeps(partial(saved_state_message, out)), shown as show:

        def report(row: dict[str, Any]) -> None:
            show(row)
            if main and out.is_dir():  # a killed training keeps the time spent
                write_text(clock, f"{spent + time.monotonic() - begin}\n")

        model, reached = train(config, tokenizer, out, STAGES, report=report, workers=workers, minutes=minutes)
    if not main:
        return
    seconds = spent + time.monotonic() - begin
    write_text(clock, f"{seconds}\n")
    if is_finished(config, reached, stages - 1):
        device = next(model.parameters()).device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
        size = sum(p.numel() for p in model.parameters())
        facts = {"minutes": seconds / 60, "device": name, "parameters": size, "stages": stages}
        checkpoint.save(out / "model", model, tokenizer, config, reached, facts)
        typer.echo(f"trained in {seconds / 60:.1f} minutes: {out / 'model'}")
    else:
        where = f"step {reached.step:,}, stage {reached.stage} of {stages - 1}"
        typer.echo(f"stopped at {where}: rerun to resume")


def _postfix(row: dict[str, Any], stages: int) -> dict[str, Any]:
    return {"stage": f"{row['stage']}/{stages - 1}", "right": row["answers_right"], "loss": row["loss"]}


def _config(seed: int, settings: list[str]) -> PretrainConfig:
    kinds: dict[str, Any] = {field.name: field.type for field in fields(PretrainConfig)}
    values: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if kinds.get(name) not in (int, float, str) or name == "seed":
            allowed = ", ".join(name for name in kinds if name not in ("seed", "betas"))
            raise BadInput(f"unknown recipe setting {setting!r}; allowed are NAME=VALUE with {allowed}")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            raise BadInput(f"recipe setting {name} is {value!r}; a number is needed") from None
    return PretrainConfig(seed=seed, **values)


@app.command("ship", epilog="Example: workbench lab ship --model runs/lab/model --out data/models/mine")
def ship_model(
    model: Annotated[Path, typer.Option(help="Folder of a trained lab model")],
    out: Annotated[Path, typer.Option(help="Output folder, e.g. data/models/NAME")],
    storage: Annotated[str, typer.Option(help=f"Weight storage: {', '.join(STORAGES)}")] = "bfloat16",
) -> None:
    """Copy a trained lab model with 16-bit or 8-bit weights, as it is stored in the repository."""
    from workbench.training.lab.checkpoint import ship

    ship(model, out, storage)
    size = sum(file.stat().st_size for file in out.iterdir())
    typer.echo(f"{size / 1e6:.1f} MB in {out}")
