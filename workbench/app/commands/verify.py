"""`workbench verify`: one page of verdicts on a model, before its cached blocks are trusted."""

import json
from html import escape
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table

from workbench import data, models
from workbench.app.commands.options import AsJson
from workbench.app.commands.text import plain, progress, show
from workbench.core.errors import BadInput
from workbench.core.files import write_text
from workbench.experiments.verification import Verification, verify_model

app = typer.Typer(add_completion=False)

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px system-ui, sans-serif; max-width: 1000px; margin: 32px auto; color: #1b1e23; }}
td, th {{ text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid #eceef1; vertical-align: top; }}
.holds {{ color: #00704f; }} .fails {{ color: #b34700; font-weight: 600; }} .small {{ color: #5a6068; }}
</style></head><body><h1>{title}</h1><p>{head}</p>
<table><tr><th>verdict</th><th>check</th><th>difference</th><th>allowed</th><th>what was compared</th></tr>
{rows}
</table><p class="small">{foot}</p></body></html>
"""


@app.command(epilog="Example: workbench verify --model lab-full --html page.html")
def verify(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint folder or name (see `workbench models`)")] = "lab-full",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the model's own without it")] = None,
    source: Annotated[str, typer.Option("--data", help="Texts of the prompts: a name or a file of questions")] = "lab",
    samples: Annotated[int, typer.Option(help="Prompts", min=1, max=64)] = 3,
    passages: Annotated[int, typer.Option(help="Passages of a prompt", min=2, max=40)] = 6,
    seed: Annotated[int, typer.Option(help="Of the prompts", min=0)] = 0,
    html: Annotated[Path | None, typer.Option(help="Write the page to this file")] = None,
    as_json: AsJson = False,
) -> None:
    """One page of verdicts on a model: rotation, recomputation, noise floor, first reuse.

    Exit code 1 where a verdict fails.
    """
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise BadInput(f"--html {str(html)!r}: a file in a folder that exists is needed")
    asked = data.load(source, samples, seed, passages)
    loaded = models.load(model, device, dtype)
    prompts = loaded.layout.prompts(asked, loaded.tokenizer)
    with progress("verifying") as advance:
        page = verify_model(loaded.model, prompts, model, advance)
    if html is not None:
        write_text(html, written(page))
    show(as_json, json.dumps(page.to_json()), _report(page))
    if not page.whole:
        raise typer.Exit(1)


def _head(page: Verification) -> str:
    size = f"{page.parameters / 1e6:,.1f} million parameters, {page.dtype}, {page.device}"
    return f"{size}; {page.prompts} prompts, {page.tokens:,} tokens; noise floor {page.floor:.2g}"


def _foot(page: Verification) -> str:
    return ", ".join(f"{name} {version}" for name, version in page.versions.items())


def _report(page: Verification) -> Group:
    table = Table(box=None, pad_edge=False)
    for name in ("", "check", "difference", "allowed", "what was compared"):
        table.add_column(name)
    for one in page.verdicts:
        state = "[green]holds[/]" if one.holds else "[bold red]FAILS[/]"
        table.add_row(state, one.name, f"{one.value:.2g}", f"{one.allowed:.2g}", f"[dim]{plain(one.detail)}[/]")
    failed = sum(not one.holds for one in page.verdicts)
    end = "every verdict holds" if page.whole else f"{failed} of {len(page.verdicts)} verdicts fail"
    return Group(f"[bold]{plain(page.model)}[/]: {_head(page)}", table, end, f"[dim]{plain(_foot(page))}[/]")


def written(page: Verification) -> str:
    """Return the page as HTML that needs no network."""
    rows = [
        f'<tr><td class="{"holds" if one.holds else "fails"}">{"holds" if one.holds else "FAILS"}</td>'
        f"<td>{escape(one.name)}</td><td>{one.value:.2g}</td><td>{one.allowed:.2g}</td><td>{escape(one.detail)}</td></tr>"
        for one in page.verdicts
    ]
    title = f"Verdicts on {escape(page.model)}"
    return PAGE.format(title=title, head=escape(_head(page)), rows="\n".join(rows), foot=escape(_foot(page)))
