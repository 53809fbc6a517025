"""Contexts of a wanted size: passages left out of a question's own, or drawn from other questions of its file."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from workbench.data.sample import Passage, Sample


def sized(samples: Sequence[Sample], passages: int, file: Iterable[Sample], seed: int = 0) -> list[Sample]:
    """Return the samples with contexts of `passages` passages.

    More are cut: those named in `supporting_titles` stay first, then the first ones, order kept.

    Fewer are filled with passages of other questions of the file, drawn by `seed` and the sample's id alone. None of
    them has a title of the context or holds an accepted answer as words of its own, whatever the case. The own passages
    keep their order, at places that are drawn too. A file that has too few such passages gives all of them.
    """
    pool = tuple(dict.fromkeys(passage for sample in file for passage in sample.ctxs))
    return [_cut(one, passages) if len(one.ctxs) >= passages else _fill(one, passages, pool, seed) for one in samples]


def stands_in(answer: str, text: str) -> bool:
    """Return whether `text` holds the answer as words of its own, whatever the case."""
    answer, text = answer.casefold(), text.casefold()
    begin = text.find(answer)
    while begin >= 0:
        end = begin + len(answer)
        left, right = text[max(begin - 1, 0) : begin], text[end : end + 1]
        if not (_goes_on(left) and _goes_on(answer[:1])) and not (_goes_on(right) and _goes_on(answer[-1:])):
            return True
        begin = text.find(answer, begin + 1)
    return False


def shuffled(number: int, rng: Random) -> Iterator[int]:
    """Yield the numbers under `number` in random order, each when it is asked for."""
    seen: set[int] = set()
    while len(seen) < number:
        drawn = rng.randrange(number)
        if drawn not in seen:
            seen.add(drawn)
            yield drawn


def _cut(sample: Sample, passages: int) -> Sample:
    order = sorted(enumerate(sample.ctxs), key=lambda ctx: ctx[1].title not in sample.supporting_titles)
    kept = sorted(i for i, _ in order[:passages])
    return replace(sample, ctxs=tuple(sample.ctxs[i] for i in kept))


def _fill(sample: Sample, passages: int, pool: Sequence[Passage], seed: int) -> Sample:
    rng = Random(f"fill {seed} {sample.id}")
    own, others = list(sample.ctxs), list[Passage]()
    titles, texts = {ctx.title for ctx in own if ctx.title}, {ctx.text for ctx in own}
    for i in shuffled(len(pool), rng):
        if len(own) + len(others) == passages:
            break
        ctx = pool[i]
        if ctx.title in titles or ctx.text in texts or _answers(ctx, sample):
            continue
        others.append(ctx)
        texts.add(ctx.text)
        if ctx.title:
            titles.add(ctx.title)
    places = set(rng.sample(range(len(own) + len(others)), len(own)))
    left, right = iter(own), iter(others)
    return replace(sample, ctxs=tuple(next(left if i in places else right) for i in range(len(own) + len(others))))


def _answers(ctx: Passage, sample: Sample) -> bool:
    return any(stands_in(answer, f"{ctx.title}\n{ctx.text}") for answer in sample.answers)


def _goes_on(letter: str) -> bool:
    return letter.isalnum() or letter == "_"
