"""Samples by name or file: generated corpora, installed manuals and question files as they are published."""

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from workbench.core.errors import BadInput, did_you_mean, format_value, shorten
from workbench.core.utils import annotations
from workbench.core.utils.files import is_dir, is_file, meant_beside
from workbench.data import assets
from workbench.data.installed_docs import pages as manual_pages
from workbench.data.installed_docs import samples as manuals
from workbench.data.lab_corpus import samples as lab
from workbench.data.lab_corpus import style as lab_style
from workbench.data.sample import Passage, Sample, sized
from workbench.data.sources import files, folders, hub, needles

SMALL = 1 << 22  # bytes; smaller files are read at once, before the model
MOST_SAMPLES = 1_000_000  # maximum number of generated questions
SAMPLES, PASSAGES, HAYSTACK = 200, 10, 20  # defaults; passages of the lab corpus and of a needle task

__all__ = ["Passage", "Sample", "corpus", "is_generated", "load", "names", "versions"]


def __dir__() -> list[str]:
    return sorted(__all__)


def names() -> list[str]:
    """Return the names of data sets.

    `lab` and `needles` (all tasks in turn, or `needles-TASK`) are generated from the seed, `manuals` and
    `manuals-train` are cut from the documentation of installed packages, `<corpus>-sample` is a shipped file. Options
    of the lab corpus are given in brackets: `lab(hints=0, asides=0)` (`lab_corpus.style`).
    """
    return [*_generated(), *manuals.PARTS, *(f"{name}-sample" for name in assets.corpora())]


def _generated() -> list[str]:
    return ["lab", "needles", *(f"needles-{task}" for task in needles.TASKS)]


def is_generated(name: str) -> bool:
    """Return whether data of this name are generated from a seed, in any number."""
    return lab_style.is_lab(name) or name in _generated()


def load(
    name_or_path: str | Path | Iterable[Any],
    samples: int | None = None,
    seed: int = 0,
    passages: int | None = None,
    answered: bool = False,
) -> list[Sample]:
    """Return samples by the name of a data set (`names`), or from a file, a folder or objects of the user's own.

    name_or_path  a name; a file (`data.sources.files` lists the layouts); a folder of documents with a file of
                  questions, `notes` or `notes(by=sentences, size=6, overlap=1)` (`data.sources.folders`);
                  `hf:NAME[:SPLIT[:CONFIG]]`, a data set of the package `datasets`, from its cache or the Hub; a
                  pandas.DataFrame, a `datasets.Dataset`, or a list of records or of `Sample`s
    samples       how many; None: 200 of a generated corpus or of `manuals`, else all. From fewer than a file holds
                  they are drawn by `seed`, in the order of the file
    passages      passages of every context; surplus ones are dropped, missing ones are drawn by seed from other
                  questions of the file. None: 10 in `lab` and `manuals`, 20 in `needles`, else as they are
    answered      True: questions of a file or of objects must have answers

    Raises BadInput for an unknown name, a number under 1, over 1,000,000 generated samples, and records without the
    fields that are needed.
    """
    annotations.check("seed", seed, int)
    for what, number in (("samples", samples), ("passages", passages)):
        annotations.check(what, number, int | None)
        if number is not None and number < 1:
            raise BadInput(f"{what} is {number}; at least 1 is needed")
    if not isinstance(name_or_path, str | Path):
        return _drawn(files.samples(name_or_path, answered), samples, seed, passages)
    name = str(name_or_path)
    if (is_generated(name) or name in manuals.PARTS) and (samples or 0) > MOST_SAMPLES:
        raise BadInput(f"samples is {samples}; at most {MOST_SAMPLES:,} are drawn at once")
    if lab_style.is_lab(name):
        return list(lab.samples(samples or SAMPLES, seed, passages or PASSAGES, style=lab_style.style_named(name)))
    if is_generated(name):
        tasks = needles.TASKS if name == "needles" else (name.removeprefix("needles-"),)
        return list(needles.mixed(samples or SAMPLES, seed, tasks, passages or HAYSTACK))
    if name in manuals.PARTS:
        return list(manuals.samples(samples or SAMPLES, seed, passages or PASSAGES, name))
    if name in names():
        name_or_path = assets.corpus_path(name.removesuffix("-sample"))
    elif name.startswith(hub.HUB):
        return _drawn(hub.samples(name, answered), samples, seed, passages)
    elif (found := folders.folder_source(name)) is not None:
        return _drawn(folders.samples(*found, answered, passages), samples, seed, None)
    elif not is_file(name) and not name.endswith(files.ENDINGS):
        raise _unknown(name)
    return _drawn(files.read_samples(name_or_path, answered), samples, seed, passages)


def _drawn(read: list[Sample], samples: int | None, seed: int, passages: int | None) -> list[Sample]:
    drawn = read
    if samples is not None and samples < len(read):
        drawn = [read[i] for i in sorted(Random(f"draw {seed}").sample(range(len(read)), samples))]
    return drawn if passages is None else sized(drawn, passages, read, seed)


def check_name(name: str) -> None:
    """Raise BadInput for a name that is neither a data set's nor that of a file or folder."""
    known = is_generated(name) or name in names() or name.startswith(hub.HUB)
    if known or os.path.lexists(name) or folders.folder_source(name):
        return
    if name.endswith((*files.ENDINGS, *folders.PLAIN)):
        raise BadInput(f"{shorten(name)}: no such file{meant_beside(name)}")
    raise _unknown(name)


def check_questions(name: str) -> None:
    """Raise BadInput as `check_name` does, and for a folder or a small file (up to 4 MiB) without questions."""
    check_name(name)
    if not is_generated(name) and name not in names():
        if is_dir(name):
            folders.questions(Path(name))
        elif is_file(name) and os.path.getsize(name) <= SMALL:
            files.read_samples(name, answered=False)


def _unknown(name: str) -> BadInput:
    known, endings = ", ".join(names()), ", ".join(files.ENDINGS)
    allowed = f"{known}, a file ({endings}), a folder of documents or hf:NAME"
    return BadInput(
        f"unknown data {format_value(name)}: allowed are {allowed}{meant_beside(name) or did_you_mean(name, names())}"
    )


def corpus(
    name_or_path: str | Path, samples: int | None = None, seed: int = 0, passages: int | None = None
) -> list[Sample]:
    """Return the samples whose passages form the corpus that retrieval and neighbours are looked up in.

    Of a file these are all its samples, of a generated corpus those that `load` draws. Of `manuals`, a folder, or a
    file of passages without questions, it is one sample that holds all passages.
    """
    if str(name_or_path).startswith(hub.HUB):
        return load(name_or_path, answered=False)
    if str(name_or_path) in manuals.PARTS:
        return [manuals.corpus_sample(str(name_or_path))]
    if (found := folders.folder_source(str(name_or_path))) is not None:
        return [Sample(ctxs=tuple(folders.passages(found[0], **found[1])), id=found[0].name)]
    if (whole := folders.read_document(name_or_path)) is not None:
        return [whole]
    drawn = is_generated(str(name_or_path))
    return load(name_or_path, samples, seed, passages) if drawn else load(name_or_path, answered=False)


def versions(name_or_path: str | Path) -> dict[str, str]:
    """Return {package: version} of what the samples depend on; {} for all data but `manuals`."""
    return manual_pages.versions() if str(name_or_path) in manuals.PARTS else {}
