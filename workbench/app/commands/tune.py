"""`workbench tune`: block fine-tuning."""

import json
import logging
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from workbench.core.errors import BadInput
from workbench.training.common import READ_EVERY
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.examples import Data
from workbench.training.tuning.output import save_model
from workbench.training.tuning.scores import Evaluation
from workbench.training.tuning.start import start
from workbench.training.tuning.train import train

RECIPE, EVALUATION = "Recipe", "Evaluation"
LINE_EVERY = 5 * READ_EVERY  # steps between two lines where nobody watches a bar

app = typer.Typer()


def _option(help: str, panel: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(help=help, rich_help_panel=panel)


@app.command(epilog="Example: workbench tune --model lab-full --data lab --out runs/block --steps 300 --lr 5e-4")
def tune(
    model: Annotated[str, _option("Base model: checkpoint folder or name (see `workbench models`)")],
    out: Annotated[Path, _option("Folder of the run; run again with the same settings to go on")],
    data: Annotated[str, _option("`lab` (fresh worlds), a shipped name or a file of questions")] = "lab",
    mode: Annotated[str, _option("mixed: every sample in both modes; block or full: in one", RECIPE)] = "mixed",
    steps: Annotated[int, _option("Optimizer steps", RECIPE)] = TuneConfig.steps,
    batch: Annotated[int, _option("Samples packed into one forward pass, of each process", RECIPE)] = TuneConfig.batch,
    accumulate: Annotated[int, _option("Forward passes a step", RECIPE)] = TuneConfig.accumulate,
    lr: Annotated[float, _option("Highest learning rate", RECIPE)] = TuneConfig.lr,
    warmup: Annotated[int, _option("Steps on which the rate rises; then it falls to 0", RECIPE)] = TuneConfig.warmup,
    max_length: Annotated[int, _option("Most tokens of a prompt and its answer", RECIPE)] = TuneConfig.max_length,
    seed: Annotated[int, _option("Of data order and of new weights", RECIPE)] = 0,
    positions: Annotated[
        str, _option("Of blocks in block mode: re-encoded for their place, or naive, each from 0", RECIPE)
    ] = "re-encoded",
    lora_rank: Annotated[int, _option("Train LoRA of this rank (needs peft); 0: all weights", RECIPE)] = 0,
    optimizer: Annotated[str, _option("adamw, or muon for the matrices of the layers", RECIPE)] = "adamw",
    precision: Annotated[str, _option("bf16, fp32, or auto: bf16 on a GPU", RECIPE)] = "auto",
    gradient_checkpointing: Annotated[
        bool, typer.Option(rich_help_panel=RECIPE, help="Less memory, more time")
    ] = False,
    passages: Annotated[str | None, _option("Passages of a lab context, as 10 or 1-40", RECIPE)] = None,
    questions: Annotated[int | None, _option("Questions over one lab context", RECIPE)] = None,
    kinds: Annotated[str | None, _option("Weights of lab questions, as continuation=3,order=1", RECIPE)] = None,
    continued: Annotated[float | None, _option("Share of lab documents with a second passage", RECIPE)] = None,
    shuffled: Annotated[float | None, _option("Share of lab contexts in random order", RECIPE)] = None,
    evaluate_every: Annotated[int, _option("Steps between two evaluations of both modes; 0: none", EVALUATION)] = 0,
    evaluate_samples: Annotated[int, _option("Held-out questions of an evaluation", EVALUATION)] = 200,
    evaluate_data: Annotated[str | None, _option("Held-out questions; `lab` where --data is", EVALUATION)] = None,
    evaluate_passages: Annotated[int | None, _option("Passages of a held-out question", EVALUATION)] = None,
    save_every: Annotated[int, _option("Steps between two states to resume from")] = 500,
    device: Annotated[str, _option("cpu, cuda or cuda:N")] = "cpu",
    workers: Annotated[int, _option("Processes that draw and pack samples")] = 0,
    minutes: Annotated[float, _option("Stop after this long, to go on later")] = float("inf"),
) -> None:
    """Block fine-tuning of a model, for full and block attention.

    It learns to answer from passages that are cached apart; the result lands in OUT/model. On several GPUs:
    `accelerate launch --num_processes N -m workbench tune …`.
    """
    config = TuneConfig(
        mode=mode, positions=positions, steps=steps, batch=batch, accumulate=accumulate, lr=lr, warmup=warmup,
        max_length=max_length, seed=seed, lora_rank=lora_rank, optimizer=optimizer, precision=precision,
        gradient_checkpointing=gradient_checkpointing,
    )  # fmt: skip
    if save_every < 1 or workers < 0:
        raise BadInput(f"save_every {save_every} and workers {workers}: at least 1 and 0 are needed")
    evaluation = _evaluation(data, evaluate_every, evaluate_samples, evaluate_data, evaluate_passages)
    logging.getLogger("accelerate").setLevel(logging.ERROR)  # tells at every save that embeddings are tied
    run, source = start(
        config,
        model,
        Data(data, _range(passages), questions, _weights(kinds), continued, shuffled),
        out,
        evaluation,
        device,
    )
    main = run.accelerator.is_main_process
    with tqdm(total=steps, unit="step", disable=not (main and sys.stderr.isatty())) as bar:
        show = partial(_show, bar) if main else (lambda row: None)
        progress = train(run, source, evaluation, show, save_every, workers, minutes)
    if progress.step < steps:
        typer.echo(f"stopped at step {progress.step:,} of {steps:,}: run again to go on")
        return
    save_model(run, progress, out / "model")
    if main:
        typer.echo(f"tuned in {progress.seconds / 60:.1f} minutes: {out / 'model'}")


def _evaluation(data: str, every: int, samples: int, held_out: str | None, passages: int | None) -> Evaluation:
    if every and held_out is None and data != "lab":
        raise BadInput(f"evaluate_every needs --evaluate-data: questions that are not in {data}")
    return replace(Evaluation(every, samples, passages=passages), data=held_out or "lab")


def _range(passages: str | None) -> tuple[int, int] | None:
    if passages is None:
        return None
    low, _, high = passages.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise BadInput(f"passages is {passages!r}: a number or a range is needed, as 10 or 1-40") from None


def _weights(kinds: str | None) -> dict[str, float] | None:
    if kinds is None:
        return None
    try:
        return {name.strip(): float(weight) for name, weight in (part.split("=") for part in kinds.split(","))}
    except ValueError:
        raise BadInput(f"kinds is {kinds!r}: weights are needed, as continuation=3,order=1") from None


def _show(bar: tqdm, row: dict) -> None:
    """The bar where a person watches, else a line now and then; exact match is always a line."""
    if "loss" not in row:
        bar.write(f"step {row['step']}: exact match full {row['full']['em']:.3f}, block {row['block']['em']:.3f}")
    elif not bar.disable:
        bar.update(row["step"] - bar.n)
        bar.set_postfix({key: row[key] for key in ("loss", "full", "block") if key in row})
    elif row["step"] % LINE_EVERY == 0:
        typer.echo(json.dumps(row))
