"""Run the commands of docs/safe.md as they stand, and write what they took and found at its end.

python docs/measured.py [FOLDER]       a folder to work in; without one a temporary one. Takes minutes on two cores.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from workbench.app.docs.methods import table
from workbench.experiments.trials.record import device_name

PAGE = Path(__file__).with_name("safe.md")
PLACE = "<!-- measured: python docs/measured.py -->\n"


def commands(text: str) -> list[str]:
    """The commands of the page, in their order."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def main(folder: Path) -> None:
    """Run every command in `folder` that has not run there; one that fails ends this."""
    known = folder / "took.json"
    took = json.loads(known.read_text()) if known.is_file() else []
    for line in commands(PAGE.read_text()):
        if line in [each["command"] for each in took]:
            continue  # a run that was interrupted goes on
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", *shlex.split(line)], cwd=folder, stdin=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"{line}: exit code {done.returncode}")
        took.append({"command": line, "seconds": round(time.monotonic() - started, 1)})
        known.write_text(json.dumps(took))
        print(f"{took[-1]['seconds']:8.1f} s  {line}", flush=True)
    head, place, _ = PAGE.read_text().partition(PLACE)
    rows = [(f"`{each['command']}`", f"{each['seconds']:.0f}") for each in took]
    where = f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores; others may have used them, too."
    compared = (folder / "compared.md").read_text()
    PAGE.write_text("\n\n".join([head + place + compared.strip(), where, table(("command", "seconds"), rows)]) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
