"""Needles in haystacks: RULER's kinds of task (arXiv:2404.06654, section 3) in the words of the lab corpus.

single       one passage states what is asked; no other passage states anything of that kind
multi-key    every passage states it, each of another person
multi-value  it is stated of one person three times, in three passages; all values are asked for
tracking     the answer is reached through a chain of passages ("the founder of the employer of Ada Kelric")
common       the question asks what most passages say of their subjects (common words)

The shipped lab model has learned to answer single, multi-key and tracking over two passages; multi-value and common are
for models that follow instructions.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from workbench.core.errors import BadInput, not_allowed
from workbench.data.lab_corpus import words
from workbench.data.lab_corpus.words import COMPANY_KINDS, LISTS, PRONOUNS, RELATIONS, Relation
from workbench.data.lab_corpus.world import Entity, draw_person
from workbench.data.sample import Passage, Sample

TASKS = ("single", "multi-key", "multi-value", "tracking", "common")
ASKED, TOWNS = ("employer", "home", "origin", "born", "instrument", "animal", "teacher"), ("home", "origin")
VALUES, SHARE = 3, 0.4  # values of multi-value; share of passages with the common statement
MOST = 60  # maximum number of passages, by the length of the lists of names


@dataclass(frozen=True)
class HiddenPassages:
    """The passages that a task hides in the haystack, and its question."""

    needles: tuple[Passage, ...]
    question: str
    answers: tuple[str, ...]
    hops: int = 1


def samples(
    n: int, seed: int, task: str, passages: int = 20, depth: float | None = None, hops: int = 2
) -> Iterator[Sample]:
    """Yield `n` samples of a task, with contexts of `passages` passages.

    depth   where the first needle is, from 0, the front, to 1, the end; None: at random, as further needles are
    hops    passages in the chain of `tracking`, 2 to 5

    Raises BadInput for an unknown task, a value out of range, too few passages for the task, or more than 60.
    """
    if task not in TASKS:
        raise not_allowed("task", task, TASKS)
    if not 2 <= hops <= 5:
        raise BadInput(f"hops is {hops}: a chain has 2 to 5 passages")
    least = {"multi-value": VALUES, "tracking": hops, "common": 5}.get(task, 1)
    if not least <= passages <= MOST:
        raise BadInput(f"passages is {passages}: {task} has {least} to {MOST}")
    if depth is not None and not 0 <= depth <= 1:
        raise BadInput(f"depth is {depth}: it is a place from 0, the front, to 1, the end")
    for i in range(n):
        yield _Haystack(Random(f"needles {seed} {task} {i}")).sample(f"{task}-{seed}-{i}", task, passages, depth, hops)


def mixed(n: int, seed: int, tasks: Sequence[str] = TASKS, passages: int = 20) -> Iterator[Sample]:
    """Yield `n` samples, the tasks in turn; a longer draw begins with a shorter one. Raises BadInput as `samples`."""
    each = [samples(-(-n // len(tasks)), seed, task, passages) for task in tasks]
    for i in range(n):
        yield next(each[i % len(tasks)])


def values(sample: Sample) -> tuple[str, ...]:
    """Return what a correct answer names: all values of multi-value, otherwise the one answer."""
    return tuple(sample.answers[0].replace(" and ", ", ").split(", "))


def named(sample: Sample, text: str) -> float:
    """Return the share of a sample's values that an answer names, 0 to 1 (RULER's recall)."""
    wanted = values(sample)
    return sum(value.lower() in text.lower() for value in wanted) / len(wanted)


class _Haystack:
    """Names that are used once, and passages about them."""

    def __init__(self, rng: Random):
        self.rng = rng
        lists = {"last": words.LAST_NAMES, "company": words.COMPANIES, "place": words.PLACES}
        self.pools = {name: rng.sample(listed, len(listed)) for name, listed in lists.items()}

    def sample(self, name: str, task: str, passages: int, depth: float | None, hops: int) -> Sample:
        asked = [r for r in RELATIONS["person"] if r.name in (TOWNS if task == "common" else ASKED)]
        relation = self.rng.choice(asked)
        makers = {
            "multi-value": lambda: self._values(relation),
            "tracking": lambda: self._chain(hops),
            "common": lambda: self._common(relation, passages),
        }
        hidden = makers.get(task, lambda: self._single(relation))()
        same = task not in ("single", "tracking")
        context = [self._other(relation, same, hidden) for _ in range(passages - len(hidden.needles))]
        for i, needle in enumerate(hidden.needles):
            place = round(depth * len(context)) if depth is not None and not i else self.rng.randint(0, len(context))
            context.insert(place, needle)
        titles = tuple(dict.fromkeys(needle.title for needle in hidden.needles))
        return Sample(hidden.question, hidden.answers, tuple(context), titles, hidden.hops, task, id=name)

    def _single(self, relation: Relation) -> HiddenPassages:
        subject, thing = self._subject("person"), self._object(relation)
        question = self.rng.choice(relation.asks).format(n=subject.name)
        return HiddenPassages((self._passage(subject, [relation], thing),), question, (thing,))

    def _values(self, relation: Relation) -> HiddenPassages:
        subject = self._subject("person")
        things: dict[str, None] = {}
        while len(things) < VALUES:
            things[self._object(relation)] = None
        needles = tuple(self._passage(subject, [relation], thing) for thing in things)
        question = f"{self.rng.choice(relation.asks).format(n=subject.name)} Name all."
        *first, last = things
        return HiddenPassages(needles, question, (f"{', '.join(first)} and {last}",), VALUES)

    def _chain(self, hops: int) -> HiddenPassages:
        subject = self._subject(self.rng.choice(tuple(RELATIONS)))
        said, needles = subject.name, []
        for left in range(hops - 1, -1, -1):
            able = [r for r in RELATIONS[subject.kind] if bool(r.noun) == bool(left) or not left]
            relation = self.rng.choice(able)
            target = self._subject(relation.target) if left else None
            thing = target.name if target else self._object(relation)
            needles.append(self._passage(subject, [relation], thing))
            if target is None:
                return HiddenPassages(tuple(needles), self.rng.choice(relation.asks).format(n=said), (thing,), hops)
            subject, said = target, relation.noun.format(n=said)
        raise AssertionError("a chain ends with its last passage")

    def _common(self, relation: Relation, passages: int) -> HiddenPassages:
        thing, count = self._object(relation), max(2, round(SHARE * passages))
        needles = tuple(self._passage(self._subject("person"), [relation], thing) for _ in range(count))
        question = re.sub(r"(do|did)(es)? {n}", r"\1 most people", self.rng.choice(relation.asks))
        return HiddenPassages(needles, question, (thing,), count)

    def _other(self, relation: Relation, same: bool, hidden: HiddenPassages) -> Passage:
        """Make a passage that states the `same` relation for a different person (and town, if asked), or others."""
        if same:
            town = ""
            while relation.target == "place" and (not town or town in hidden.answers[0]):
                town = self.pools["place"].pop()
            return self._passage(self._subject("person"), [relation], town)
        subject = self._subject(self.rng.choice(tuple(RELATIONS)))
        others = [r for r in RELATIONS[subject.kind] if r.name != relation.name and r.noun == ""]
        return self._passage(subject, self.rng.sample(others, 2))

    def _passage(self, subject: Entity, relations: Sequence[Relation], thing: str = "") -> Passage:
        """Make a passage that states `thing` for the first relation, others for the rest, and two irrelevant asides."""
        said = [(relation, (not i and thing) or self._object(relation)) for i, relation in enumerate(relations)]
        names = (subject.name, *[subject.pronoun] * len(said))
        sentences = [self.rng.choice(r.says).format(s=name, o=o) for name, (r, o) in zip(names, said, strict=False)]
        for aside in self.rng.sample(words.ASIDES, 2):
            place = self.rng.randint(1, len(sentences))
            sentences.insert(place, aside.format(s=words.OBJECT_PRONOUNS[subject.pronoun]))
        return Passage(subject.name, " ".join(text[0].upper() + text[1:] for text in sentences))

    def _subject(self, kind: str) -> Entity:
        if kind == "person":
            return draw_person(self.rng, self.pools["last"])
        return Entity(kind, self._named(kind, self.pools[kind].pop()), PRONOUNS[kind])

    def _object(self, relation: Relation) -> str:
        """Return an object that is not a subject of this haystack."""
        rng = self.rng
        if relation.target in LISTS:
            return rng.choice(LISTS[relation.target])
        if relation.target == "person":
            return f"{rng.choice(words.WOMEN + words.MEN)} {rng.choice(self.pools['last'])}"
        return self._named(relation.target, rng.choice(self.pools[relation.target]))

    def _named(self, kind: str, name: str) -> str:
        return f"{name} {self.rng.choice(COMPANY_KINDS)}" if kind == "company" else name
