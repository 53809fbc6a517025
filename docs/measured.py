"""Run the commands of docs/safe.md as they stand, and keep what they took and found in docs/safe.json.

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

import pandas as pd
import psutil
import torch

from workbench.experiments.trials.record import device_name

PAGE = Path(__file__).with_name("safe.md")
KEPT = PAGE.with_suffix(".json")
COLUMNS = ("way", "n", "kl", "kl_low", "kl_high", "agree", "em", "f1", "rows_computed")


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
        busy = psutil.cpu_percent(1.0) / 100
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", *shlex.split(line)], cwd=folder, stdin=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"{line}: exit code {done.returncode}")
        took.append({"command": line, "seconds": round(time.monotonic() - started, 1), "busy": busy})
        known.write_text(json.dumps(took))
        print(f"{took[-1]['seconds']:8.1f} s  {line}", flush=True)
    trials = pd.concat([pd.read_parquet(folder / name / "trials.parquet") for name in ("screened", "ratios")])
    found = trials[trials.kind == "all"].reset_index(drop=True)
    shown = [name for name in found.columns if name in COLUMNS or name.startswith("ttft")]
    rows = json.loads(found[shown].to_json(orient="records"))
    took.sort(key=lambda each: commands(PAGE.read_text()).index(each["command"]))
    kept = {
        "device": device_name(torch.device("cpu")),
        "cores": os.cpu_count(),
        "took": took,
        "found": rows,
    }
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
