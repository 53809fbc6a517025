"""A folder of documents and a file of questions about them: `notes`, or with its cuts, `notes(by=sentences, size=6)`.

documents    text, Markdown and PDF (by `pypdf`), at any depth; a passage is titled by its document's name
questions    one file of `files`' endings directly in the folder, whose records need a question; answers are optional

by       paragraphs (default; cut as `segment.text` does, Markdown headings not alone), sentences, words or tokens
size     sentences, words or tokens in a passage; by default 6, 120 and 160
overlap  how many of them are repeated at the beginning of the next passage; by default 0
model    whose tokenizer counts tokens: a checkpoint folder, or the name of a shipped or fetched model

A question without passages of its own gets the passages most similar to it by TF-IDF, the most similar first.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.core import spec_parser
from workbench.core.errors import BadInput, format_value, not_allowed, shorten
from workbench.core.utils.files import is_dir, is_file
from workbench.data import assets, embedders, segment
from workbench.data.sample import Passage, Sample, plain
from workbench.data.sources import files

PLAIN = (".txt", ".md")
HEADING = re.compile(r"#{1,6} .+")
MOST = 1 << 30  # effectively no limit on the number of pieces
QUESTIONS = ("question", "input", "ctxs", "context", "paragraphs")  # fields by which a file of questions is recognised


def read_document(path: str | Path) -> Sample | None:
    """Return one sample that holds the passages of a file; None for a file of another kind.

    Plain text is cut into paragraphs. Raises BadInput for a file that cannot be read or holds no text.
    """
    path = Path(path)
    if path.suffix in PLAIN:
        ctxs = [Passage("", piece.strip()) for piece in _paragraphs(text(path))]
    elif path.name.endswith(files.ENDINGS) and is_file(path):
        records = files.records(path)
        if not all(map(_is_passage, records)):
            return None
        ctxs = [_passage(record) for record in records]
    else:
        return None
    ctxs = [passage for passage in dict.fromkeys(ctxs) if passage.text.strip()]
    if not ctxs:
        raise BadInput(f"{path} holds no text")
    return Sample("", (), tuple(ctxs), id=path.name.partition(".")[0])


def _is_passage(record: Any) -> bool:
    if isinstance(record, dict):
        return isinstance(record.get("text"), str) and not any(name in record for name in QUESTIONS)
    return isinstance(record, str)


def _passage(record: Any) -> Passage:
    if isinstance(record, str):
        return Passage("", record.strip())
    return Passage(plain(record.get("title"), "title"), record["text"].strip())


def text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises BadInput for one that cannot be read."""
    if not is_file(path):
        raise BadInput(f"{shorten(path)}: no such file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise files.unreadable(path, problem) from None


EXAMPLE = '{"question": "Who wrote this?", "answers": ["Ada"]}'  # a question, as a line of JSON
DOCUMENTS = (*PLAIN, ".pdf")
SIZES = {"paragraphs": 0, "sentences": 6, "words": 120, "tokens": 160}  # default size of a passage
OPTIONS = ("by", "size", "overlap", "model")
TOP = 10  # default number of passages per question


def folder_source(name: str) -> tuple[Path, dict[str, Any]] | None:
    """Return folder and options of a name like `notes(by=sentences)`; None where there is no such folder."""
    if is_dir(name):
        return Path(name), {}
    place, bracket, rest = name.rpartition("(")
    if not bracket or not rest.endswith(")") or not is_dir(place.strip()):
        return None
    return Path(place.strip()), spec_parser.parse(f"folder({rest}")[1]


def passages(
    folder: Path, by: str = "paragraphs", size: int | None = None, overlap: int = 0, model: str | None = None
) -> list[Passage]:
    """Return the distinct passages of all documents of a folder, in the order of the documents' names.

    Raises BadInput for invalid options, a document that cannot be read, and a folder without text.
    """
    if by not in SIZES:
        raise not_allowed("by", by, SIZES)
    size = SIZES[by] if size is None else size
    for name, number, least in (("size", size, int(by != "paragraphs")), ("overlap", overlap, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise BadInput(f"{name} is {format_value(number)}: a whole number of at least {least} is needed")
    if overlap and overlap >= size:
        raise BadInput(f"overlap is {overlap}: it has to be less than size, {size}, of sentences, words or tokens")
    if (by == "tokens") != (model is not None):
        raise BadInput(f"by is {by} and model is {format_value(model)}: by=tokens, and that alone, needs model=NAME")
    documents = sorted(path for path in folder.rglob("*") if path.suffix.lower() in DOCUMENTS and path.is_file())
    cuts = [
        (path.stem, piece.strip()) for path in documents for piece in _pieces(_text(path), by, size, overlap, model)
    ]
    found = list(dict.fromkeys(Passage(title, piece) for title, piece in cuts if piece))
    if not found:
        raise BadInput(f"{shorten(folder)} holds no text: documents end in {', '.join(DOCUMENTS)}")
    return found


def questions(folder: Path) -> Path:
    """Return the path of a folder's file of questions. Raises BadInput where there is none, or several."""
    held = sorted(path for path in folder.iterdir() if path.name.endswith(files.ENDINGS))
    if not held:
        raise BadInput(
            f"no questions about {folder}: write them to {folder / 'questions.jsonl'}, a line each: {EXAMPLE}"
        )
    if len(held) > 1:
        names = ", ".join(path.name for path in held)
        raise BadInput(
            f"{shorten(folder)} needs one file of questions ({', '.join(files.ENDINGS)}); there are: {names}"
        )
    return held[0]


def samples(folder: Path, options: dict[str, Any], answered: bool = True, number: int | None = None) -> list[Sample]:
    """Return the questions of a folder; those without passages get the `number` most similar ones of its documents."""
    if unknown := set(options) - set(OPTIONS):
        raise not_allowed("option of a folder", unknown.pop(), OPTIONS)
    file = questions(folder)
    records = files.records(file)
    lacking = [i for i, one in enumerate(records) if isinstance(one, dict) and not set(one) & set(files.PASSAGES)]
    if lacking:
        pool = passages(folder, **options)
        nearest = _nearest([str(records[i].get("question", "")) for i in lacking], pool, number or TOP)
        for i, ctxs in zip(lacking, nearest, strict=True):
            records[i] = records[i] | {"ctxs": [{"title": ctx.title, "text": ctx.text} for ctx in ctxs]}
    read = []
    for i, record in enumerate(records, 1):
        try:
            read.append(files.sample(record, f"{folder.name}-{i}", answered))
        except BadInput as problem:
            raise BadInput(f"{file}, record {i}: {problem}") from None
    return read


def _nearest(questions: list[str], pool: list[Passage], number: int) -> list[list[Passage]]:
    vectors = embedders.embed([*questions, *(f"{one.title}\n{one.text}" for one in pool)])
    alike = vectors[: len(questions)] @ vectors[len(questions) :].T
    return [[pool[i] for i in (-row).argsort(kind="stable")[:number]] for row in alike]


def _pieces(text: str, by: str, size: int, overlap: int, model: str | None) -> list[str]:
    if by == "paragraphs":
        return _paragraphs(text)
    if model is not None:
        return _tokens(text, size, overlap, assets.tokenizer_file(model))
    units = text.split() if by == "words" else re.split(r"(?<=[.!?…])\s+|\n\s*\n", text.strip())
    return [" ".join(units[start : start + size]) for start in _starts(units, size, overlap)]


def _paragraphs(text: str) -> list[str]:
    """Cut a text as `segment.text` does, but keep Markdown headings with the following text."""
    pieces, ahead = list[str](), ""
    for piece in segment.text(text, MOST):
        if HEADING.fullmatch(piece.strip()):
            ahead += piece
        else:
            pieces.append(ahead + piece)
            ahead = ""
    return [*pieces, ahead]


def _tokens(text: str, size: int, overlap: int, file: Path) -> list[str]:
    """Cut a text into passages of `size` tokens of the tokenizer in `file`; each is an exact part of the text."""
    bounds = _tokenizer(file).encode(text, add_special_tokens=False).offsets
    cuts = [bounds[start : start + size] for start in _starts(bounds, size, overlap)]
    return [text[cut[0][0] : cut[-1][1]] for cut in cuts if cut]


@cache
def _tokenizer(file: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as problem:  # tokenizers raises Exception itself for an unreadable file
        raise BadInput(f"{shorten(file)} is no tokenizer: {shorten(problem)}") from None


def _starts(units: Sequence[Any], size: int, overlap: int) -> range:
    """Return the starts of passages of `size` units; the last one ends with the text."""
    return range(0, max(1, len(units) - overlap), size - overlap)


def _text(path: Path) -> str:
    if path.suffix.lower() != ".pdf":
        return text(path)
    if find_spec("pypdf") is None:
        raise BadInput(f"{shorten(path)} needs the package pypdf: pip install pypdf")
    import pypdf

    try:
        return "\n\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
    except (OSError, ValueError, pypdf.errors.PyPdfError) as problem:
        raise BadInput(f"{shorten(path)} cannot be read: {shorten(problem)}") from None
