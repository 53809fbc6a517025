"""Samples over installed documentation: docstrings of numpy, pandas, scikit-learn and torch.

A passage is a part of one object's docstring, titled by the object's name (`installed_docs.questions`, `pages`).
Objects are split by the hash of the last part of their name, so `DataFrame.fillna` and `Series.fillna` go together:
`manuals` is for evaluation, `manuals-train` for training. The latter shares no object and no run of 13 words of a
passage with `manuals` (the overlap rule of GPT-3, arXiv:2005.14165, appendix C).

The repository holds none of the texts. Samples depend on the installed versions (`pages.versions`), which their ids
name. To use one set on several machines, write it: `workbench data manuals --samples 500 --out manuals.jsonl`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import chain, zip_longest
from random import Random

from workbench.core.errors import BadInput
from workbench.data.installed_docs import pages as manual_pages
from workbench.data.installed_docs.pages import Page
from workbench.data.installed_docs.questions import KINDS, DocQuestion
from workbench.data.sample import Passage, Sample, shuffled_indices, stands_in

PARTS = ("manuals", "manuals-train")
SCORED = 0.4  # share of the objects in `manuals`
OVERLAP = 13  # `manuals-train` and `manuals` share no run of so many words
MOST_PASSAGES = 100


def samples(n: int, seed: int, passages: int = 10, part: str = "manuals") -> Iterator[Sample]:
    """Yield at most `n` questions over contexts of `passages` passages; a longer draw begins with a shorter one.

    Kinds of question alternate. Within a kind each answer comes once before any comes twice, so that guessing the
    commonest answer does not pay.

    The answering passage is at a random place. The others are of other objects and do not hold the answer; half of
    them are of the same module, as far as it has enough.

    Raises BadInput for an unknown part, over 100 passages, and where none of the packages is installed.
    """
    if not 1 <= passages <= MOST_PASSAGES:
        raise BadInput(f"passages is {passages}; a context of manuals has 1 to {MOST_PASSAGES} passages")
    for page, question in _in_turn(_pages(part), seed)[:n]:
        yield _sample(page, question, passages, _pages(part), seed)


def corpus_sample(part: str) -> Sample:
    """Return one sample that holds all passages of a part: the corpus in which neighbours are looked up."""
    pages = _pages(part)
    page, question = next((page, question) for page in pages for question in page.questions)
    ctxs = tuple(_passage(page) for page in pages)
    return Sample(question.text, (question.answer,), ctxs, (page.name,), 1, question.kind, id=f"{part}-whole")


def scored(name: str) -> bool:
    """Return whether the object of this name belongs to `manuals`."""
    return sha256(name.rpartition(".")[2].encode()).digest()[0] < SCORED * 256


@cache
def _pages(part: str) -> tuple[Page, ...]:
    if part not in PARTS:
        raise BadInput(f"unknown part {part!r} of the manuals: allowed are {', '.join(PARTS)}")
    pages = manual_pages.pages()
    kept = [page for page in pages if scored(page.name)]
    if part == "manuals-train":
        taken = {run for page in kept for run in word_runs(page.text)}
        kept = [page for page in pages if not scored(page.name) and taken.isdisjoint(word_runs(page.text))]
    if not any(page.questions for page in kept):
        raise BadInput(f"{part} has no passages: none of {', '.join(manual_pages.PLACES)} is installed with docstrings")
    return tuple(kept)


def word_runs(text: str, length: int = OVERLAP) -> set[tuple[str, ...]]:
    """Return all runs of `length` consecutive words of a text, in lower case and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def _in_turn(pages: tuple[Page, ...], seed: int) -> list[tuple[Page, DocQuestion]]:
    """Return all questions, alternating kinds; within a kind, an answer's second question follows all first ones."""
    rng = Random(f"manuals {seed}")
    by_kind = []
    for kind in KINDS:
        asked = [(page, question) for page in pages for question in page.questions if question.kind == kind]
        rng.shuffle(asked)
        times: Counter[str] = Counter()
        turns = []
        for i, (_, question) in enumerate(asked):
            turns.append((times[question.answer], i))
            times[question.answer] += 1
        by_kind.append([asked[i] for _, i in sorted(turns)])
    return [each for each in chain.from_iterable(zip_longest(*by_kind)) if each is not None]


def _sample(page: Page, question: DocQuestion, passages: int, pages: tuple[Page, ...], seed: int) -> Sample:
    rng = Random(f"manuals {seed} {question.text}")
    near = [other for other in pages if other.place == page.place]
    far = [other for other in pages if other.place != page.place]
    names = {page.name}
    context = list[Page]()
    for pool, most in ((near, passages // 2), (far, passages - 1), (near, passages - 1)):
        for i in shuffled_indices(len(pool), rng):
            if len(context) == most:
                break
            other = pool[i]
            if other.name not in names and not stands_in(question.answer, f"{other.name}\n{other.text}"):
                names.add(other.name)
                context.append(other)
    if len(context) < passages - 1:
        raise BadInput(f"passages is {passages}: the manuals have {len(context) + 1} for {question.text!r}")
    rng.shuffle(context)
    context.insert(rng.randint(0, len(context)), page)
    ctxs = tuple(_passage(each) for each in context)
    return Sample(question.text, (question.answer,), ctxs, (page.name,), 1, question.kind, id=_id(page, question))


def _passage(page: Page) -> Passage:
    return Passage(page.name, page.text)


def _id(page: Page, question: DocQuestion) -> str:
    """Return package with version, object, kind, and eight digits of the question's hash."""
    version = manual_pages.versions()[page.package]
    return f"{page.package}-{version}/{page.name}/{question.kind}-{sha256(question.text.encode()).hexdigest()[:8]}"
