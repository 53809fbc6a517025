"""`workbench models`: what is shipped."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from workbench import models
from workbench.app.commands.options import AsJson
from workbench.models import random_init as random_weights

app = typer.Typer()
UNTRAINED = "Write a tiny model with random weights to a new folder, to try things with"


@app.command()
def list_models(
    as_json: AsJson = False,
    untrained: Annotated[Path | None, typer.Option(metavar="FOLDER", help=UNTRAINED)] = None,
) -> None:
    """List the shipped models."""
    if untrained is not None:
        print(random_weights.write(untrained))
        return
    rows = [{"name": name, **models.describe(models.folder(name))} for name in models.names()]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("model", "type", "parameters", "layers", "context", "layout", box=None, pad_edge=False)
    for row in rows:
        size = f"{row['parameters'] / 1e6:.1f} M"
        table.add_row(row["name"], row["type"], size, str(row["layers"]), str(row["context"]), row["layout"])
    Console().print(table if rows else "no models are shipped with this installation")
