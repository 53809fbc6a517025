"""Blocks other than passages: answers over cached blocks and under full attention, paired by question.

    python data/benchmarks/beyond_rag.py --model lab-block
    python data/benchmarks/beyond_rag.py --model smollm2 --frames 60 --tasks demonstrations game
    python data/benchmarks/beyond_rag.py --tasks states --frames 500 --tables 6

writes answers of both modes (experiment "session") for Block-Attention's table 2 (in-context learning) and figure 5
(states of a game): exact match, and in block mode whether both answers have the same tokens (`agree`).
Game questions are about successive frames, one block per leaf group of the state; demonstrations are blocks of a
passage, its question and its answer. Finished tasks are kept. `states` runs no model: it
measures how much of a game state repeats the previous one (`repeated`, a share of its characters).

`frames` are states of a lab world in which one fact changes at a time, one block per passage. A move gives one fact of
one entity another object ("Ada Kelric lives in Tarn" becomes "… in Olm"), and its document is written again; all other
passages stay unchanged. This corresponds to the game states of Block-Attention's appendix A: long, mostly repeated,
with questions about the current state. `data.sources.game` has states of a real game in JSON, which lab models cannot
read.
"""

from collections.abc import Iterator
from itertools import cycle, pairwise
from random import Random
from typing import Any

from script import mean_of, name_of, options, writer

from workbench import models
from workbench.core.errors import BadInput
from workbench.data.lab_corpus.samples import MOST_PASSAGES
from workbench.data.lab_corpus.style import PLAIN
from workbench.data.lab_corpus.world import Entity, Fact, World, passages_of, write
from workbench.data.sample import Sample
from workbench.data.sources import chat, game
from workbench.experiments.serving import sessions

TASKS = ["demonstrations", "game", "frames", "states"]
SEED, SHOTS, TOKENS = 80_000, 4, 16


def repeated(n: int, seed: int = 0, tables: int = 1) -> dict[str, Any]:
    """Return the mean share of a state's characters that repeat the previous state, with a 95% interval.

    n   frames; all but the first have a previous one
    """
    shares = []
    for before, now in pairwise(game.frames(n, seed, tables)):
        old, pieces = set(before.pieces()), now.pieces()
        shares.append(sum(len(piece) for piece in pieces if piece in old) / sum(map(len, pieces)))
    return {"measure": "repeated", **mean_of(shares)}


KINDS = ("single-hop", "continuation", "two-hop")  # in turn, if the state has such a question
LENGTH = 25  # frames of one world


def frames(n: int, seed: int = 0, passages: int = 30, length: int = LENGTH) -> list[Sample]:
    """Return `n` successive frames, each the passages of a state and one question about it; a new world every `length`.

    Equal arguments, equal frames. Raises BadInput for numbers that are not allowed.
    """
    if n < 1 or length < 1:
        raise BadInput(f"frames is {n} and length {length}; at least 1 is needed of both")
    if not 8 <= passages <= MOST_PASSAGES:
        raise BadInput(f"passages is {passages}; a state has 8 to {MOST_PASSAGES} passages")
    worlds = (_frames(seed, number, passages) for number in range(-(-n // length)))
    return [next(frames) for at, frames in enumerate(worlds) for _ in range(min(length, n - at * length))]


def _frames(seed: int, number: int, passages: int) -> Iterator[Sample]:
    rng = Random(f"lab frames {seed} {number}")
    world, state = World(rng, passages, PLAIN), list[Entity]()
    while len(passages_of(state)) != passages:
        world = World(rng, passages, PLAIN)
        state = world.context(passages)
    changed: Entity | None = None
    for at, kind in enumerate(cycle(KINDS)):
        if at:
            changed = _move(world, rng)
        yield _asked(world, state, kind, changed, f"lab-frame-{seed}-{number}-{at}")


def _move(world: World, rng: Random) -> Entity:
    """Change one fact of one entity, write its document again, and return the entity."""
    entity = rng.choice([each for each in world.documents if _movable(each)])
    fact = rng.choice(_movable(entity))
    new = fact
    while new.object in fact.names:
        new = world.draw(fact.relation, entity)
    fact.object, fact.target = new.object, new.target
    trade = next((each.object for each in entity.facts[0] if each.relation.name == "profession"), "")
    entity.passages.clear()
    write(entity, entity.alias if entity.kind != "person" else f"the {trade}", rng, world.style)
    return entity


def _movable(entity: Entity) -> list[Fact]:
    """Return the facts that a move may change; not the trade, which is unique per person."""
    return [fact for facts in entity.facts for fact in facts if fact.relation.name != "profession"]


def _asked(world: World, state: list[Entity], kind: str, changed: Entity | None, name: str) -> Sample:
    """Return a question about a state, about the latest change if possible for this kind."""
    every = world.questions(state)
    kind = kind if every[kind] else KINDS[0]
    new = [about for about in every[kind] if about[0] is changed]
    question = world.ask(kind, world.rng.choice(new or every[kind]))
    hops = 2 if kind == "two-hop" else 1
    return Sample(question.text, question.answers, passages_of(state), question.titles, hops, kind, id=name)


def main() -> None:
    """Measure and write."""
    counts = {"requests": 500, "frames": 200, "tables": 1}
    args = options(__doc__, model="lab-block", **counts, tasks=TASKS, device="cpu")
    loaded = models.load(args.model, args.device)
    layout, name = loaded.layout, name_of(args.model)
    steps_of = {
        "demonstrations": lambda: sessions.of_demonstrations(chat.requests(args.requests, SEED, SHOTS), layout),
        "frames": lambda: sessions.of_frames(frames(args.frames, SEED), layout),
        "game": lambda: sessions.of_game(game.frames(args.frames, SEED, args.tables), layout),
    }
    origin = {"model": name, "seed": SEED, "setting": {"shots": SHOTS, "tables": args.tables}}
    with writer(args, f"session@{name}", loaded.model.device, resume=True, **origin) as out:
        there = {row["data"] for row in out.rows_written("answers")}
        if "states" in args.tasks:
            out.counts([{"data": "game", "kind": "game", **repeated(args.frames, SEED, args.tables)}])
        for task in (task for task in args.tasks if task not in {*there, "states"}):
            rows = sessions.answer_session(loaded, steps_of[task](), max_new_tokens=TOKENS)
            out.answers({"data": task, **row} for row in rows)


if __name__ == "__main__":
    main()
