"""The verdicts on a model as `workbench verify` prints and writes them."""

from html import escape

from rich.console import Group
from rich.table import Table

from workbench.app.console.text import plain
from workbench.experiments.trials.verification import Verification

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


def _head(page: Verification) -> str:
    size = f"{page.parameters / 1e6:,.1f} million parameters, {page.dtype}, {page.device}"
    return f"{size}; {page.prompts} prompts, {page.tokens:,} tokens; noise floor {page.floor:.2g}"


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
