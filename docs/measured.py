"""Run a page's commands, and insert their output where the page shows it.

python docs/measured.py [PAGE] [FOLDER]     a page with printed output (default: all); a working folder

Output replaces the text block after a line `<!-- printed: COMMAND -->`. Every workbench command above the last such
line is run in order, which takes minutes on two cores; commands that already ran in FOLDER are not run again.
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
    """Return a page's workbench commands above the last such line, in order."""
    head = text[: [found.start() for found in PRINTED.finditer(text)][-1]]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", head, re.S) for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("workbench ")]


def printed(line: str, folder: Path) -> str:
    """Run a command in `folder` and return its output; exit if it fails."""
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
        if line not in told:  # resumes an interrupted run
            told[line] = printed(line, folder)
            known.write_text(json.dumps(told))
    page.write_text(PRINTED.sub(lambda found: f"{found[1]}{found[2]}{told[found[1]]}", page.read_text()))


if __name__ == "__main__":
    pages = [Path(sys.argv[1]).resolve()] if sys.argv[1:] else PAGES
    with tempfile.TemporaryDirectory() as scratch:
        for each in pages:
            main(each, Path(sys.argv[2] if sys.argv[2:] else scratch).resolve())
