"""What `workbench compare` prints."""

from rich.console import Group
from rich.table import Table

from workbench.app import compared_page
from workbench.app.commands.text import plain
from workbench.experiments.run_differences import RunComparison
from workbench.plots.run_differences import said


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
