"""Entities of a lab world, the facts that are true of them, and the passages that state these in a style."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from workbench.data.lab_corpus import words
from workbench.data.lab_corpus.style import Style
from workbench.data.lab_corpus.words import ALSO_CALLED, PRONOUNS, Relation
from workbench.data.sample import CONTINUED, Passage


@dataclass
class Fact:
    """What a passage states of an entity."""

    relation: Relation
    object: str  # as the text says it
    target: "Entity | None" = None  # the entity behind the object, where the world has one
    said: str = ""  # the template that states it

    @property
    def names(self) -> tuple[str, ...]:
        """The object as the text says it, then by its other names."""
        others = self.target.names if self.target else ()
        return (self.object, *(name for name in others if name != self.object))


@dataclass(eq=False)
class Entity:
    """A person, company or place of a lab world, with its passages and what each of them states."""

    kind: str  # "person", "company", "place"
    name: str
    pronoun: str
    alias: str = ""
    passages: list[Passage] = field(default_factory=list)
    facts: list[list[Fact]] = field(default_factory=list)  # per passage

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the alias where there is one."""
        return (self.name, self.alias) if self.alias else (self.name,)


def person(rng: Random, last_names: list[str]) -> Entity:
    """Draw a person, who takes a name from the end of `last_names`."""
    woman = rng.random() < 0.5
    first = rng.choice(words.WOMEN if woman else words.MEN)
    return Entity("person", f"{first} {last_names.pop()}", PRONOUNS["woman" if woman else "man"])


def passages_of(context: Sequence[Entity]) -> tuple[Passage, ...]:
    """Return the passages of a context in reading order."""
    return tuple(passage for entity in context for passage in entity.passages)


def write(entity: Entity, handle: str, rng: Random, style: Style) -> None:
    """Write the passages that say what is true of an entity; `handle` is what the title of its second may call it.

    Only the first passage names its subject. A passage begins with a sentence on its subject.
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
