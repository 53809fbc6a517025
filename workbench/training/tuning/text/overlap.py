"""Check that training data share no question and no passage with evaluation data.

Texts are compared as words: Unicode NFKC, case-folded, letters and digits only. Two passages are equal if all their
words are; titles do not count. The number of passages that share a run of 13 words with the other side (the check of
GPT-3, arXiv:2005.14165, appendix C) is also recorded.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench import data
from workbench.core.errors import BadInput
from workbench.data.sample import Sample

RUN = 13  # words


def words_of(text: str) -> str:
    """Return the words of a text, by which texts are compared."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def without_overlap(
    samples: Sequence[Sample], files: Sequence[str], drop: bool = False
) -> tuple[list[Sample], dict[str, Any] | None]:
    """Return samples that share no question and no passage with `files`, and the record of the check.

    drop   leave out samples that do; else raise BadInput, naming the first. Without `files`, the record is None.
    """
    if not files:
        return list(samples), None
    scored = {name: data.load(name, answered=False) for name in dict.fromkeys(files)}
    taken: dict[tuple[str, str], tuple[str, Sample]] = {}  # texts used for scoring, with their origin
    for name, others in scored.items():
        for other in others:
            for shared in _keys(other):
                taken.setdefault(shared, (name, other))
    kept = []
    for sample in samples:
        key = next((key for key in _keys(sample) if key in taken), None)
        if key is None:
            kept.append(sample)
        elif not drop:
            name, other = taken[key]
            raise BadInput(
                f"sample {sample.id!r} shares a {key[0]} with sample {other.id!r} of {name}, which is scored on: leave "
                f"it out, or use --overlap drop ({key[1][:60]!r})"
            )
    if not kept:
        raise BadInput(f"all {len(samples)} samples share a question or a passage with {', '.join(scored)}")
    return kept, _record(kept, len(samples), scored)


def _keys(sample: Sample) -> Iterator[tuple[str, str]]:
    yield "question", words_of(sample.question)
    yield from (("passage", words_of(passage.text)) for passage in sample.ctxs)


def _record(kept: Sequence[Sample], given: int, scored: dict[str, list[Sample]]) -> dict[str, Any]:
    others = [other for listed in scored.values() for other in listed]
    ours, theirs = _passages(kept), _passages(others)
    runs = {run for passage in theirs for run in _runs(passage)}
    return {
        "rule": f"no question and no passage in common, compared by words without titles; runs of {RUN} words counted",
        "scored": [
            {"file": Path(name).name, "samples": len(listed), "digest": _digest(listed)}
            for name, listed in scored.items()
        ],
        "scored_passages": len(theirs),
        "samples": len(kept),
        "left_out": given - len(kept),
        "passages": len(ours),
        "digest": _digest(kept),
        "shared_questions": len(_questions(kept) & _questions(others)),
        "shared_passages": len(ours & theirs),
        "passages_sharing_a_run": sum(any(run in runs for run in _runs(passage)) for passage in ours),
    }


def _questions(samples: Iterable[Sample]) -> set[str]:
    return {words_of(sample.question) for sample in samples}


def _passages(samples: Iterable[Sample]) -> set[str]:
    return {words_of(passage.text) for sample in samples for passage in sample.ctxs}


def _runs(passage: str) -> Iterator[int]:
    words = passage.split()
    return (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))


def _digest(samples: Iterable[Sample]) -> str:
    """Hash questions and passages, independent of order and ids."""
    keys = sorted({" ".join(key) for sample in samples for key in _keys(sample)})
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
