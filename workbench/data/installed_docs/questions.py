"""Questions that one entry of a docstring answers, and only one.

Their kinds:

default    the default of a parameter
type       the type of a parameter or of an attribute: "ndarray of shape (n_samples,)"
values     the values that a parameter may take: "{'l1', 'l2', 'max'}"
name       which parameter or attribute is described by a sentence
returned   the type of a returned value
error      which error is raised in a case
version    since which version there is a parameter, an attribute or the object
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.data.contexts import stands_in
from workbench.data.installed_docs.docstrings import DocstringItem, Entry

KINDS = ("default", "type", "values", "name", "returned", "error", "version")
MOST_WORDS = 12  # of an answer
DESCRIPTION = (5, 30)  # words of a description that is asked for
NUMBER = r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+|[-+]?\d+(?:\.\d+)?"
LITERAL = rf"""None|True|False|{NUMBER}|'[^']*'|"[^"]*\""""
ENDED = r"(?=[;,)\]}\n]|\.(?:\s|$)|\s*$|\s(?!\s*(?:if|when|for|unless|or|otherwise|in)\b))"
STATED = re.compile(rf"(?i:\bdefaults?(?: value)?(?: is| to|\s*[:=])|,\s*default)\s*({LITERAL}){ENDED}")
MARKED = re.compile(rf"(?<![\w.'])({LITERAL}),? \((?:the )?default\)")
AFTER = re.compile(rf"(?<![\w.'])({LITERAL}) by default\b")
VALUES = re.compile(r"\{[^}]*['\"\d]")
SENTENCE_END = re.compile(r"(?<=[a-z)][.;])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)\s|\n")
ADDED = re.compile(r"Added in version (\d[\w.]*\w)\.(?=\s|$)")
IN_TYPE = re.compile(r"(?i)[,;]?\s*\(?(?:optional|required|keyword[- ]only|(?:by )?default\b.*|\(default.*)\)?\s*$")


@dataclass(frozen=True)
class DocQuestion:
    """A question on an object, with the words of the docstring that answer it."""

    kind: str
    subject: str  # parameter, attribute or error; "" for the object itself
    text: str
    answer: str


def questions(name: str, items: Sequence[DocstringItem]) -> list[tuple[int, DocQuestion]]:
    """Return the questions on object `name`, each with the number of the item that answers it.

    Left out are answers over 12 words, answers that the question gives away, and questions with a second answer.
    """
    asked = [(i, question) for i, item in enumerate(items) for question in _of(name, item) if _fits(question, item)]
    times = Counter(question.text for _, question in asked)
    return [(i, question) for i, question in asked if times[question.text] == 1]


def _fits(question: DocQuestion, item: DocstringItem) -> bool:
    short = 1 <= len(question.answer.split()) <= MOST_WORDS
    return short and stands_in(question.answer, item.text) and not stands_in(question.answer, question.text)


def _of(name: str, item: DocstringItem) -> Iterator[DocQuestion]:
    entry = item.entry
    if entry is None:
        if not item.heading and (since := ADDED.fullmatch(item.text)):
            yield DocQuestion("version", "", f"Since which version is there {name}?", since[1])
    elif entry.role == "returned":
        if entry.name:
            yield from _returned(f"Of which type is {entry.name}, which {name} returns?", entry.name, entry.type)
        else:
            yield from _returned(f"What does {name} return?", "", entry.type)
    elif entry.role == "error":
        if described := _description(entry):
            yield DocQuestion("error", entry.name, f'Which error does {name} raise? "{described}"', entry.name)
    else:
        yield from _of_parameter(name, entry)


def _returned(text: str, subject: str, type_: str) -> Iterator[DocQuestion]:
    if len(type_.split()) > 1 and " : " not in type_:
        yield DocQuestion("returned", subject, text, type_)


def _of_parameter(name: str, entry: Entry) -> Iterator[DocQuestion]:
    what = f"the {entry.role} {entry.name} of {name}"
    defaults = {found for rule in (STATED, MARKED, AFTER) for found in rule.findall(f"{entry.type}\n{entry.text}")}
    if entry.role == "parameter" and len(defaults) == 1:
        yield DocQuestion("default", entry.name, f"What is the default of {what}?", defaults.pop())
    type_ = _type(entry.type)
    if VALUES.search(type_) and type_.count("{") == type_.count("}"):
        yield DocQuestion("values", entry.name, f"Which values may {what} take?", type_)
    elif len(type_.split()) > 1:
        yield DocQuestion("type", entry.name, f"Of which type is {what}?", type_)
    if len(since := set(ADDED.findall(entry.text))) == 1:
        yield DocQuestion("version", entry.name, f"Since which version is there {what}?", since.pop())
    if described := _description(entry):
        yield DocQuestion(
            "name", entry.name, f'Which {entry.role} of {name} is described so? "{described}"', entry.name
        )


def _type(text: str) -> str:
    """Return the type of an entry without the words on its default."""
    before = ""
    while text != before:
        before, text = text, IN_TYPE.sub("", text).strip(" ,;")
    return text


def _description(entry: Entry) -> str:
    """Return the first sentence of an entry; "" where it is too short or too long to be asked for."""
    sentence = SENTENCE_END.split(entry.text, maxsplit=1)[0].strip()
    least, most = DESCRIPTION
    asked = least <= len(sentence.split()) <= most and sentence[0].isalnum() and sentence[-1] != ":"
    return sentence.replace('"', "'") if asked else ""
