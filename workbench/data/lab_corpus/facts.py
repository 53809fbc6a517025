"""Facts that the passages of a lab sample state, parsed from their text, and the answers that follow from them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from workbench.core.errors import BadInput
from workbench.data.lab_corpus.words import ALSO_CALLED, EARLIER, PLACED, PRONOUNS, RELATIONS
from workbench.data.sample import Passage, Sample, continues

_RELATIONS = [relation for relations in RELATIONS.values() for relation in relations]


@dataclass(frozen=True)
class Statement:
    """A fact that a passage states: the `relation` of `subject` (a name) is `object`."""

    subject: str
    relation: str
    object: str


def statements(ctxs: Sequence[Passage]) -> list[Statement]:
    """Return all facts that the passages state.

    The subject of a passage is whom it names first, or its title if it names nobody; a passage that continues the one
    before it (`sample.continues`) has the same subject. A company's other name is the relation "alias".
    """
    stated, subject = [], ""
    for before, passage in zip([Passage("", ""), *ctxs], ctxs, strict=False):
        told = list(_told(passage.text))
        if not continues(passage, before):
            named = (said.subject for said in told if said.subject not in PRONOUNS.values())
            subject = next(named, passage.title)
        stated += [Statement(subject, said.relation, said.object) for said in told]
    return stated


def _told(text: str) -> Iterator[Statement]:
    """Yield the statement of each sentence about its own subject, a name or a pronoun."""
    for sentence in re.split(r"(?<=\.)\s+", text):
        told = next(((relation, match) for relation, rule in _SAYS if (match := rule.fullmatch(sentence))), None)
        if told:
            relation, match = told
            thing = f"the {match['o']}" if relation == "alias" else match["o"]
            yield Statement(match["s"], relation, thing)


def supported_answers(sample: Sample) -> tuple[str, ...]:
    """Return the answers to the sample's question that its passages state, aliases included; () where there are none.

    Raises BadInput for a question that is not of the lab corpus.
    """
    told = statements(sample.ctxs)
    for end, questions in PLACED.items():
        if sample.question in questions:
            return (sample.ctxs[0 if end == "first" else -1].title,)
    for relation, rule in _EARLIER:
        if match := rule.fullmatch(sample.question):
            years = {s.subject: int(s.object) for s in told if s.relation == relation and s.subject in match.groups()}
            first = [name for name in years if len(years) == 2 and years[name] < max(years.values())]
            return tuple(alias for name in first for alias in _names(name, told))
    answers: list[str] = []
    readings = list(_asked(sample.question))
    for asked, subject in readings:
        for name in _subjects(subject, told):
            things = (s.object for s in told if s.relation == asked and s.subject == name)
            answers += [alias for thing in things for alias in _names(thing, told)]
    if not readings:
        about = "only its own questions can be checked exactly"
        raise BadInput(f"the lab corpus does not ask {sample.question!r}: {about}")
    return tuple(dict.fromkeys(answers))


def relation_asked(question: str) -> str:
    """Return the relation that a question asks for; "" for a question about the order of passages or of years."""
    return next((relation for relation, _ in _asked(question)), "")


def _asked(question: str) -> Iterator[tuple[str, str]]:
    """Yield (relation, subject as phrased in the question)."""
    for relation, rule in _ASKS:
        if match := rule.fullmatch(question):
            yield relation, match["n"]


def _subjects(said: str, told: Sequence[Statement]) -> set[str]:
    """Return the names that a subject such as "Ada Kelric" or "the employer of Ada Kelric" refers to."""
    for relation, rule in _NOUNS:
        if match := rule.fullmatch(said):
            things = [s.object for s in told if s.relation == relation and s.subject == match["n"]]
            return {name for thing in things for name in _names(thing, told)}
    return {said}


def _names(name: str, told: Sequence[Statement]) -> list[str]:
    """Return a name and its aliases in the passages."""
    aliases = [(s.subject, s.object) for s in told if s.relation == "alias"]
    return list(dict.fromkeys([name, *(other for pair in aliases if name in pair for other in pair)]))


def _rule(template: str) -> re.Pattern[str]:
    """Return a sentence template as a pattern: `{s}` becomes the group s."""
    return re.compile(re.sub(r"\\{(\w)\\}", r"(?P<\1>.+?)", re.escape(template)))


def _rules(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, re.Pattern[str]]]:
    """Return (relation, pattern), more specific ones first: "was born in the year" before "was born in"."""
    return [(relation, _rule(template)) for relation, template in sorted(pairs, key=lambda pair: -len(pair[1]))]


_STATED = ((relation.name, says) for relation in _RELATIONS for says in relation.says)
_SAYS = _rules([*_STATED, *(("alias", says) for says in ALSO_CALLED)])
_ASKS = _rules((r.name, asks) for r in _RELATIONS for asks in r.asks)
_NOUNS = _rules((r.name, r.noun) for r in _RELATIONS if r.noun)
_EARLIER = _rules((name, asks) for name, questions in EARLIER.items() for asks in questions)
