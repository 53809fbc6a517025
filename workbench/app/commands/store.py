"""`workbench store`: fill, verify, repair, trim and transfer stores of cached blocks.

Modules that import torch are imported by the command that needs them, not for `--help`.
"""

import json
import os
from dataclasses import asdict
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from workbench.app.commands.prepare import report as prepared_report
from workbench.app.console.options import AsJson, of_fields, with_options
from workbench.app.console.text import importing, plain, progress, show
from workbench.core.errors import BadInput, format_value
from workbench.core.utils.files import bytes_of, is_dir, is_url
from workbench.core.utils.stages import keeps
from workbench.methods.preprocessing.fields import LookupFields, PreparationFields
from workbench.store.files import MANIFEST

if TYPE_CHECKING:
    from workbench.methods.preprocessing.lookups import ExplainedMiss
    from workbench.store.files.scrub import Scrub
    from workbench.store.files.transfer import ArchiveContent

BEGIN = "Begin with: workbench store encode lab --samples 4 --to base"
app = typer.Typer(add_completion=False, no_args_is_help=True, epilog=BEGIN)


def folder_of(text: str) -> Path:
    """Return a folder's path. Raises BadInput for a URL."""
    if is_url(text):
        raise BadInput(f"{text} is a URL: a folder is needed here")
    return Path(text)


def existing_store(text: str) -> str:
    """Return the folder or URL. Raises BadInput for a folder that is not a store, before torch is imported."""
    if not is_url(text):
        if not is_dir(text):
            raise BadInput(f"{format_value(text)} is no folder of cached blocks: there is no such folder")
        if MANIFEST not in os.listdir(text):
            raise BadInput(f"{text} is no folder of cached blocks: it has no {MANIFEST}")
    return text


FILLED = "of cached blocks, as written by `workbench store encode`"
Folder = Annotated[str, typer.Argument(help=f"Folder {FILLED}", callback=existing_store)]
Place = Annotated[str, typer.Argument(help=f"Folder or URL {FILLED}", callback=existing_store)]
Archive = Annotated[Path, typer.Argument(help="Archive (.tar or .tar.zst)")]
CORPUS = "Data set name or question file whose passages to encode"


def takes_option(option: Parameter) -> bool:
    """Return whether `encode` takes an option of `PreparationFields` unchanged."""
    return option.name not in ("out", "data")


@app.callback()
def _group() -> None:
    """Manage stores of cached blocks: encode, verify, repair, stats, gc, export, import, explain misses."""


