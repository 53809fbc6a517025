"""More words of the lab world, for what makes it harder.

Other sentences for its relations, titles of documents, answers of several words, and what is said of others. None of
them occurs in the plain lab corpus (`lab_style`).
"""

from random import Random

from workbench.data.lab_corpus.words import Relation, coined, listed, sentences

_PARAPHRASES = """
profession: {s} makes a living as a {o}. {s} has spent years as a {o}.
employer: {s} is on the payroll of {o}. {s} draws a salary from {o}.
home: {s} rents rooms in {o}. {s} can be visited in {o}.
origin: {s} spent a childhood in {o}. {s} left {o} at twenty.
born: {s} came into the world in {o}. {s} first saw daylight in {o}.
instrument: {s} performs on the {o}. {s} takes lessons on the {o}.
animal: {s} feeds a {o} every morning. {s} shares a garden with a {o}.
teacher: {s} studied under {o}. {s} was once an apprentice of {o}.
seat: {s} has its headquarters in {o}. {s} occupies a building in {o}.
founder: {s} goes back to {o}. {s} owes its existence to {o}.
opened: {s} began trading in {o}. {s} took its first orders in {o}.
product: {s} turns out {o}. {s} supplies shops with {o}.
emblem: {s} flies a {o} flag. {s} prints a {o} sign on everything.
river: {s} was built beside the {o}. {s} draws its water from the {o}.
mayor: {s} has {o} at the head of its council. {s} is led by {o}.
dish: {s} draws visitors with its {o}. {s} celebrates its {o} every autumn.
settled: {s} appears on maps from {o} on. {s} got its first church in {o}.
"""
PARAPHRASES = {  # relation -> sentences that state it in words that no question uses
    name: sentences(text) for name, text in (line.split(": ") for line in _PARAPHRASES.strip().splitlines())
}

_HEADS = "Bal Cor Din Fal Gor Hul Jor Kam Lum Mor Nor Pol Rum Sal Tor Vel Wor Zel"
TITLE_WORDS = coined(_HEADS, "adia enia oria umba erra isko una ilda", 140)
RECORDS = listed("album archive chronicle diary file letters ledger notebook record report")
TITLE_LENGTH = 3  # words of a title before the kind of record: "Baladia Norumba Zelisko ledger"

ADJECTIVES = {  # one of the first goes before an answer, with one of the second between or without
    "profession": (listed("young retired famous modest"), listed("local travelling")),
    "instrument": (listed("small large rare modern"), listed("wooden polished")),
    "animal": (listed("small tall tame lazy"), listed("spotted striped")),
    "goods": (listed("cheap heavy light sturdy"), listed("painted folding")),
    "dish": (listed("smoked spiced sweet sour"), listed("cold winter")),
    "colour": (listed("dark pale"), listed("dull shiny")),
    "river": (listed("Upper Lower"), listed("Great Little")),
}

SEVERAL = ("instrument", "animal", "teacher", "product", "dish")  # relations that may hold of several objects
NAME_ALL = "Name all."  # ends a question for several values

CONTRASTS = ("Unlike {s}, ", "In contrast to {s}, ")  # before what is said of another than the passage's subject


def sentences_of(relation: Relation) -> tuple[str, ...]:
    """Return all templates that state a relation, the plain ones first."""
    return (*relation.says, *PARAPHRASES[relation.name])


def title(rng: Random) -> str:
    """Draw the title of a document, which says nothing of its subject and hardly ever comes twice."""
    return " ".join([*rng.sample(TITLE_WORDS, TITLE_LENGTH), rng.choice(RECORDS)])
