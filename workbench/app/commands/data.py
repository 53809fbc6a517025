"""`workbench data`: inspect questions and passages."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from workbench import data as datasets
from workbench.app.console.text import plain, progress
from workbench.core.errors import BadInput, printable
from workbench.core.utils.files import write_text
from workbench.data import Sample

HARD = "\u00a0"  # no-break space
MOST = 200  # prompts whose tokens are counted
LINES = 3  # shown of a passage
NAME = "`lab`, `lab(hints=0)`, `needles`, `manuals`, a shipped name, file, folder or `hf:NAME`; omit to list the names"
PASSAGES = "Passages per question; for a file, truncated or filled up from its other questions"
LAYOUT = "Layout of that prompt: lab, released, chat or a JSON file. Default: the model's own"
ABOUT = {
    "lab": "invented people and places, all that lab-full knows",
    "needles": "facts hidden in long texts, drawn by seed: all tasks in turn",
    "manuals": "questions about installed packages, from their manuals",
    "manuals-train": "the same from other pages, for fine-tuning",
    "bridges-sample": "the question on bridges that the prompt editor shows first",
    "lab-sample": "a fixed set of questions from lab",
}

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: workbench data questions.jsonl --model smollm2-reader")
def show_data(
    name: Annotated[str | None, typer.Argument(help=NAME)] = None,
    samples: Annotated[int, typer.Option(help="Maximum number of samples")] = 3,
    seed: Annotated[int, typer.Option(help="Sampling seed")] = 0,
    passages: Annotated[int | None, typer.Option(help=PASSAGES)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines, one record per line")] = False,
    model: Annotated[
        str | None, typer.Option(help="Show the first prompt as this model reads it, and count tokens")
    ] = None,
    layout: Annotated[str | None, typer.Option(help=LAYOUT)] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show that prompt token by token (with --model)")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the samples to this file (.jsonl), usable as --data")] = None,
) -> None:
    """Inspect a data set and the prompts a model reads, or write samples to a file."""
    if model is None and (layout is not None or tokens):
        raise BadInput(f"{'--layout' if layout else '--tokens'} says how a prompt is shown: name its --model, too")
    if name is None:
        print("\n".join(f"{each:<20} {ABOUT.get(each, 'one task of needles')}" for each in datasets.names()))
        return
    if out is not None and (out.suffix != ".jsonl" or not out.absolute().parent.is_dir()):
        raise BadInput(f"out is {out}: a file that ends in .jsonl is needed, in a folder that is there")
    datasets.check_name(name)
    listed = datasets.load(name, samples, seed, passages)
    if out is not None:
        write_text(out, "".join(f"{json.dumps(sample.to_json(), ensure_ascii=False)}\n" for sample in listed))
        versions = [f"{package} {version}" for package, version in datasets.versions(name).items()]
        print(", ".join([f"{printable(str(out))}: {len(listed)} samples", *versions]))
        return
    console = Console(highlight=False)
    reader = None
    if model is not None and not as_json:
        with progress(f"{model} as a reader"):
            reader = _reader(model, layout)
    for sample in listed:
        if as_json:
            line = json.dumps(sample.to_json(), ensure_ascii=False)
            print("".join(x if x.isprintable() else json.dumps(x)[1:-1] for x in line))
        else:
            _show(console, sample)
    if not as_json:
        every = listed if datasets.is_generated(name) else datasets.load(name, None, seed, passages, answered=False)
        console.print(f"[dim]{plain(name)}: {_totals(every, len(listed))}[/]")
        if model is not None and reader is not None:
            _prompt(console, every, listed[0], model, reader, tokens)


def _totals(every: Sequence[Sample], shown: int) -> str:
    held = [len(sample.ctxs) for sample in every]
    passages = len({passage for sample in every for passage in sample.ctxs})
    unanswered = sum(not sample.answers for sample in every)
    asked = f"{len(every):,} question{'s' * (len(every) > 1)}"
    parts = [f"{shown} of {asked}" if shown < len(every) else asked]
    parts += [f"{_range(held)} passage{'s' * (max(held) > 1)} each, {passages:,} different ones"]
    parts += [f"{unanswered:,} without an answer"] * bool(unanswered)
    return ", ".join(parts) + "; * supports the answer" * any(sample.supporting_titles for sample in every)


def _reader(model: str, layout: str | None) -> tuple[Any, Any]:
    """Return a model's tokenizer, and the layout of that name or the model's own."""
    from workbench.data.chat_template import layout_named  # transformers: not for a look at questions
    from workbench.models import base_folder, folder, layout_of
    from workbench.models.model_card import tokenizer_of

    path = folder(model)
    tokenizer = tokenizer_of(base_folder(path))
    return tokenizer, layout_of(path, tokenizer) if layout is None else layout_named(layout, tokenizer)


def _prompt(
    console: Console, every: Sequence[Sample], first: Sample, model: str, reader: tuple[Any, Any], tokens: bool
) -> None:
    """Show a sample's prompt block by block, and how many tokens the prompts of all samples have."""
    from workbench.data import prompt_view

    tokenizer, chosen = reader
    reading = prompt_view.of_sample(first, "", tokenizer, chosen)
    for number, (text, start) in enumerate(zip(reading.pieces, reading.prompt.starts, strict=False)):
        held = reading.tokens[start : start + len(reading.prompt.blocks[number])]
        console.print(f"[bold]block {number}[/] [dim]positions {start:,} on, {len(held):,} tokens[/]")
        shown = _wrapped(map(repr, held), console.width) if tokens else printable(text)
        console.print(escape(shown), end="\n\n", soft_wrap=tokens)
    lengths = [len(prompt) for prompt in chosen.prompts(every[:MOST], tokenizer)]
    console.print(f"[dim]{plain(model)}: {_range(lengths)} tokens a prompt, n = {len(lengths):,}[/]")


def _wrapped(words: Iterable[str], width: int) -> str:
    """Return words, which may hold blanks, in lines that break between them alone."""
    joined = " ".join(printable(word).replace(" ", HARD) for word in words)
    return fill(joined, width, break_long_words=False, break_on_hyphens=False).replace(HARD, " ")


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _show(console: Console, sample: Sample) -> None:
    facts = [sample.id, sample.kind, f"passages: {len(sample.ctxs)}"]
    console.print(f"[dim]{plain(' · '.join(fact for fact in facts if fact))}[/]")
    for passage in sample.ctxs:
        mark = "*" if passage.title in sample.supporting_titles else " "
        text, most = passage.text, LINES * console.width
        text = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
        console.print(f"{mark} [bold]{plain(passage.title)}[/]  {plain(text)}")
    console.print(f"[bold]Q[/] {plain(sample.question)}\n[bold]A[/] {plain(' | '.join(sample.answers))}\n")
