"""The lab corpus: a seeded generator of English passages about invented people, companies and places.

Every world is new: who works where and which town lies on which river is drawn at random, so an answer can only come
from typing import Any
from the context. A document is one passage or two; the second, titled "Continued (the potter)", never names its
subject: it says "She …", and only the passage before it, or the trade or alias defined there, tells who that is.
Companies have an alias that other passages use without explaining it. That is what makes reuse of passages cached apart
fail as it does in real retrieval. Where a passage stands in the context is asked for too; that is what naive
positions lose.

Kinds of question
    single-hop    a fact stated in a passage that names its subject
    continuation  a fact stated in a "Continued" passage
    two-hop       a fact about an entity that is itself the object of another passage ("the employer of Ada Kelric")
    comparison    which of two entities came first
    order         which passage comes first or last in the context
    epithet       something that the second passage of a document says, the subject called as that passage's title calls
                  it ("the potter"), which is what leads from a name to there (drawn only where it is named)
"""

from collections.abc import Sequence
from random import Random

from workbench.data.lab_corpus import questions as lab_questions
from workbench.data.lab_corpus import words
from workbench.data.lab_corpus.entities import Entity, Fact, passages_of, person, write
from workbench.data.lab_corpus.questions import KINDS, LabQuestion
from workbench.data.lab_corpus.style import PLAIN, Style
from workbench.data.lab_corpus.words import LISTS, PRONOUNS, RELATIONS, Relation

__all__ = ["KINDS", "Entity", "Fact", "LabQuestion", "Style", "World", "passages_of", "person"]

SHARES = {"person": 0.5, "company": 0.28, "place": 0.22}


class World:
    """Entities, what is true of them and the documents that say so; the same `rng` state gives the same world."""

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
                new = person(rng, self._last)
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
        """Draw an object that may stand in a relation to a subject."""
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
        """Write down what is true of an entity, spread over its passages; return how its later passages may call it."""
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
        """Return documents drawn at random, in random order, that have `passages` passages in all."""
        chosen, left = [], passages
        for entity in self.rng.sample(self.documents, len(self.documents)):
            if len(entity.passages) <= left:
                chosen.append(entity)
                left -= len(entity.passages)
        return chosen

    def questions(self, context: Sequence[Entity]) -> dict[str, list[lab_questions.About]]:
        """Return everything that can be asked of a context, by kind, as arguments of `ask`."""
        return lab_questions.questions(context)

    def ask(self, kind: str, about: lab_questions.About) -> LabQuestion:
        """Return one question of a kind, about one entry of `questions`."""
        return lab_questions.ask(self.rng, kind, about)
