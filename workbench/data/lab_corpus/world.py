"""The lab corpus: a seeded generator of English passages about invented people, companies and places.

Facts are drawn at random for every world, so an answer can only come from the context. A document is one passage or
two; the second, titled "Continued (the potter)", never names its subject: it says "She …", and only the passage before
it, or the trade or alias defined there, tells who that is. Companies have an alias that other passages use without
explaining it. This makes reuse of separately cached passages fail as in real retrieval. Some questions ask for the
order of passages, which naive positions lose. Kinds of question:

single-hop    a fact stated in a passage that names its subject
continuation  a fact stated in a "Continued" passage
two-hop       a fact about an entity that is itself the object of another passage ("the employer of Ada Kelric")
comparison    which of two entities came first
order         which passage comes first or last in the context
epithet       a fact of a document's second passage, about "the potter", as the passage's title calls its subject; not
              among the default kinds
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from workbench.data.lab_corpus import words
from workbench.data.lab_corpus.style import PLAIN, Style
from workbench.data.lab_corpus.words import ALSO_CALLED, EARLIER, LISTS, PLACED, PRONOUNS, RELATIONS, Relation
from workbench.data.sample import CONTINUED, Passage


@dataclass
class Fact:
    """A fact that a passage states about an entity."""

    relation: Relation
    object: str  #: as written in the text
    target: "Entity | None" = None  #: the entity that the object names, if it is one
    said: str = ""  #: the template that states it

    @property
    def names(self) -> tuple[str, ...]:
        """The object as the text names it, then its other names."""
        others = self.target.names if self.target else ()
        return (self.object, *(name for name in others if name != self.object))


@dataclass(eq=False)
class Entity:
    """A person, company or place of a lab world, with its passages and the facts of each."""

    kind: str  #: "person", "company", "place"
    name: str
    pronoun: str
    alias: str = ""
    passages: list[Passage] = field(default_factory=list)
    facts: list[list[Fact]] = field(default_factory=list)  #: per passage

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the alias where there is one."""
        return (self.name, self.alias) if self.alias else (self.name,)


def draw_person(rng: Random, last_names: list[str]) -> Entity:
    """Draw a person; the last name is popped from the end of `last_names`."""
    woman = rng.random() < 0.5
    first = rng.choice(words.WOMEN if woman else words.MEN)
    return Entity("person", f"{first} {last_names.pop()}", PRONOUNS["woman" if woman else "man"])


def passages_of(context: Sequence[Entity]) -> tuple[Passage, ...]:
    """Return the passages of a context in reading order."""
    return tuple(passage for entity in context for passage in entity.passages)


def write(entity: Entity, handle: str, rng: Random, style: Style) -> None:
    """Write the passages of an entity into it; `handle` is what the title of the second may call its subject.

    The first passage names its subject. Each passage begins with a sentence about its subject.
    """
    for page, facts in enumerate(entity.facts):
        for fact in facts:
            fact.said = rng.choice(fact.relation.says)
        title = entity.name
        if page:
            title = CONTINUED
            if rng.random() < style.hints:
                title += f" ({handle})"
        entity.passages.append(Passage(title, " ".join(_sentences(entity, facts, page == 0, rng, style))))


def _sentences(entity: Entity, facts: Sequence[Fact], named: bool, rng: Random, style: Style) -> list[str]:
    said = [(fact.said, fact.object) for fact in facts]
    if entity.alias and named:
        said.insert(rng.randrange(len(said) + 1), (rng.choice(ALSO_CALLED), entity.alias.removeprefix("the ")))
    sentences = []
    for i, (template, thing) in enumerate(said):
        by_name = named and not (i and rng.random() < style.pronouns)
        sentence = template.format(s=entity.name if by_name else entity.pronoun, o=thing)
        sentences.append(sentence[0].upper() + sentence[1:])
    whole, rest = divmod(style.asides, 1)
    for _ in range(int(whole) + (rng.random() < rest)):
        aside = rng.choice(words.ASIDES).format(s=words.OBJECT_PRONOUNS[entity.pronoun])
        sentences.insert(1 + rng.randrange(len(sentences)), aside)
    return sentences


