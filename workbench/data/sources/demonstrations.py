"""In-context learning in the language of the lab corpus: solved examples, then a question to answer in their manner.

A demonstration is a `Sample` of one passage with its question and answer. Requests of one pool draw from it in random
order, as a service that picks examples for each request does.

Kinds of question
    own passage    the question comes with a passage of its own
    demonstration  the question asks for another fact of a demonstration's passage, so that the model has to read it
"""

from dataclasses import dataclass
from random import Random

from workbench.core.errors import BadInput
from workbench.data.lab_corpus.world import Entity, Style, World
from workbench.data.sample import Sample

KINDS = ("own passage", "demonstration")
POOL, OWN, PER_POOL = 16, 8, 16  # demonstrations of a pool, passages kept for questions, requests a pool serves


@dataclass(frozen=True)
class Request:
    """Demonstrations in the order in which they are shown, and what is asked behind them."""

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
        chosen, kind = rng.sample(pool[:POOL], shots), KINDS[i % 2]
        entity, _ = rng.choice(pool[POOL:] if kind == "own passage" else chosen)
        demonstrations = tuple(sample for _, sample in chosen)
        listed.append(Request(demonstrations, _ask(f"icl-{seed}-{i}", world, entity, kind)))
    return listed


def _ask(name: str, world: World, entity: Entity, kind: str = "own passage") -> Sample:
    question = world.ask("single-hop", (entity, world.rng.choice(entity.facts[0])))
    ctxs = tuple(entity.passages) if kind == "own passage" else ()
    return Sample(name, question.text, question.answers, ctxs, question.titles, 1, kind)
