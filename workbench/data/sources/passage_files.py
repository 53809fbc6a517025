"""Files of passages without questions: plain text, Markdown, JSON of {title, text} or of texts."""

from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, brief
from workbench.core.utils.files import is_file
from workbench.data import segment
from workbench.data.sample import Passage, Sample, plain
from workbench.data.sources import files

PLAIN = (".txt", ".md")
MOST = 1 << 30  # pieces that a text is cut into: all
QUESTIONS = ("question", "input", "ctxs", "context", "paragraphs")  # fields of a record of a file of questions


def read(path: str | Path) -> Sample | None:
    """Return the passages of a file as those of one sample; None for a file of something else.

    Plain text is cut as `segment.text` cuts it. Raises BadInput for a file that cannot be read, or holds no text.
    """
    path = Path(path)
    if path.suffix in PLAIN:
        ctxs = [Passage("", piece.strip()) for piece in segment.text(text(path), MOST)]
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
    return Sample(path.name.partition(".")[0], "", (), tuple(ctxs))


def _is_passage(record: Any) -> bool:
    if isinstance(record, dict):
        return isinstance(record.get("text"), str) and not any(name in record for name in QUESTIONS)
    return isinstance(record, str)


def _passage(record: Any) -> Passage:
    if isinstance(record, str):
        return Passage("", record.strip())
    return Passage(plain(record.get("title"), "title"), record["text"].strip())


def text(path: Path) -> str:
    """Return the text of a file of UTF-8. Raises BadInput for one that cannot be read."""
    if not is_file(path):
        raise BadInput(f"{brief(path)}: no such file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path} cannot be read: {problem}") from None
