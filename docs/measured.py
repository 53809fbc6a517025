"""Run the commands of a page as they stand, and put what they print where the page shows it.

python docs/measured.py [PAGE] [FOLDER]     one that shows what is printed (without it all); a folder to work in

A place is a line `<!-- printed: COMMAND -->` before a block of text. Every command of the workbench above the last of
these lines is run, from the top, and takes minutes on two cores; one that ran in FOLDER is not run again.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "safe.md", ROOT / "docs" / "guide" / "first_steps.md")
PRINTED = re.compile(r"(?<=<!-- printed: )(.+?)( -->\n```text\n)(.*?)(?=```)", re.S)


def commands(text: str) -> list[str]:
    """Return the workbench's commands of a page above the last place, in their order."""
    head = text[: [found.start() for found in PRINTED.finditer(text)][-1]]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", head, re.S) for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("workbench ")]


def printed(line: str, folder: Path) -> str:
    """Run a command in `folder` and return what it prints; one that fails ends this."""
    words = [sys.executable, "-m", *shlex.split(line)]
    made = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=made, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{line}: exit code {done.returncode}")
    return "".join(f"{each.rstrip()}\n" for each in done.stdout.strip().splitlines())


def main(page: Path, folder: Path) -> None:
    """Renew a page."""
    known = folder / "printed.json"
    told = json.loads(known.read_text()) if known.is_file() else {}
    for line in commands(page.read_text()):
        if line not in told:  # a run that was interrupted goes on
            told[line] = printed(line, folder)
            known.write_text(json.dumps(told))
    page.write_text(PRINTED.sub(lambda found: f"{found[1]}{found[2]}{told[found[1]]}", page.read_text()))


if __name__ == "__main__":
    pages = [Path(sys.argv[1]).resolve()] if sys.argv[1:] else PAGES
    with tempfile.TemporaryDirectory() as scratch:
        for each in pages:
            main(each, Path(sys.argv[2] if sys.argv[2:] else scratch).resolve())
