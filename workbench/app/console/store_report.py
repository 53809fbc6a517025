"""What `workbench store` prints."""

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from workbench.app.console.text import plain

if TYPE_CHECKING:
    from workbench.methods.preprocessing.lookups import ExplainedMiss
    from workbench.store.files.scrub import Scrub
    from workbench.store.files.transfer import Transferred

SHOWN = 20  # misses that are listed with all they say


def transferred(found: "Transferred", where: str) -> str:
    """Return a line on what was carried over."""
    return f"[bold]{plain(where)}[/]: {found.blocks} blocks in {found.files} files, {found.bytes / 1e6:.1f} MB"


def verified(found: "Scrub") -> str:
    """Return what a look at every checksum found."""
    lines = [plain(str(finding)) for finding in found.findings]
    lines += [f"set aside: {plain(name)}" for name in found.removed]
    if found.unchecked:
        lines.append(f"[dim]{found.unchecked} blocks of earlier versions have no checksums[/]")
    state = "whole" if found.whole else "damaged"
    size = f"{found.blocks} blocks in {found.files} files, {found.bytes / 1e6:.1f} MB"
    return "\n".join([*lines, f"[bold]{plain(found.folder)}[/]: {size}: {state}"])


def described(found: dict[str, Any]) -> Table:
    """Return what a store holds, a row a fact."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in ("folder", "blocks", "files", "tokens", "bytes", "unchecked"):
        table.add_row(name, plain(str(found[name])))
    for name, value in ((name, value) for name, value in found["kind"].items() if name != "made"):
        table.add_row(name, plain(str(value)))
    for each in found["made"]:
        table.add_row("made with", plain(", ".join(f"{name} {value}" for name, value in each.items())))
    for each in found["set_aside"]:
        table.add_row(each["kind"], plain(f"{each['file']}: {each['detail']}"))
    return table


def explained(found: "ExplainedMiss") -> Group:
    """Return how many blocks are there, and why others are not."""
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
