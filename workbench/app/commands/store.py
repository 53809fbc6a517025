"""`workbench store`: what a folder of cached blocks holds, whether it is whole, and why look-ups miss."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from workbench.app.commands.options import AsJson, of_fields, taking
from workbench.app.commands.text import plain, progress, show
from workbench.methods.lookups import Explained, Lookups
from workbench.store import scrub
from workbench.store.scrub import Scrub

app = typer.Typer(add_completion=False, no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="Folder of cached blocks, as `workbench prepare` fills them")]
SHOWN = 20  # misses that are listed with all they say


@app.callback()
def _group() -> None:
    """Look into a folder of cached blocks: verify, explain misses, statistics."""


@app.command(epilog="Example: workbench store verify prepared --repair")
def verify(
    folder: Folder,
    repair: Annotated[bool, typer.Option("--repair", help="Delete damaged files, to be encoded again")] = False,
    as_json: AsJson = False,
) -> None:
    """Read every block and verify its checksums; exit code 1, and a line for each, where some are damaged."""
    with progress("verifying") as advance:
        found = scrub.verify(folder, repair, advance)
    show(as_json, json.dumps(asdict(found) | {"whole": found.whole}), _verified(found))
    if not found.whole:
        raise typer.Exit(1)


@app.command(epilog="Example: workbench store stats prepared --json")
def stats(folder: Folder, as_json: AsJson = False) -> None:
    """Tell what a folder holds, by the headers of its files."""
    found = scrub.describe(folder)
    show(as_json, json.dumps(found), _described(found))


@app.command(epilog="Example: workbench store explain prepared --model lab-full --data questions.json")
@taking([option for option in of_fields(Lookups, defaults={}) if option.name != "folder"])
def explain(folder: Folder, *, as_json: AsJson = False, **given: Any) -> None:
    """Look up the blocks of a data set, and tell why some are not found; nothing is computed."""
    found = Lookups(folder, **given).run()
    show(as_json, json.dumps(found.to_json()), _explained(found))


def _verified(found: Scrub) -> str:
    lines = [plain(str(finding)) for finding in found.findings]
    lines += [f"deleted: {plain(name)}" for name in found.removed]
    if found.unchecked:
        lines.append(f"[dim]{found.unchecked} blocks of earlier versions have no checksums[/]")
    state = "whole" if found.whole else "damaged"
    size = f"{found.blocks} blocks in {found.files} files, {found.bytes / 1e6:.1f} MB"
    return "\n".join([*lines, f"[bold]{plain(found.folder)}[/]: {size}: {state}"])


def _described(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in ("folder", "blocks", "files", "tokens", "bytes", "unchecked"):
        table.add_row(name, plain(str(found[name])))
    for name, value in found["kind"].items():
        table.add_row(name, plain(str(value)))
    for each in found["made"]:
        table.add_row("made with", plain(", ".join(f"{name} {value}" for name, value in each.items())))
    for each in found["set_aside"]:
        table.add_row(each["kind"], plain(f"{each['file']}: {each['detail']}"))
    return table


def _explained(found: Explained) -> Group:
    asked = found.hits + len(found.misses)
    head = f"[bold]{plain(found.folder)}[/]: {found.hits} of {asked} blocks are there, for {plain(found.prepare)}"
    counts = Table(box=None, pad_edge=False, show_header=False)
    for reason, count in found.reasons.items():
        counts.add_row(str(count), reason)
    each = [f"{plain(label) or miss.key[:12]}: {plain(str(miss))}" for miss, label in found.misses[:SHOWN]]
    if len(found.misses) > SHOWN:
        each.append(f"[dim]and {len(found.misses) - SHOWN} more; --json lists all[/]")
    return Group(head, counts, *each)
