"""The lab corpus: a seeded generator of English passages about invented people, companies and places.

Every world is new: who works where and which town lies on which river is drawn at random, so an answer can only come
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
from dataclasses import dataclass, field
from random import Random

from workbench.data import lab_words as words
from workbench.data.lab_words import ALSO_CALLED, CONTINUED, EARLIER, LISTS, PLACED, PRONOUNS, RELATIONS, Relation
from workbench.data.sample import Passage

KINDS = ("single-hop", "continuation", "two-hop", "comparison", "order", "epithet")
SHARES = {"person": 0.5, "company": 0.28, "place": 0.22}


@dataclass(frozen=True)
class Style:
    """How hard the text of a world is; the defaults are the lab corpus, training begins with less."""

    facts: int = 4  # sentences a passage
    pronouns: float = 0.5  # share of sentences that say "She" where a name could stand
    continued: float = 0.35  # share of people and companies whose document has a second passage
    aliases: float = 0.3  # share of mentions of a company that use its alias
    asides: float = 1.6  # sentences a passage, on average, that say nothing one could ask for
    hints: float = 1.0  # share of continued documents whose second title says the trade or alias of its subject
    alike: float = 0.0  # share of worlds whose entities are of one kind and tell the same things of themselves


@dataclass
class Fact:
    relation: Relation
    object: str  # as the text says it
    target: "Entity | None" = None  # the entity behind the object, where the world has one
    said: str = ""  # the template that states it


@dataclass(eq=False)
class Entity:
    kind: str  # "person", "company", "place"
    name: str
    pronoun: str
    alias: str = ""
    passages: list[Passage] = field(default_factory=list)
    facts: list[list[Fact]] = field(default_factory=list)  # per passage

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self.alias) if self.alias else (self.name,)


@dataclass(frozen=True)
class Question:
    text: str
    answers: tuple[str, ...]
    kind: str
    titles: tuple[str, ...]  # of the passages that hold the answer


class World:
    """Entities, what is true of them and the documents that say so; the same `rng` state gives the same world."""

    def __init__(self, rng: Random, passages: int, style: Style = Style()):
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
            self._write(entity, self._find(entity))

    def _entities(self, passages: int) -> list[Entity]:
        rng, documents, left = self.rng, [], passages
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
            two = left > 1 and kind != "place" and rng.random() < self.style.continued
            new.facts = [[], []] if two else [[]]
            if kind == "company" and not two and rng.random() < 0.5:
                new.alias = ""
            left -= len(new.facts)
            documents.append(new)
        rng.shuffle(documents)
        return documents

    def _object(self, relation: Relation, subject: Entity) -> Fact:
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
        """What is true of an entity, spread over its passages; returns how its second passage may call it."""
        rng, style, count = self.rng, self.style, len(entity.facts)
        relations = list(self._order[entity.kind])
        if not self._only:
            rng.shuffle(relations)
        handle = entity.alias
        if entity.kind == "person" and count == 2:
            trade = self._object(relations.pop([r.name for r in relations].index("profession")), entity)
            entity.facts[0].append(trade)
            handle = f"the {trade.object}"
        share = style.facts if count == 1 else min(style.facts, (len(relations) + 1) // 2)
        for facts in entity.facts:
            while relations and len(facts) + bool(entity.alias and facts is entity.facts[0]) < share:
                facts.append(self._object(relations.pop(), entity))
            rng.shuffle(facts)
        return handle

    def _write(self, entity: Entity, handle: str) -> None:
        """The passages that say what is true."""
        for page, facts in enumerate(entity.facts):
            for fact in facts:
                fact.said = self.rng.choice(fact.relation.says)
            title = entity.name if page == 0 else CONTINUED
            if page and self.rng.random() < self.style.hints:
                title += f" ({handle})"
            entity.passages.append(Passage(title, " ".join(self._sentences(entity, facts, named=page == 0))))

    def _sentences(self, entity: Entity, facts: Sequence[Fact], named: bool) -> list[str]:
        rng, style = self.rng, self.style
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

    def context(self, passages: int) -> list[Entity]:
        """Documents drawn at random, in random order, that have `passages` passages in all."""
        chosen, left = [], passages
        for entity in self.rng.sample(self.documents, len(self.documents)):
            if len(entity.passages) <= left:
                chosen.append(entity)
                left -= len(entity.passages)
        return chosen

    def questions(self, context: Sequence[Entity]) -> dict[str, list[tuple]]:
        """Everything that can be asked of a context, by kind, as arguments of `ask`."""
        here = {id(entity) for entity in context}
        by_kind: dict[str, list[tuple]] = {kind: [] for kind in KINDS}
        for entity in context:
            for fact in entity.facts[0]:
                by_kind["single-hop"].append((entity, fact))
                if fact.relation.noun and fact.target and id(fact.target) in here:
                    by_kind["two-hop"] += [(entity, fact, second) for second in fact.target.facts[0]]
            for fact in entity.facts[1] if len(entity.facts) > 1 else ():
                by_kind["continuation"].append((entity, fact))
                if _epithet(entity):
                    by_kind["epithet"].append((entity, fact))
        for name in EARLIER:
            dated = [(e, f) for e in context for f in e.facts[0] if f.relation.name == name]
            if len({fact.object for _, fact in dated}) > 1:
                by_kind["comparison"].append((name, dated))
        if len(context) > 1:
            by_kind["order"] = [(end, context) for end in PLACED]
        return by_kind

    def ask(self, kind: str, about: tuple) -> Question:
        """One question of a kind, about one entry of `questions`."""
        rng = self.rng
        if kind == "comparison":
            name, dated = about
            pair = rng.sample(dated, 2)
            while pair[0][1].object == pair[1][1].object:
                pair = rng.sample(dated, 2)
            winner, _ = min(pair, key=lambda entry: int(entry[1].object))
            names = tuple(entity.name for entity, _ in pair)
            return Question(rng.choice(EARLIER[name]).format(n=names[0], m=names[1]), winner.names, kind, names)
        if kind == "order":
            end, context = about
            title = passages_of(context)[0 if end == "first" else -1].title
            return Question(rng.choice(PLACED[end]), (title,), kind, (title,))
        entity, fact = about[0], about[-1]
        titles: tuple[str, ...]
        if kind == "two-hop":
            subject, titles = about[1].relation.noun.format(n=entity.name), (entity.name, about[1].target.name)
        elif kind == "epithet":
            subject, titles = _epithet(entity), (entity.passages[1].title,)
        else:
            subject, titles = entity.name, tuple(p.title for p in entity.passages[: 1 + (kind == "continuation")])
        answers = (fact.object, *(n for n in fact.target.names if n != fact.object)) if fact.target else (fact.object,)
        return Question(rng.choice(fact.relation.asks).format(n=subject), answers, kind, titles)


def person(rng: Random, last_names: list[str]) -> Entity:
    """Draw a person, who takes a name from the end of `last_names`."""
    woman = rng.random() < 0.5
    first = rng.choice(words.WOMEN if woman else words.MEN)
    return Entity("person", f"{first} {last_names.pop()}", PRONOUNS["woman" if woman else "man"])


def _epithet(entity: Entity) -> str:
    """What the title of a document's second passage calls its subject; "" where it says nothing."""
    return entity.passages[1].title.removeprefix(CONTINUED).strip(" ()")


def passages_of(context: Sequence[Entity]) -> tuple[Passage, ...]:
    return tuple(passage for entity in context for passage in entity.passages)
