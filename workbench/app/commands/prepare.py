"""`workbench prepare`: cache a data set's passages in advance."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.app.commands.trial import MethodFile
from workbench.app.console.options import AsJson, of_fields, with_options
from workbench.app.console.text import plain, progress, show
from workbench.methods import registry, unimported
from workbench.methods.preprocessing.fields import PreparationFields

if TYPE_CHECKING:
    from workbench.methods.preprocessing.precompute import Prepared

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench prepare --data questions.json --prepare with_neighbours --n 10 --out prepared")
@with_options(of_fields(PreparationFields, defaults={"model": "lab-full"}, text=["out"]))
def prepare(
    *,
    n: Annotated[int | None, typer.Option(help="Number of similar passages to preprocess each passage with")] = None,
    embedder: Annotated[
        str | None, typer.Option(help="Embedder for similarity: tfidf, minilm or a sentence-transformers model")
    ] = None,
    method_file: MethodFile = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Cache the passages of a data set in advance, with one preprocessing method."""
    del method_file  # its policies are known since it was read
    name, options = registry.parse(given["prepare"])
    options |= {key: value for key, value in (("n", n), ("embedder", embedder)) if value is not None}
    if options:
        given["prepare"] = f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"
        unimported.check("workbench.methods.prepare", given["prepare"])
    with progress("preparing") as advance:
        from workbench.methods.preprocessing.precompute import Preparation  # torch and transformers: not for `--help`

        prepared = Preparation(**given).run(advance)
    show(as_json, json.dumps(asdict(prepared)), report(prepared))


def report(prepared: "Prepared") -> str:
    """Return a summary in rich markup: what this run encoded and wrote, and what the store holds."""
    speed = f" ({prepared.passages_per_second:.1f} passages per second)" if prepared.made else ""
    passages = "1 passage" if prepared.passages == 1 else f"{prepared.passages:,} passages"
    there = prepared.passages - prepared.made
    run = f"{passages} of {prepared.tokens:,} tokens: {prepared.made:,} encoded in {prepared.seconds:.1f} s{speed}, "
    run += f"{there:,} there already; {prepared.written / 1e6:.1f} MB written"
    blocks = "1 block" if prepared.blocks == 1 else f"{prepared.blocks:,} blocks"
    holds = f"the store holds {blocks}, {prepared.bytes / 1e6:.1f} MB, for {plain(prepared.prepare)}"
    return f"[bold]{plain(prepared.folder)}[/]: {run}\n[dim]{holds}[/]"
