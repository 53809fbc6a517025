"""The verdicts on a model as `workbench verify` prints and writes them."""

from html import escape

from rich.console import Group
from rich.table import Table

from workbench.app.console.text import plain
from workbench.experiments.trials.verification import Verification

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; --holds: #00704f; --fails: #b34700; --soft: #5a6068; }}
@media (prefers-color-scheme: dark) {{ :root {{ --holds: #4cc26a; --fails: #ff9a5c; --soft: #b3b9c2; }}
  body {{ background: #121212; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 32px auto; padding: 0 16px; }}
td, th {{ text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid #8884; vertical-align: top; }}
h1 {{ font-size: 26px; margin-bottom: 6px; }} .next {{ font-size: 17px; max-width: 800px; }}
code {{ overflow-wrap: anywhere; }}
.holds {{ color: var(--holds); }} .fails {{ color: var(--fails); font-weight: 600; }} .small {{ color: var(--soft); }}
</style></head><body><h1 class="{state}">{answer}</h1><p class="next">{next}</p><p>{title}: {head}</p>
<table><tr><th>verdict</th><th>check</th><th>difference</th><th>allowed</th><th>what was compared</th></tr>
{rows}
</table><p class="small">{foot}</p></body></html>
"""


def _head(page: Verification) -> str:
    size = f"{page.parameters / 1e6:,.1f} million parameters, {page.dtype}, {page.device}"
    return f"{size}; {page.prompts} prompts, {page.tokens:,} tokens; noise floor {page.floor:.2g}"


def answer(page: Verification) -> str:
    """Return what the verdicts come to, in a sentence."""
    failed = [one.name for one in page.verdicts if not one.holds]
    if not failed:
        return f"The blocks of {page.model} can be reused exactly"
    return f"The blocks of {page.model} cannot be reused exactly: {', '.join(failed)} fail{'s' * (len(failed) == 1)}"


def following(page: Verification) -> str:
    """Return what to do next, as HTML."""
    model = escape(page.model)
    if page.whole:
        return (
            "Cached keys move to other positions, and recomputing everything gives full attention, as exactly as "
            f"{page.dtype} allows. How much the answers lose is another question. Next: <code>workbench trial "
            f"--model {model} --data FILE --mode block</code> measures it on your questions."
        )
    finer = (
        ""
        if page.dtype == "float32"
        else f", and repeat this with <code>--dtype float32</code> ({page.dtype} was used)"
    )
    return (
        "Do not trust anything measured with reuse on this model. See below which check fails and what it compares"
        f"{finer}; if it fails there as well, please report it with the model's configuration."
    )


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
    said = f"[bold {'green' if page.whole else 'red'}]{plain(answer(page))}.[/]"
    return Group(said, f"{plain(page.model)}: {_head(page)}", table, f"[dim]{plain(_foot(page))}[/]")


def written(page: Verification) -> str:
    """Return the page as HTML that needs no network."""
    rows = [
        f'<tr><td class="{"holds" if one.holds else "fails"}">{"holds" if one.holds else "FAILS"}</td>'
        f"<td>{escape(one.name)}</td><td>{one.value:.2g}</td><td>{one.allowed:.2g}</td><td>{escape(one.detail)}</td></tr>"
        for one in page.verdicts
    ]
    title = escape(page.model)
    first = {"state": "holds" if page.whole else "fails", "answer": f"{escape(answer(page))}.", "next": following(page)}
    return PAGE.format(title=title, head=escape(_head(page)), rows="\n".join(rows), foot=escape(_foot(page)), **first)
