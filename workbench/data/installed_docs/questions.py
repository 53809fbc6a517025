"""Docstrings in numpy's and Google's style as plain text, and questions with one answer in them.

Examples, references, formulas, tables and directives without words are left out. Kinds of question:

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
from itertools import groupby
from textwrap import dedent

from workbench.data.sample import stands_in

NOT_READ = ("example", "reference", "see also", "citation", "shape")
_PARAMETERS = ("parameters", "other parameters", "args", "arguments", "keyword args", "keyword arguments")
HEADINGS = dict.fromkeys(_PARAMETERS, "parameter") | {"attributes": "attribute", "raises": "error"}
HEADINGS |= dict.fromkeys(("returns", "return"), "returned")
OF_GOOGLE = "|".join([*HEADINGS, "examples?", "notes?", "shape", "references", "warnings?", "inputs?", "outputs?"])
GOOGLE = re.compile(rf"(?i)({OF_GOOGLE})\s*::?\s*$")
ENTRY = re.compile(r"(?P<name>\*{0,2}[A-Za-z]\w*(?:, ?\*{0,2}\w+)*)(?:\s*:\s+(?P<type>\S.*))?$")
GOOGLE_ENTRY = re.compile(r"`*(?P<name>\*{0,2}\w+)`*\s*(?:\((?P<type>(?:[^()]|\([^()]*\))*)\))?\s*:\s+(?P<text>\S.*)$")
UNDERLINE = re.compile(r"\s*(?:-{3,}|={3,}|~{3,})\s*")
DIRECTIVE = re.compile(r"\s*\.\. ?([\w-]+)::\s*(.*)$")
MARKUP = re.compile(r"[`*|\[]")
CHANGES = {"versionadded": "Added in version", "versionchanged": "Changed in version", "deprecated": "Deprecated since"}
CALLOUTS = {"note": "Note:", "warning": "Warning:", "important": "Important:", "tip": "Tip:", "attention": "Note:"}


@dataclass(frozen=True)
class Entry:
    """What a section of a docstring says of one name; `role` is parameter, attribute, returned or error."""

    role: str
    name: str  #: "" for a returned value without one
    type: str
    text: str  #: the description


@dataclass(frozen=True)
class DocstringItem:
    """A paragraph, or an `entry` of the section `heading`; passages are cut between items."""

    heading: str
    text: str
    entry: Entry | None = None


def items(doc: str) -> list[DocstringItem]:
    """Return the items of a docstring that `inspect.cleandoc` has dedented."""
    listed: list[DocstringItem] = []
    for heading, lines in _sections(doc.splitlines()):
        role = HEADINGS.get(heading.lower(), "")
        if heading.lower().startswith(NOT_READ):
            continue
        entries = list(_entries(role, lines)) if role else []
        if entries:
            listed += [DocstringItem(heading, _as_text(entry), entry) for entry in entries]
        else:
            listed += [DocstringItem(heading, text) for text in _paragraphs(lines)]
    return listed


def plain(text: str) -> str:
    """Return a text as one line, without the roles, links and quotes of reStructuredText."""
    if not MARKUP.search(text):
        return " ".join(text.split())
    text = re.sub(r":[a-z:]+:`~?([^`<]*?)\s*(?:<[^`]*>)?`", r"\1", text)  # :func:`torch.abs`, :ref:`words <target>`
    text = re.sub(r"`([^`<]+?)\s*<[^`]*>`_+", r"\1", text)  # `words <address>`_
    text = re.sub(r"\[\d+\]_|\|version\|", "", text)
    text = re.sub(r"`+|\*\*(?=\S)|(?<=\S)\*\*(?=[\s.,:;)]|$)", "", text)
    return " ".join(text.split())


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield headings with their lines; the first has none."""
    heading, held, underlined = "", list[str](), False
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        starts = line[:1].strip() != ""
        if underlined:
            underlined = False
        elif starts and UNDERLINE.fullmatch(below):
            yield heading, held
            heading, held, underlined = line.strip(), [], True
        elif starts and (google := GOOGLE.match(line)):
            yield heading, held
            heading, held = google[1], []
        elif starts and heading and held and held[0][:1] == " ":  # Google style: a section is indented
            yield heading, held
            heading, held = "", [line]
        elif held or line.strip():
            held.append(line)
    yield heading, held


