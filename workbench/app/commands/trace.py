"""`workbench trace`: events of serving, for a trace viewer."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from workbench.app.console.text import plain, progress
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text, writing

app = typer.Typer(add_completion=False)
SOURCE = "Record file of `workbench trial --receipt`, or the folder of one trial"


@app.command(epilog="Example: workbench trace record.json --out trace.json, then open it at ui.perfetto.dev")
def trace(
    source: Annotated[Path, typer.Argument(help=SOURCE)],
    out: Annotated[Path, typer.Option(help="Output file (Chrome trace format)")] = Path("trace.json"),
) -> None:
    """Export the events of a run in Chrome trace format, for Perfetto."""
    with progress("reading"):
        from workbench.experiments.latency import trace as traces

        events = traces.read_trace(source)
    if out.is_dir() or not out.parent.is_dir():
        raise BadInput(f"--out {str(out)!r}: a file in a folder that exists is needed")
    traced = traces.chrome(events)
    with writing(out):
        write_text(out, json.dumps(traced) + "\n")
    requests = len({event.request for event in events if event.request})
    Console(highlight=False).print(f"{len(events)} events of {requests} requests: [bold]{plain(str(out))}[/]")
