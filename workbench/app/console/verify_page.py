"""The verdicts on a model, as printed and written by `workbench verify`."""

from rich.console import Group
from rich.table import Table

from workbench.app.console.text import plain
from workbench.experiments.trials.verification import Verification
from workbench.plots.marks.pages import render


def _head(page: Verification) -> str:
    size = f"{page.parameters / 1e6:,.1f} million parameters, {page.dtype}, {page.device}"
    return f"{size}; {page.prompts} prompts, {page.tokens:,} tokens; noise floor {page.floor:.2g}"


def answer(page: Verification) -> str:
    """Summarise the verdicts in a sentence."""
    failed = [one.name for one in page.verdicts if not one.holds]
    if not failed:
        return f"The blocks of {page.model} can be reused exactly: moved keys equal those computed in place"
    return f"The blocks of {page.model} cannot be reused exactly: {', '.join(failed)} fail{'s' * (len(failed) == 1)}"


def _foot(page: Verification) -> str:
    return ", ".join(f"{name} {version}" for name, version in page.versions.items())


def report(page: Verification) -> Group:
    """Return the page as a table of verdicts."""
    table = Table(box=None, pad_edge=False)
    for name in ("", "check", "difference", "allowed", "what was compared"):
        table.add_column(name)
    for one in page.verdicts:
        state = "[green]holds[/]" if one.holds else "[bold red]FAILS[/]"
        table.add_row(state, one.name, f"{one.value:.2g}", f"{one.allowed:.2g}", f"[dim]{plain(one.detail)}[/]")
    said = f"[bold {'green' if page.all_hold else 'red'}]{plain(answer(page))}.[/]"
    if page.all_hold:
        said += f" Next, what the answers lose: workbench trial --model {plain(page.model)} --mode block"
    return Group(said, f"{plain(page.model)}: {_head(page)}", table, f"[dim]{plain(_foot(page))}[/]")


def verification_html(page: Verification) -> str:
    """Return the page as self-contained HTML."""
    texts = {"answer": answer(page), "head": _head(page), "foot": _foot(page)}
    return render("verify", title=page.model, page=page, **texts)
