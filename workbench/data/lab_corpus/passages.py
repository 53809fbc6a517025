"""The passages of lab documents: facts as sentences, in the manner of a style."""

from collections.abc import Sequence
from random import Random

from workbench.data.lab_corpus import words
from workbench.data.lab_corpus.entities import Entity, Fact
from workbench.data.lab_corpus.hard_words import CONTRASTS, PARAPHRASES
from workbench.data.lab_corpus.style import Style
from workbench.data.lab_corpus.words import ALSO_CALLED
from workbench.data.sample import CONTINUED, Passage


def write(entity: Entity, handle: str, rng: Random, style: Style) -> None:
    """Write the passages that say what is true of an entity; `handle` is what the title of its second may call it.

    Only the first passage names its subject. A passage begins with a sentence on its subject.
    """
    for page, facts in enumerate(entity.facts):
        for fact in facts:
            fact.said = _template(fact, rng, style)
        title = entity.title or entity.name
        if page and style.titles == "continued":
            title = CONTINUED
            if rng.random() < style.hints:
                title += f" ({handle})"
        sentences = _sentences(entity, facts, page == 0, rng, style)
        for name, contrast in entity.contrasts[page :: len(entity.facts)]:
            sentences.insert(1 + rng.randrange(len(sentences)), _contrast(entity, name, contrast, rng, style))
        entity.passages.append(Passage(title, " ".join(sentences)))


def _template(fact: Fact, rng: Random, style: Style) -> str:
    if style.paraphrases and rng.random() < style.paraphrases:
        return rng.choice(PARAPHRASES[fact.relation.name])
    return rng.choice(fact.relation.says)


def _contrast(entity: Entity, name: str, contrast: Fact, rng: Random, style: Style) -> str:
    """Say a thing of somebody else: "Unlike her, Otto Barvane works for Lordex Mills."."""
    before = rng.choice(CONTRASTS).format(s=words.OBJECT_PRONOUNS[entity.pronoun])
    return before + _template(contrast, rng, style).format(s=name, o=contrast.object)


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
