"""Entities of a lab world, the facts that are true of them and the documents that state these."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from workbench.data.lab_corpus import words
from workbench.data.lab_corpus.words import PRONOUNS, Relation
from workbench.data.sample import Passage


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
    title: str = ""  # of its document; "": the name
    contrasts: list[tuple[str, Fact]] = field(default_factory=list)  # what its passages say of others, by their names

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the alias where there is one."""
        return (self.name, self.alias) if self.alias else (self.name,)

    def values(self, relation: Relation) -> list[tuple[int, Fact]]:
        """Return all facts of a relation, each with the number of its passage, in reading order."""
        return [(page, fact) for page, facts in enumerate(self.facts) for fact in facts if fact.relation is relation]


def person(rng: Random, last_names: list[str]) -> Entity:
    """Draw a person, who takes a name from the end of `last_names`."""
    woman = rng.random() < 0.5
    first = rng.choice(words.WOMEN if woman else words.MEN)
    return Entity("person", f"{first} {last_names.pop()}", PRONOUNS["woman" if woman else "man"])


def passages_of(context: Sequence[Entity]) -> tuple[Passage, ...]:
    """Return the passages of a context in reading order."""
    return tuple(passage for entity in context for passage in entity.passages)
