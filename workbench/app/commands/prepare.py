"""`workbench prepare`: the passages of a data set, cached beforehand."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from workbench.app.commands.text import plain, progress
from workbench.methods import registry
from workbench.methods.precompute import Preparation, Prepared

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench prepare --data questions.json --prepare with_neighbours --n 10 --out prepared")
def prepare(
    out: Annotated[Path, typer.Option(help="Folder for the cached passages; run again to go on after an interruption")],
    model: Annotated[str, typer.Option(help="Checkpoint folder or name (see `workbench models`)")] = "lab-full",
    data: Annotated[str, typer.Option(help="`lab`, a shipped name or a file: JSON, JSON lines, .gz")] = "lab",
    prepare: Annotated[
        str, typer.Option(help="independent, after_system or with_neighbours; options in brackets")
    ] = "with_neighbours",
    n: Annotated[int | None, typer.Option(help="Similar passages that a passage is prepared with")] = None,
    embedder: Annotated[
        str | None, typer.Option(help="Says what is similar: tfidf, minilm or a sentence-transformers model")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Of lab: how many questions to take the passages of")] = None,
    passages: Annotated[int | None, typer.Option(help="Of lab: passages a question")] = None,
    seed: Annotated[int, typer.Option(help="Of lab: of the draw")] = 0,
    workers: Annotated[int, typer.Option(help="Processes; with --device cuda, dealt out over the GPUs")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON on stdout")] = False,
) -> None:
    """Cache the passages of a data set beforehand, prepared one way."""
    name, options = registry.parse(prepare)
    options |= {key: value for key, value in (("n", n), ("embedder", embedder)) if value is not None}
    spec = f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else name
    asked = Preparation(
        model=model,
        out=out,
        data=data,
        prepare=spec,
        samples=samples,
        seed=seed,
        passages=passages,
        device=device,
        dtype=dtype,
        workers=workers,
    )
    with progress("preparing") as advance:
        found = asked.run(advance)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        Console(highlight=False).print(_report(found))


def _report(found: Prepared) -> str:
    speed = f", {found.passages_per_second:.1f} passages per second" if found.made else ""
    size = f"{found.passages} passages, {found.tokens} tokens, {found.bytes / 1e6:.1f} MB"
    return (
        f"[bold]{plain(found.folder)}[/]: {size}\n{plain(found.prepare)}\n"
        f"[dim]{found.made} made in {found.seconds:.1f} s{speed}; {found.passages - found.made} were there[/]"
    )
