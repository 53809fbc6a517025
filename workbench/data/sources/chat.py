"""Conversations and in-context learning in the language of the lab corpus: pasted passages, or solved examples.

A turn is a `Sample`: the passages that the user pastes (none in some turns), then the question. Kinds of question:

told now     a fact of the passage that comes with the question
told before  a fact of an earlier turn, whose passage names its subject
follow-up    a fact of an earlier turn that continued about a person ("She …") of a turn before it

A demonstration is a `Sample` of one passage with its question and answer. Requests of one pool draw from it in random
order, as a service that picks examples for each request does. Kinds of question:

own passage    the question comes with a passage of its own
demonstration  the question asks for another fact of a demonstration's passage, so that the model has to read it
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from workbench.core.errors import BadInput
from workbench.data.lab_corpus.world import Entity, Fact, Style, World
from workbench.data.sample import Sample

SHOT_KINDS = ("own passage", "demonstration")
POOL, OWN, PER_POOL = 16, 8, 16  # demonstrations of a pool, passages kept for questions, requests a pool serves


@dataclass(frozen=True)
class Request:
    """Demonstrations in the order in which they are shown, then the sample that is `asked`."""

    demonstrations: tuple[Sample, ...]
    asked: Sample


def requests(n: int, seed: int = 0, shots: int = 4) -> list[Request]:
    """Return `n` requests of `shots` demonstrations each. Raises BadInput for a number that is out of range."""
    if n < 1:
        raise BadInput(f"requests is {n}; at least 1 is needed")
    if not 1 <= shots <= POOL:
        raise BadInput(f"shots is {shots}; a request has 1 to {POOL} demonstrations")
    listed = []
    for i in range(n):
        if i % PER_POOL == 0:
            rng = Random(f"demonstrations {seed} {i // PER_POOL}")
            world = World(rng, POOL + OWN, Style(continued=0.0))
            pool = [(entity, _ask(f"shot-{seed}-{i}-{at}", world, entity)) for at, entity in enumerate(world.documents)]
        chosen, kind = rng.sample(pool[:POOL], shots), SHOT_KINDS[i % 2]
        entity, _ = rng.choice(pool[POOL:] if kind == "own passage" else chosen)
        demonstrations = tuple(sample for _, sample in chosen)
        listed.append(Request(demonstrations, _ask(f"icl-{seed}-{i}", world, entity, kind)))
    return listed


def _ask(name: str, world: World, entity: Entity, kind: str = "own passage") -> Sample:
    question = world.ask("single-hop", (entity, world.rng.choice(entity.facts[0])))
    ctxs = tuple(entity.passages) if kind == "own passage" else ()
    return Sample(question.text, question.answers, ctxs, question.titles, 1, kind, id=name)


KINDS = ("told now", "told before", "follow-up")
MOST_TURNS = 30
BRING = 0.6  # share of turns with a pasted passage


@dataclass(frozen=True)
class _PastedPassage:
    """A pasted passage of an entity, and its turn."""

    turn: int
    entity: Entity
    page: int


def conversations(n: int, seed: int = 0, turns: int = 12, memory: int = 8) -> list[list[Sample]]:
    """Return `n` conversations of `turns` turns; questions ask for facts of their own turn or of the last `memory`.

    Each conversation is about a world of its own. Raises BadInput for a number that is out of range.
    """
    if n < 1:
        raise BadInput(f"conversations is {n}; at least 1 is needed")
    if not 2 <= turns <= MOST_TURNS:
        raise BadInput(f"turns is {turns}; a conversation has 2 to {MOST_TURNS}")
    if memory < 1:
        raise BadInput(f"memory is {memory}; at least 1 turn is remembered")
    return [list(_conversation(f"chat-{seed}-{i}", turns, memory)) for i in range(n)]


def _conversation(name: str, turns: int, memory: int) -> Iterator[Sample]:
    rng = Random(name)
    world = World(rng, 2 * turns, Style(continued=0.6))  # no turn needs more than two passages
    coming = iter([(entity, page) for entity in world.documents for page in range(len(entity.passages))])
    told: list[_PastedPassage] = []
    for turn in range(turns):
        told = [past for past in told if past.turn >= turn - memory]
        if turn < 2 or rng.random() < BRING:
            told.append(_PastedPassage(turn, *next(coming)))
        while not any(_questions(told, turn).values()):  # no question can be answered from what is left
            told.append(_PastedPassage(turn, *next(coming)))
        yield _turn(f"{name}-{turn}", world, told, turn)


def _turn(name: str, world: World, told: list[_PastedPassage], turn: int) -> Sample:
    subjects = _questions(told, turn)
    kind = world.rng.choice([kind for kind in KINDS if subjects[kind]])
    entity, fact = world.rng.choice(subjects[kind])
    question = world.ask("continuation" if kind == "follow-up" else "single-hop", (entity, fact))
    pasted = tuple(past.entity.passages[past.page] for past in told if past.turn == turn)
    return Sample(question.text, question.answers, pasted, question.titles, 1, kind, id=name)


def _questions(told: list[_PastedPassage], turn: int) -> dict[str, list[tuple[Entity, Fact]]]:
    """Return possible questions by kind. A follow-up needs both passages of its entity."""
    subjects: dict[str, list[tuple[Entity, Fact]]] = {kind: [] for kind in KINDS}
    named = {id(past.entity) for past in told if past.page == 0}
    for past in told:
        facts = [(past.entity, fact) for fact in past.entity.facts[past.page]]
        if past.page == 0:
            subjects["told now" if past.turn == turn else "told before"] += facts
        elif past.turn < turn and id(past.entity) in named:
            subjects["follow-up"] += facts
    return subjects