KINDS = ("single-hop", "continuation", "two-hop", "comparison", "order", "epithet")


@dataclass(frozen=True)
class LabQuestion:
    """A question of a lab world; `kind` is one of KINDS."""

    text: str
    answers: tuple[str, ...]
    kind: str
    titles: tuple[str, ...]  #: of the passages that hold the answer


About = tuple[Any, ...]
"""What a question asks about: (entity, fact); two facts of a two-hop question; (relation, [(entity, fact), …]) of a
comparison; (end of the order, context) of "order"."""


def _comparison(rng: Random, name: str, dated: list[tuple[Entity, Fact]]) -> LabQuestion:
    pair = rng.sample(dated, 2)
    while pair[0][1].object == pair[1][1].object:
        pair = rng.sample(dated, 2)
    winner, _ = min(pair, key=lambda entry: int(entry[1].object))
    (first, second), titles = (entity.name for entity, _ in pair), tuple(e.passages[0].title for e, _ in pair)
    return LabQuestion(rng.choice(EARLIER[name]).format(n=first, m=second), winner.names, "comparison", titles)


def epithet(entity: Entity) -> str:
    """Return what the title of a document's second passage calls its subject; "" if it does not say."""
    title = entity.passages[1].title
    return title.removeprefix(CONTINUED).strip(" ()") if title.startswith(CONTINUED) else ""


__all__ = ["KINDS", "Entity", "Fact", "LabQuestion", "Style", "World", "draw_person", "passages_of"]

SHARES = {"person": 0.5, "company": 0.28, "place": 0.22}


