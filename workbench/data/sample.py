"""Samples: a question with its passages and answers, as all readers of files and generators return it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from workbench.core.errors import BadInput, format_value
from workbench.core.utils.annotations import check_fields

MOST_HOPS = 1000
CONTINUED = "Continued"  # title of a passage that continues the preceding one


@dataclass(frozen=True)
class Passage:
    """A retrieved passage; `title` may be empty."""

    title: str
    text: str


def continues(passage: Passage, before: Passage) -> bool:
    """Return whether a passage continues the document of the passage right before it.

    That is so if both have the same title, or its own begins with "Continued", as in the lab corpus.
    """
    return bool(passage.title) and (passage.title == before.title or passage.title.startswith(CONTINUED))


def document_starts(ctxs: Sequence[Passage]) -> list[int]:
    """Return, for each passage of a context, the index of the first passage of its document in this context."""
    starts: list[int] = []
    for i, passage in enumerate(ctxs):
        starts.append(starts[i - 1] if i and continues(passage, ctxs[i - 1]) else i)
    return starts


@dataclass(frozen=True)
class Sample:
    """A question over passages.

    answers            aliases of one answer: a prediction gets its highest score over them
    ctxs               the passages, in reading order
    supporting_titles  titles of the passages that are needed to answer, if the source names them
    hops               how many passages have to be combined
    kind               the source's own class of question ("two-hop", "bridge", …), "" if it has none
    id                 by keyword alone; "": `data.load` numbers the sample
    """

    id: str = field(default="", kw_only=True)
    question: str = ""
    answers: tuple[str, ...] = ()
    ctxs: tuple[Passage, ...] = ()
    supporting_titles: tuple[str, ...] = ()
    hops: int = 1
    kind: str = ""

    def __post_init__(self) -> None:
        for name in ("answers", "ctxs", "supporting_titles"):
            if isinstance(given := getattr(self, name), list):
                object.__setattr__(self, name, tuple(given))
        check_fields(self)

    def __repr__(self) -> str:
        found = f"answers={list(self.answers)}, {len(self.ctxs)} passage{'s' * (len(self.ctxs) != 1)}"
        return f"Sample({self.question!r}, {found}{f', {self.kind}' if self.kind else ''}, id={self.id!r})"

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values; `from_json` reads it back."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Sample":
        """Return a sample from `{id, question, answers, ctxs: [{title, text}], supporting_titles, hops, kind}`.

        Raises BadInput that names the first field that is missing, empty or of the wrong type.
        """
        try:
            return cls(
                id=plain(record["id"], "id"),
                question=words(record, "question"),
                answers=tuple(str(answer) for answer in nonempty_list(record, "answers")),
                ctxs=tuple(Passage(str(ctx["title"]), str(ctx["text"])) for ctx in nonempty_list(record, "ctxs")),
                supporting_titles=titles(record),
                hops=_hops(record.get("hops")),
                kind=plain(record.get("kind"), "kind"),
            )
        except KeyError as missing:
            raise BadInput(f"field {missing} is missing") from None


def words(record: dict[str, Any], field: str) -> str:
    """Return the text of a field. Raises BadInput where it is missing, empty or not text."""
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"field '{field}' {_state(record, field)}; a text is needed")
    return value


def plain(value: Any, field: str) -> str:
    """Return the text or number of a field as text, "" for null. Raises BadInput for anything else."""
    if not isinstance(value, str | int | float | None):
        raise BadInput(f"field '{field}' is {type(value).__name__}; a text is needed")
    return "" if value is None else str(value)


def titles(record: dict[str, Any]) -> tuple[str, ...]:
    """Return the titles in `supporting_titles`, () if it is missing. Raises BadInput unless it is a list of texts."""
    value = record.get("supporting_titles") or []
    if not isinstance(value, list | tuple) or not all(isinstance(title, str | int | float) for title in value):
        raise BadInput(f"field 'supporting_titles' is {format_value(value)}; a list of texts is needed")
    return tuple(map(str, value))


def _hops(value: Any) -> int:
    """Return the number of passages to combine: a whole number, also as text; 1 by default."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_HOPS):
        raise BadInput(f"field 'hops' is {format_value(value)}; a whole number from 1 to {MOST_HOPS:,} is needed")
    return value or 1


def nonempty_list(record: dict[str, Any], field: str) -> list[Any]:
    """Return the list in a field. Raises BadInput where it is missing, empty or not a list."""
    value = record.get(field)
    if not isinstance(value, list) or not value:
        raise BadInput(f"field '{field}' {_state(record, field)}; a list of at least one is needed")
    return value


def _state(record: dict[str, Any], field: str) -> str:
    if field not in record:
        return "is missing"
    return f"is {type(record[field]).__name__}" if record[field] else "is empty"


def sized(samples: Sequence[Sample], passages: int, file: Iterable[Sample], seed: int = 0) -> list[Sample]:
    """Return the samples with contexts of `passages` passages.

    From longer contexts, passages are dropped from the end, those named in `supporting_titles` last.

    Shorter contexts are filled with passages of other questions of `file`, drawn by `seed` and the sample's id. Such a
    passage has no title or text of the context and does not contain an accepted answer (`stands_in`). The sample's own
    passages keep their order, at random places. If the file has too few such passages, all are used.
    """
    pool = tuple(dict.fromkeys(passage for sample in file for passage in sample.ctxs))
    return [_cut(one, passages) if len(one.ctxs) >= passages else _fill(one, passages, pool, seed) for one in samples]


def stands_in(answer: str, text: str) -> bool:
    """Return whether `text` contains the answer as whole words, in any case."""
    answer, text = answer.casefold(), text.casefold()
    begin = text.find(answer)
    while begin >= 0:
        end = begin + len(answer)
        left, right = text[max(begin - 1, 0) : begin], text[end : end + 1]
        if not (_goes_on(left) and _goes_on(answer[:1])) and not (_goes_on(right) and _goes_on(answer[-1:])):
            return True
        begin = text.find(answer, begin + 1)
    return False


def shuffled_indices(number: int, rng: Random) -> Iterator[int]:
    """Yield the integers from 0 to `number` - 1 in random order, drawn lazily."""
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
    for i in shuffled_indices(len(pool), rng):
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
