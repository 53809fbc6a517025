"""`workbench tune`: block fine-tuning."""

import logging
import signal
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.app.console import text
from workbench.app.console.options import of_fields, with_options
from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_processes
from workbench.core.utils.stages import keeps
from workbench.data.lab_corpus.style import is_lab
from workbench.training.run_folder import check_minutes, saved_state_message
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.text.data_fields import DataFields

if TYPE_CHECKING:
    from workbench.training.tuning.start import TuneProgress

RECIPE, EVALUATION = "Recipe", "Evaluation"  # panels of `--help`
CONFIG = [field.name for field in fields(TuneConfig)]
DATA = [field.name for field in fields(DataFields)]
TEACHER = "Self-teacher (--teacher self)"
PANELS = dict.fromkeys([*CONFIG, *DATA], RECIPE)
PANELS |= dict.fromkeys(("teacher", "question_weight", "own_answers", "own_tokens", "mix", "overlap"), TEACHER)
LINES = 5  # curve rows per line, in non-interactive sessions

app = typer.Typer(add_completion=False)


def _option(help: str, panel: str | None = None, shown: bool | str = True) -> typer.models.OptionInfo:
    return typer.Option(help=help, rich_help_panel=panel, show_default=shown)


@app.command(epilog="Example: workbench tune --model lab-full --data lab --out runs/block --steps 300 --lr 5e-4")
@with_options(of_fields(TuneConfig, {}, PANELS) + of_fields(DataFields, {}, PANELS, text=("passages", "kinds", "mix")))
def tune(
    model: Annotated[str, _option("Base model: checkpoint folder or name (see `workbench models`)")],
    out: Annotated[Path, _option("Folder of the run; rerun with the same settings to resume")],
    data: Annotated[str, _option("`lab` (fresh worlds), a shipped name or a file of questions")] = "lab",
    *,
    evaluate_every: Annotated[int, _option("Evaluate both modes every N steps; 0: never", EVALUATION)] = 0,
    evaluate_samples: Annotated[int, _option("Number of held-out questions per evaluation", EVALUATION)] = 200,
    evaluate_data: Annotated[
        str | None, _option("Held-out questions. Default: generated, if --data is lab", EVALUATION)
    ] = None,
    evaluate_passages: Annotated[int | None, _option("Passages per held-out question", EVALUATION)] = None,
    exclude: Annotated[
        list[Path] | None, _option("Evaluation file whose text must not be trained on; repeatable", TEACHER)
    ] = None,
    base_name: Annotated[
        str | None, _option("Base model name recorded in the adapter. Default: --model", TEACHER)
    ] = None,
    save_every: Annotated[int, _option("Save a checkpoint to resume from every N steps")] = 500,
    device: Annotated[str, _option("cpu, cuda or cuda:N")] = "cpu",
    workers: Annotated[int, _option("Data loading processes")] = 0,
    minutes: Annotated[
        float, _option("Stop this many minutes after the first step; can be resumed", shown="no limit")
    ] = float("inf"),
    attention: Annotated[str, _option("tiles: FlexAttention, compiled; parts: torch's own; auto: tiles on a GPU")] = (
        "auto"
    ),
    layout: Annotated[
        str | None, _option("Prompt layout: lab, released, chat or a JSON file. Default: the model's own")
    ] = None,
    **given: Any,
) -> None:
    """Fine-tune a model for block attention, keeping full attention.

    The model learns to answer from passages that are cached separately.
    The result is written to OUT/model; with --lora-rank or soft tokens, an adapter is written to OUT/adapter.
    With --teacher self no labels are needed: the model learns to match its own full attention.
    On several GPUs: accelerate launch --num_processes N -m workbench tune …
    """
    config = TuneConfig(**{name: given.pop(name) for name in CONFIG if name in given})
    check_processes("workers", workers, 0)
    if save_every < 1:
        raise BadInput(f"save_every is {save_every}: at least 1 is needed")
    if evaluate_every and evaluate_data is None and not is_lab(data):
        raise BadInput(f"evaluate_every needs --evaluate-data: questions that are not in {data}")
    if evaluate_data is not None and not evaluate_every:
        raise BadInput(f"evaluate_data {evaluate_data!r} needs --evaluate-every: steps between two evaluations")
    if base_name is not None and not config.adapts:
        raise BadInput(f"base_name {base_name!r} is of an adapter: it needs --lora-rank or soft tokens")
    check_minutes(minutes)
    passages, kinds, mix = _range("passages", given["passages"]), _weights(given["kinds"]), _range("mix", given["mix"])
    given |= {"passages": passages, "kinds": kinds, "mix": mix, "exclude": tuple(map(str, exclude or ()))}

    with text.progress("tuning"), text.importing():  # torch, transformers: not for `--help`
        from workbench.training.common import READ_EVERY, show_curve, stoppable
        from workbench.training.tuning.output import save_adapter, save_model
        from workbench.training.tuning.scores import Evaluation
        from workbench.training.tuning.start import draw_own_answers, start
        from workbench.training.tuning.text.examples import Data
        from workbench.training.tuning.train import train

    scored = evaluate_data or (data if is_lab(data) else "lab")
    evaluation = Evaluation(evaluate_every, evaluate_samples, scored, evaluate_passages)
    logging.getLogger("accelerate").setLevel(logging.ERROR)  # warns at every save about tied embeddings
    more = {"attention": attention, "say": typer.echo}
    with keeps(partial(saved_state_message, out)), stoppable() as asked:
        run, source = start(config, model, Data(data, **given), out, evaluation, device, layout, stop=asked, **more)
        draw_own_answers(run, source)
        main = run.accelerator.is_main_process

        def saved(progress: "TuneProgress") -> None:
            if config.adapts:
                save_adapter(run, progress, out / "adapter", base_name)

        with show_curve(main, LINES * READ_EVERY, _postfix, config.steps) as watch:
            show = partial(_show, watch)
            progress = train(run, source, evaluation, show, save_every, workers, minutes, saved)
        if asked():
            typer.echo(f"ended by SIGTERM at step {progress.step:,} of {config.steps:,}: rerun to resume")
            raise typer.Exit(128 + signal.SIGTERM)
    if not (out / "adapter").is_dir():
        saved(progress)
    if any(config.soft) and config.finished(progress.step, progress.seconds):
        typer.echo(f"tuned in {progress.seconds / 60:.1f} minutes: {out / 'adapter'}")
        return
    if not config.finished(progress.step, progress.seconds):
        typer.echo(f"stopped at step {progress.step:,} of {config.steps:,}: rerun to resume")
        return
    save_model(run, progress, out / "model")
    if main:
        typer.echo(f"tuned in {progress.seconds / 60:.1f} minutes: {out / 'model'}")


def _range(name: str, given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    low, _, high = given.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise BadInput(f"{name} is {given!r}: a number or a range is needed, as 10 or 1-40") from None


def _weights(kinds: str | None) -> dict[str, float] | None:
    if kinds is None:
        return None
    try:
        return {name.strip(): float(weight) for name, weight in (part.split("=") for part in kinds.split(","))}
    except ValueError:
        raise BadInput(f"kinds is {kinds!r}: weights are needed, as continuation=3,order=1") from None


def _show(watch: Callable[[dict[str, Any]], None], row: dict[str, Any]) -> None:
    """Show a row of the curve; rows with exact match, from the main process, get a line each."""
    from tqdm import tqdm

    if "loss" in row:
        watch(row)
    else:
        name, measure = ("exact match", "em") if "em" in row["full"] else ("KL", "kl")
        full, block = (f"{mode} {row[mode][measure]:.3f}" for mode in ("full", "block"))
        tqdm.write(f"step {row['step']}: {name} {full}, {block}")


def _postfix(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("loss", "full", "block", "kl_block") if key in row}