@app.command(epilog="Example: workbench store encode manual.md --model smollm2 --to s3://bucket/manual --workers 4")
@with_options(filter(takes_option, of_fields(PreparationFields, {"model": "lab-full", "prepare": "independent"})))
def encode(
    corpus: Annotated[str, typer.Argument(help=f"{CORPUS}, or a file of passages: text, Markdown, {{title, text}}")],
    *,
    to: Annotated[str, typer.Option(help="Folder or URL (memory://, file://, s3://, …); rerun to resume")],
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Encode a corpus into a store, once; with several workers, over a Dask cluster where Dask is installed."""
    if given["workers"] > 1 and given["cluster"] is None and find_spec("distributed") is not None:
        given["cluster"] = "local"
    from workbench.data import check_name

    check_name(corpus)
    with progress("encoding") as advance:
        from workbench.methods.preprocessing.precompute import Preparation

        prepared = Preparation(data=corpus, out=to, **given).run(advance)
    show(as_json, json.dumps(asdict(prepared)), prepared_report(prepared))


@app.command(epilog="Example: workbench store verify prepared")
def verify(
    folder: Place,
    repair: Annotated[bool, typer.Option("--repair", help="Quarantine damaged files, to be encoded again")] = False,
    as_json: AsJson = False,
) -> None:
    """Read every block and verify its checksums; lists damaged files and exits with code 1 if there are any."""
    found = _scrubbed(folder, repair)
    show(as_json, json.dumps(asdict(found) | {"whole": found.intact}), verified(found), wrap=False)
    if not found.intact:
        raise typer.Exit(1)


@app.command(epilog="Example: workbench store repair prepared")
def repair(
    folder: Place,
    encode_again: Annotated[bool, typer.Option("--encode/--no-encode", help="Then encode what is missing")] = True,
    as_json: AsJson = False,
) -> None:
    """Quarantine damaged files, keep their intact blocks, and encode the others as `store encode` or `prepare` did."""
    from workbench.methods.preprocessing import precompute
    from workbench.store.urls import place_of

    if encode_again:
        precompute.asked_before(place_of(folder))  # refuses corrupt metadata before anything is quarantined
    found = _scrubbed(folder, True)
    made = 0
    if encode_again:
        with progress("encoding") as advance:
            made = sum(prepared.made for prepared in precompute.repeat_earlier_runs(place_of(folder), advance))
    left = _scrubbed(folder, False)
    whole = asdict(left) | {"whole": left.intact, "repaired": list(found.removed), "kept": found.kept, "made": made}
    told = [f"set aside: {plain(name)}" for name in found.removed]
    told += [f"intact blocks of these files, kept: {found.kept}"] if found.removed else []
    told += [f"passages encoded again: {made}"]
    show(as_json, json.dumps(whole), "\n".join([*told, verified(left)]), wrap=False)
    if not left.intact:
        raise typer.Exit(1)


@app.command(epilog="Example: workbench store stats prepared --json")
def stats(folder: Place, as_json: AsJson = False) -> None:
    """Show what a store contains, from the headers of its files."""
    with progress("reading"), importing():
        from workbench.store.files import scrub

        found = scrub.describe_remote(folder) if is_url(folder) else scrub.describe(Path(folder))
    show(as_json, json.dumps(found), contents_table(found))


@app.command(epilog="Example: workbench store gc prepared --budget 10GB")
def gc(
    folder: Folder,
    budget: Annotated[str, typer.Option(help="Maximum size to keep, e.g. 10GB or 512MiB")],
    as_json: AsJson = False,
) -> None:
    """Delete quarantined files, then the least recently read files, until the rest fits the budget."""
    place, most = folder_of(folder), bytes_of(budget)
    with keeps(lambda: "deleted files are gone, the rest is intact: rerun to continue"), progress("deleting"):
        from workbench.store.files.eviction import collect_garbage

        found = collect_garbage(place, most)
    size = f"{found.before / 1e6:.1f} MB before, {found.after / 1e6:.1f} MB now"
    told = f"[bold]{plain(found.folder)}[/]: {_blocks(found)} deleted; {size}"
    show(as_json, json.dumps(asdict(found)), told)


@app.command(epilog="Example: workbench store export prepared prepared.tar.zst")
def export(folder: Folder, archive: Archive, as_json: AsJson = False) -> None:
    """Verify the checksums of a folder and write it to one archive."""
    from workbench.store.files import transfer

    with progress("exporting") as advance:
        found = transfer.pack(folder_of(folder), archive, advance)
    show(as_json, json.dumps(asdict(found)), transfer_summary(found, found.archive))


@app.command("import", epilog="Example: workbench store import prepared.tar.zst prepared")
def import_command(
    archive: Archive, folder: Annotated[str, typer.Argument(help="New folder")], as_json: AsJson = False
) -> None:
    """Verify the checksums of an archive and unpack it to a new folder."""
    if not archive.is_file():
        raise BadInput(f"{archive}: no such file")
    from workbench.store.files import transfer

    found = transfer.unpack(archive, folder_of(folder))
    show(as_json, json.dumps(asdict(found)), transfer_summary(found, found.folder))


@app.command(epilog="Example: workbench store explain prepared --model lab-full --data questions.json")
@with_options([option for option in of_fields(LookupFields, defaults={}) if option.name != "folder"])
def explain(folder: Place, *, as_json: AsJson = False, **given: Any) -> None:
    """Look up the blocks of a data set and explain the misses; computes nothing."""
    with progress("looking up"):
        from workbench.methods.preprocessing.lookups import Lookups

        found = Lookups(folder, **given).run()
    show(as_json, json.dumps(found.to_json()), lookup_report(found))


def _scrubbed(folder: str, repair: bool) -> "Scrub":
    with progress("verifying") as advance:
        from workbench.store.files import scrub

        if is_url(folder):
            return scrub.verify_remote(folder, repair, advance)
        return scrub.verify(Path(folder), repair, advance)


SHOWN = 20  # misses listed in full


def transfer_summary(found: "ArchiveContent", where: str) -> str:
    """Return a line on what was transferred."""
    return f"[bold]{plain(where)}[/]: {_blocks(found)}, {found.bytes / 1e6:.1f} MB"


def _blocks(found: Any) -> str:
    """Return the number of blocks and files as text."""
    count = "1 block" if found.blocks == 1 else f"{found.blocks:,} blocks"
    return f"{count} in {'1 file' if found.files == 1 else f'{found.files:,} files'}"


def verified(found: "Scrub") -> str:
    """Return the outcome of verifying all checksums, as text."""
    lines = [plain(str(finding)) for finding in found.findings]
    lines += [f"set aside: {plain(name)}" for name in found.removed]
    state = "whole" if found.intact else "damaged"
    size = f"{_blocks(found)}, {found.bytes / 1e6:.1f} MB"
    return "\n".join([*lines, f"[bold]{plain(found.folder)}[/]: {size}: {state}"])


def contents_table(found: dict[str, Any]) -> Table:
    """Return a store's contents, one fact per row."""
    from workbench.store.files.manifest import MADE, MODEL_NAME, describe

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("folder", plain(str(found["folder"])))
    for name in ("blocks", "files", "tokens", "bytes"):
        if found[name] is not None:  # tokens of a remote store are not counted
            table.add_row(name, f"{found[name]:,}")
    for name in (name for name in found["kind"] if name not in (MADE, MODEL_NAME)):
        table.add_row(name, plain(describe(name, found["kind"])))
    for each in found["made"]:
        table.add_row("made with", plain(", ".join(f"{name} {value}" for name, value in each.items())))
    for each in found["set_aside"]:
        table.add_row(each["kind"], plain(f"{each['file']}: {each['detail']}"))
    return table


def lookup_report(found: "ExplainedMiss") -> Group:
    """Return how many blocks were found, and why others were missed."""
    asked = found.hits + len(found.misses)
    head = f"[bold]{plain(found.folder)}[/]: {found.hits} of {asked} blocks are there, for {plain(found.prepare)}"
    head += f"\n{plain(found.differs)}" if found.differs else ""
    counts = Table(box=None, pad_edge=False, show_header=False)
    for reason, count in found.reasons.items():
        counts.add_row(str(count), reason)
    each = [f"{plain(label) or miss.key[:12]}: {plain(str(miss))}" for miss, label in found.misses[:SHOWN]]
    if len(found.misses) > SHOWN:
        each.append(f"[dim]and {len(found.misses) - SHOWN} more; --json lists all[/]")
    return Group(head, counts, *each)
