"""Questions over a context of lab documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from workbench.data.lab_corpus.entities import Entity, Fact, passages_of
from workbench.data.lab_corpus.words import EARLIER, PLACED
from workbench.data.sample import CONTINUED

KINDS = ("single-hop", "continuation", "two-hop", "comparison", "order", "epithet")


@dataclass(frozen=True)
class LabQuestion:
    """A question of a lab world; `kind` is one of KINDS."""

    text: str
    answers: tuple[str, ...]
    kind: str
    titles: tuple[str, ...]  # of the passages that hold the answer


About = tuple[Any, ...]
"""What a question asks about: (entity, fact); two facts of a two-hop question; (relation, [(entity, fact), …]) of a
comparison; (end of the order, context) of "order"."""


def questions(context: Sequence[Entity]) -> dict[str, list[About]]:
    """Return everything that can be asked of a context, by kind, as arguments of `ask`."""
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


def ask(rng: Random, kind: str, about: About) -> LabQuestion:
    """Return one question of a kind, about one entry of `questions`."""
    if kind == "comparison":
        return _comparison(rng, *about)
    if kind == "order":
        end, context = about
        title = passages_of(context)[0 if end == "first" else -1].title
        return LabQuestion(rng.choice(PLACED[end]), (title,), kind, (title,))
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
    return LabQuestion(rng.choice(fact.relation.asks).format(n=subject), fact.names, kind, titles)


def _comparison(rng: Random, name: str, dated: list[tuple[Entity, Fact]]) -> LabQuestion:
    pair = rng.sample(dated, 2)
    while pair[0][1].object == pair[1][1].object:
        pair = rng.sample(dated, 2)
    winner, _ = min(pair, key=lambda entry: int(entry[1].object))
    (first, second), titles = (entity.name for entity, _ in pair), tuple(e.passages[0].title for e, _ in pair)
    return LabQuestion(rng.choice(EARLIER[name]).format(n=first, m=second), winner.names, "comparison", titles)


def epithet(entity: Entity) -> str:
    """Return what the title of a document's second passage calls its subject; "" where it says nothing."""
    title = entity.passages[1].title
    return title.removeprefix(CONTINUED).strip(" ()") if title.startswith(CONTINUED) else ""
