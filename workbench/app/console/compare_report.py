"""What `workbench compare` prints."""

from rich.console import Group
from rich.table import Table

from workbench.app.console.text import plain
from workbench.app.reports import compared_page
from workbench.experiments.trials.run_differences import RunComparison
from workbench.plots.reports.run_differences import said


def report(found: RunComparison) -> Group:
    """Return what differs, in tables."""
    parts: list[Table | str] = [f"[bold]{plain(said(found))}[/]", ""]
    for title, head, rows in compared_page.tables(found):
        if not rows:
            parts += [f"[dim]{plain(title)}: none[/]", ""]
            continue
        table = Table(box=None, pad_edge=False, title=plain(title), title_justify="left", title_style="dim")
        for number, name in enumerate(head):
            table.add_column(plain(name), justify="left" if number < 2 else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(plain, row))
        parts += [table, ""]
    return Group(*parts)
