"""Commands and snippets of the documentation and the README, as a reader would run them, page by page.

    <!-- weekly -->               before a block: it takes long
    <!-- not run: why -->         before a block: it is not run

A page is run from top to bottom in one folder; its Python shares one set of names.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>[^\n]+?) -->\n)?^(?P<indent> *)```(?P<kind>\w*)\n(?P<body>.*?)^ *```$", re.S | re.M
)
KINDS = {"sh", "python"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    body: str
    note: str = ""

    @property
    def is_run(self) -> bool:
        return self.kind in KINDS and not self.note.startswith("not run")

    @property
    def commands(self) -> list[list[str]]:
        """The command lines of a block of shell, as words."""
        joined = self.body.replace("\\\n", " ")
        return [shlex.split(line, comments=True) for line in joined.splitlines() if line and not line.startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page, in their order."""
    for found in BLOCK.finditer(page.read_text()):
        indent = found["indent"]
        body = "".join(line.removeprefix(indent) for line in found["body"].splitlines(keepends=True))
        yield Block(found["kind"], body, found["note"] or "")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(page: Path, change: Callable[[str], str] = str, weekly: bool = False) -> int:
    """Run the blocks of a page in the working folder, those that take long only if `weekly`; return how many ran."""
    names: dict[str, object] = {"__name__": "documented"}
    count = 0
    for block in blocks(page):
        if not block.is_run or (block.note == "weekly" and not weekly):
            continue
        count += 1
        if block.kind == "python":
            exec(compile(change(block.body), name_of(page), "exec", dont_inherit=True), names)
        for words in Block(block.kind, change(block.body)).commands if block.kind == "sh" else ():
            command(words)
    return count


def command(words: list[str]) -> None:
    """Run one command line of the workbench in this process; any exit code but 0 is an error."""
    from tests.commands import told

    assert words[0] == "workbench", f"{' '.join(words)}: only commands of the workbench are run; say why not"
    told(*words[1:])