class World:
    """Entities with their facts, and documents that state them; the same `rng` state gives the same world."""

    def __init__(self, rng: Random, passages: int, style: Style = PLAIN):
        self.rng, self.style = rng, style
        self._last, self._professions = list(words.LAST_NAMES), list(LISTS["profession"])
        rng.shuffle(self._last)
        rng.shuffle(self._professions)
        alike = rng.random() < style.alike
        self._only = rng.choices(tuple(SHARES), tuple(SHARES.values()))[0] if alike else ""
        self._order = {kind: rng.sample(relations, len(relations)) for kind, relations in RELATIONS.items()}
        self.documents = self._entities(passages)
        self._by_kind = {kind: [e for e in self.documents if e.kind == kind] for kind in RELATIONS}
        for entity in self.documents:
            write(entity, self._find(entity), rng, style)

    def _entities(self, passages: int) -> list[Entity]:
        rng, style, documents, left = self.rng, self.style, list[Entity](), passages
        most = min(passages, 40)
        companies, places, aliases = (rng.sample(x, most) for x in (words.COMPANIES, words.PLACES, words.ALIASES))
        while left > 0:
            kind = self._only or rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
            if kind == "person":
                new = draw_person(rng, self._last)
            elif kind == "company":
                alias = f"the {aliases.pop()}"
                new = Entity(kind, f"{companies.pop()} {rng.choice(words.COMPANY_KINDS)}", PRONOUNS[kind], alias)
            else:
                new = Entity(kind, places.pop(), PRONOUNS[kind])
            two = left > 1 and kind != "place" and rng.random() < style.continued
            new.facts = [[] for _ in range(1 + two)]
            if kind == "company" and not two and rng.random() < 0.5:
                new.alias = ""
            left -= len(new.facts)
            documents.append(new)
        rng.shuffle(documents)
        return documents

    def draw(self, relation: Relation, subject: Entity) -> Fact:
        """Draw the object of a relation for a subject, and return the fact."""
        rng = self.rng
        if relation.name == "profession":
            return Fact(relation, self._professions.pop())
        if relation.target in LISTS:
            return Fact(relation, rng.choice(LISTS[relation.target]))
        known = self._by_kind[relation.target]
        if known and rng.random() < 0.75:
            target = rng.choice(known)
            if target is not subject:
                by_alias = target.alias and rng.random() < self.style.aliases
                return Fact(relation, target.alias if by_alias else target.name, target)
        if relation.target == "person":
            return Fact(relation, f"{rng.choice(words.WOMEN + words.MEN)} {self._last[rng.randrange(len(self._last))]}")
        if relation.target == "company":
            return Fact(relation, f"{rng.choice(words.COMPANIES)} {rng.choice(words.COMPANY_KINDS)}")
        return Fact(relation, rng.choice(words.PLACES))

    def _find(self, entity: Entity) -> str:
        """Draw the facts of an entity, spread over its passages; return the name that later passages use for it."""
        rng, style, count = self.rng, self.style, len(entity.facts)
        relations = list(self._order[entity.kind])
        if not self._only:
            rng.shuffle(relations)
        handle = entity.alias
        if entity.kind == "person" and count > 1:
            trade = self.draw(relations.pop([r.name for r in relations].index("profession")), entity)
            entity.facts[0].append(trade)
            handle = f"the {trade.object}"
        share = style.facts if count == 1 else min(style.facts, -(-len(relations) // count))
        for facts in entity.facts:
            while relations and len(facts) + bool(entity.alias and facts is entity.facts[0]) < share:
                facts.append(self.draw(relations.pop(), entity))
            rng.shuffle(facts)
        return handle

    def context(self, passages: int) -> list[Entity]:
        """Draw documents that have `passages` passages together, in random order."""
        chosen, left = [], passages
        for entity in self.rng.sample(self.documents, len(self.documents)):
            if len(entity.passages) <= left:
                chosen.append(entity)
                left -= len(entity.passages)
        return chosen

    def questions(self, context: Sequence[Entity]) -> dict[str, list[About]]:
        """Return what can be asked about a context: {kind: arguments of `ask`}."""
        here = {id(entity) for entity in context}
        by_kind: dict[str, list[About]] = {kind: [] for kind in KINDS}
        for entity in context:
            first, *later = entity.facts
            for fact in first:
                by_kind["single-hop"].append((entity, fact))
                if fact.relation.noun and fact.target and id(fact.target) in here:
                    by_kind["two-hop"] += [(entity, fact, second) for second in fact.target.facts[0]]
            for fact in (fact for facts in later for fact in facts):
                by_kind["continuation"].append((entity, fact))
                if epithet(entity):
                    by_kind["epithet"].append((entity, fact))
        for name in EARLIER:
            dated = [(e, f) for e in context for f in e.facts[0] if f.relation.name == name]
            if len({fact.object for _, fact in dated}) > 1:
                by_kind["comparison"].append((name, dated))
        if len(context) > 1:
            by_kind["order"] = [(end, context) for end in PLACED]
        return by_kind

    def ask(self, kind: str, about: About) -> LabQuestion:
        """Return one question of a kind, about one entry of `questions`."""
        if kind == "comparison":
            return _comparison(self.rng, *about)
        if kind == "order":
            end, context = about
            title = passages_of(context)[0 if end == "first" else -1].title
            return LabQuestion(self.rng.choice(PLACED[end]), (title,), kind, (title,))
        entity, fact = about[0], about[-1]
        titles: tuple[str, ...]
        if kind == "two-hop":
            subject, evidence = about[1].relation.noun.format(n=entity.name), [entity, about[1].target]
            titles = tuple(each.passages[0].title for each in evidence)
        elif kind == "epithet":
            subject, titles = epithet(entity), (entity.passages[1].title,)
        else:
            read = entity.passages[: 2 if kind == "continuation" else 1]
            subject, titles = entity.name, tuple(passage.title for passage in read)
        return LabQuestion(self.rng.choice(fact.relation.asks).format(n=subject), fact.names, kind, titles)