def _entries(role: str, lines: list[str]) -> Iterator[Entry]:
    text = dedent("\n".join(lines))
    starts = re.split(r"(?m)^(?=\S)", text)
    for block in filter(str.strip, starts):
        head, _, below = block.partition("\n")
        if found := GOOGLE_ENTRY.match(head) if lines[0][:1] == " " else None:
            said, type_ = f"{found['text']}\n{dedent(below)}", found["type"] or ""
            name = found["name"]
        elif lines[0][:1] == " ":
            continue
        elif found := ENTRY.match(head):
            name, type_, said = found["name"], found["type"] or "", dedent(below)
            if role == "returned" and not type_:
                name, type_ = "", name
        elif role == "returned" and below[:1] == " ":
            name, type_, said = "", head, dedent(below)
        else:
            continue
        yield Entry(role, plain(name).lstrip("*"), plain(type_), "\n".join(_paragraphs(said.splitlines())))


def _as_text(entry: Entry) -> str:
    head = " : ".join(filter(None, (entry.name, entry.type)))
    return f"{head}\n{entry.text}" if entry.text else head


def _paragraphs(lines: list[str]) -> list[str]:
    """Return paragraphs of running text; each list item is one."""
    found = []
    for blank, group in groupby(_read(lines), key=lambda line: not line.strip()):
        if not blank:
            points = re.split(r"\n(?=\s*(?:[-*•]|\d\.) )", "\n".join(group))
            found += [text for text in map(plain, points) if re.search(r"[A-Za-z]{3}", text)]
    return found


def _read(lines: list[str]) -> Iterator[str]:
    """Yield lines of prose: changes and notes as sentences, without code, formulas, tables and images."""
    skipped: int | None = None  # indentation of a directive whose block is skipped
    session = False  # within an interactive example, which a blank line ends
    for line in lines:
        indent, words = len(line) - len(line.lstrip()), line.strip()
        if skipped is not None and (not words or indent > skipped):
            continue
        skipped, session = None, bool(words) and (session or words.startswith(">>>"))
        if session or re.match(r"[|+][-=+ ]|={3}|-{3}", words):
            yield ""
        elif directive := DIRECTIVE.match(line):
            name, argument = directive[1], directive[2].strip()
            if name in CHANGES:
                yield from ("", f"{CHANGES[name]} {argument.rstrip(':.')}." if argument else "")
            elif name in CALLOUTS:
                yield from ("", f"{CALLOUTS[name]} {argument}")
            else:
                skipped = indent
        elif words.startswith(".. ") or words.endswith("::"):
            yield line.rstrip()[:-1] if words.endswith("::") else ""
            skipped = indent
        else:
            yield line


KINDS = ("default", "type", "values", "name", "returned", "error", "version")
MOST_WORDS = 12  # of an answer
DESCRIPTION = (5, 30)  # words of a description that a question can ask for
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
    """A question about a documented object, with the words of its docstring that answer it."""

    kind: str
    subject: str  #: parameter, attribute or error; "" for the object itself
    text: str
    answer: str


def questions(name: str, items: Sequence[DocstringItem]) -> list[tuple[int, DocQuestion]]:
    """Return the questions about object `name`, each with the index of the item that answers it.

    Left out are answers of over 12 words, answers that occur in the question, and questions with several answers.
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
    """Return the first sentence of an entry; "" if it is too short or too long for a question."""
    sentence = SENTENCE_END.split(entry.text, maxsplit=1)[0].strip()
    least, most = DESCRIPTION
    asked = least <= len(sentence.split()) <= most and sentence[0].isalnum() and sentence[-1] != ":"
    return sentence.replace('"', "'") if asked else ""
