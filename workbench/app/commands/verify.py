"""`workbench verify`: one page of verdicts on whether a model's cached blocks can be reused."""

import json
from pathlib import Path
from typing import Annotated

import typer

from workbench.app.console.options import AsJson
from workbench.app.console.text import importing, progress, show
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench verify --model lab-full --html page.html")
def verify(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint folder or name (see `workbench models`)")] = "lab-full",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or float8-products. Default: the model's own")
    ] = None,
    source: Annotated[str, typer.Option("--data", help="Text of the prompts: data set name or question file")] = "lab",
    samples: Annotated[int, typer.Option(help="Prompts", min=1, max=64)] = 3,
    passages: Annotated[int, typer.Option(help="Passages per prompt", min=2, max=40)] = 6,
    seed: Annotated[int, typer.Option(help="Seed for the prompts", min=0)] = 0,
    html: Annotated[Path | None, typer.Option(help="Write the report to this HTML file")] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a model's blocks can be reused: rotation, recomputation, noise floor, first reuse.

    Exits with code 1 if a check fails.
    """
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise BadInput(f"--html {str(html)!r}: a file in a folder that exists is needed")
    with progress("verifying") as advance:
        with importing():  # torch, transformers: not for `--help`
            from workbench import data, models
            from workbench.app.console.verify_page import report, verification_html
            from workbench.experiments.trials.verification import verify_model

        asked = data.load(source, samples, seed, passages)
        loaded = models.load(model, device, dtype)
        prompts = loaded.layout.prompts(asked, loaded.tokenizer)
        page = verify_model(loaded.model, prompts, model, advance)
    if html is not None:
        write_text(html, verification_html(page))
    show(as_json, json.dumps(page.to_json()), report(page))
    if not page.all_hold:
        raise typer.Exit(1)
