"""Samples by name or file: the lab corpus and question files as they are published."""

from dataclasses import replace
from pathlib import Path
from random import Random

from workbench.core.errors import BadInput
from workbench.data import assets, files, lab, needles
from workbench.data.sample import Passage, Sample

SAMPLES, PASSAGES, HAYSTACK = 200, 10, 20  # defaults; passages of the lab corpus and of a needle task

__all__ = ["Passage", "Sample", "corpus", "load", "names"]


def names() -> list[str]:
    """Data sets known by name: `lab` and `needles` (all tasks in turn, or `needles-TASK`) are generated from the seed,
    `<corpus>-sample` is a shipped file."""
    return [*_generated(), *(f"{name}-sample" for name in assets.corpora())]


def _generated() -> list[str]:
    return ["lab", "needles", *(f"needles-{task}" for task in needles.TASKS)]


def load(
    name_or_path: str | Path, samples: int | None = None, seed: int = 0, passages: int | None = None
) -> list[Sample]:
    """Samples of a generated corpus (`lab`, `needles`, `needles-single`, …), of a shipped file or of a file in one of
    the layouts of `files`. The kind of a needle question is its task.

    A file gives its samples in its own order; with fewer `samples` than it holds, a draw by `seed`. `passages` cuts
    every context to that many passages, those named in `supporting_titles` first to stay, order kept. Raises BadInput
    for an unknown name, a number under 1 and whatever `files.read`, `lab.samples` and `needles.samples` refuse.
    """
    for what, number in (("samples", samples), ("passages", passages)):
        if number is not None and number < 1:
            raise BadInput(f"{what} is {number}; at least 1 is needed")
    name = str(name_or_path)
    if name == "lab":
        return list(lab.samples(samples or SAMPLES, seed, passages or PASSAGES))
    if name in _generated():
        tasks = needles.TASKS if name == "needles" else (name.removeprefix("needles-"),)
        return list(needles.mixed(samples or SAMPLES, seed, tasks, passages or HAYSTACK))
    if name in names():
        name_or_path = assets.corpus_path(name.removesuffix("-sample"))
    elif not Path(name).is_file() and not name.endswith(files.ENDINGS):
        known, endings = ", ".join(names()), ", ".join(files.ENDINGS)
        raise BadInput(f"unknown data {name!r}: allowed are {known} or a file ({endings})")
    read = files.read(name_or_path)
    if samples is not None and samples < len(read):
        read = [read[i] for i in sorted(Random(f"draw {seed}").sample(range(len(read)), samples))]
    return read if passages is None else [_cut(sample, passages) for sample in read]


def corpus(
    name_or_path: str | Path, samples: int | None = None, seed: int = 0, passages: int | None = None
) -> list[Sample]:
    """The samples whose passages make the corpus that `load` draws from: of a file all of it, of a generated one those
    drawn."""
    drawn = str(name_or_path) in _generated()
    return load(name_or_path, samples, seed, passages) if drawn else load(name_or_path)


def _cut(sample: Sample, passages: int) -> Sample:
    order = sorted(enumerate(sample.ctxs), key=lambda ctx: ctx[1].title not in sample.supporting_titles)
    kept = sorted(i for i, _ in order[:passages])
    return replace(sample, ctxs=tuple(sample.ctxs[i] for i in kept))
