"""Question files in published layouts, which are recognised record by record: JSON or JSON lines, gzipped or not.

ours, CacheBlend, FiD,     {question, answers, ctxs: [{title, text}]}; a passage may also be [title, text], a text, or
NQ lost-in-the-middle      [title, [sentences]]
HotpotQA, 2WikiMultihopQA  {question, answer, context: [[title, [sentences]]], supporting_facts: [[title, i]]}
LongBench                  {input, context: text, answers}; the context is cut at "Passage N:", else by `segment.text`
MuSiQue                    {id: "2hop__…", question, answer, answer_aliases, paragraphs: [{title, paragraph_text,
                           is_supporting}]}; by its id, also in our layout, the number of hops is the kind
KILT                       {input, output: [{answer, provenance: [{title, text}]}]}
SQuAD                      {question, context: text, answers: {text: […]}}; the text is cut as LongBench's
Ragas                      {user_input, retrieved_contexts: [text], reference}; also question, contexts, ground_truth
CSV, TSV, parquet          a row a question, with columns of these names; a cell that is a JSON list or object is
                           read as one, answers of a plain cell are divided by "|"
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, format_value, shorten
from workbench.core.utils import json_text
from workbench.core.utils.annotations import fits_annotation
from workbench.core.utils.files import is_file, write_text
from workbench.core.utils.json_text import NotJson
from workbench.data import segment
from workbench.data.sample import Sample, nonempty_list, plain, titles, words

ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".csv", ".tsv", ".parquet")
TABLES = (".csv", ".tsv", ".parquet")
ALIASES = {"contexts": "ctxs", "retrieved_contexts": "ctxs", "passages": "ctxs", "documents": "ctxs"}
ALIASES |= {
    "docs": "ctxs",
    "user_input": "question",
    "query": "question",
    "ground_truth": "answer",
    "reference": "answer",
}
FIELDS = {*ALIASES, "question", "input", "answer", "answers", "ctxs", "context", "paragraphs", "output"}
FIELDS |= {"id", "kind", "type", "hops", "supporting_titles"}
PASSAGES = ("ctxs", "context", "paragraphs", "output", *(old for old, new in ALIASES.items() if new == "ctxs"))
BESIDE = "; questions without passages are read from a folder that also holds documents"
Record = dict[str, Any]


def read_samples(path: str | Path, answered: bool = True) -> list[Sample]:
    """Return all samples of a file; with `answered` False, questions may lack answers.

    Raises BadInput for a file that is missing, empty or broken, and for the first record without a question, an answer
    or a passage; the message names the file, the line (or the record of a JSON array) and the field.
    """
    path = Path(path)
    samples = []
    for where, number, record in _records(path):
        try:
            samples.append(sample(record, f"{path.name.split('.')[0]}-{number}", answered))
        except BadInput as problem:
            raise BadInput(f"{path}, {where}: {problem}") from None
    if not samples:
        raise BadInput(f"{path} holds no records")
    return samples


def records(path: Path) -> list[Any]:
    """Return all records of a file, unconverted. Raises BadInput for a file that cannot be read."""
    return [record for _, _, record in _records(path)]


def _records(path: Path) -> Iterator[tuple[str, int, Any]]:
    if path.name.endswith(TABLES):
        yield from ((f"row {i}", i, record) for i, record in enumerate(_rows(path), 1))
        return
    text = _text(path)
    if ".jsonl" not in path.name:
        try:
            whole = json_text.loads(text)
        except NotJson as problem:
            if not problem.is_more:  # several records: JSON lines under a different suffix
                raise BadInput(f"{path}, line {problem.line}: {problem}") from None
        except BadInput as problem:
            raise BadInput(f"{path} cannot be read: {problem}") from None
        else:
            if isinstance(whole, dict) and isinstance(whole.get("data"), list):
                whole = whole["data"]
            records = whole if isinstance(whole, list) else [whole]
            yield from ((f"record {i}", i, record) for i, record in enumerate(records, 1))
            return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", number, json_text.loads(line)
        except BadInput as problem:
            raise BadInput(f"{path}, line {number}: {problem}") from None


def _rows(path: Path) -> Iterator[Record]:
    """Yield the rows of a table; cells that hold JSON are read, empty ones left out."""
    import pandas as pd  # slow to import, and only for tables

    if not is_file(path):
        raise BadInput(f"{shorten(path)}: no such file")
    if not path.stat().st_size:
        raise BadInput(f"{shorten(path)} is empty: a row of column names and one per question are needed")
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, sep=_separator(path), dtype=str, encoding="utf-8-sig")
    except (OSError, ValueError) as problem:  # pandas and Arrow raise subclasses of ValueError
        raise unreadable(path, problem) from None
    for row in table.to_dict("records"):
        cells = ((_field(name), cell) for name, cell in row.items())
        yield {name: read for name, cell in cells if (read := _cell(name, cell)) is not None}


def _field(name: Any) -> str:
    """Return a field's name, in lower case if it is then a known one."""
    return lower if (lower := str(name).casefold()) in FIELDS else str(name)


def _separator(path: Path) -> str:
    """Return what separates the cells of a text table: a semicolon if its head has some, and no comma."""
    if path.suffix == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig") as file:
        head = file.readline()
    return ";" if ";" in head and "," not in head else ","


def _cell(name: str, cell: Any) -> Any:
    cell = as_json(cell)
    if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):
        try:
            return json_text.loads(cell)
        except BadInput:
            return cell
    if isinstance(cell, str) and ALIASES.get(name, name) == "ctxs":
        return [cell]
    return [part.strip() for part in cell.split("|")] if name == "answers" and isinstance(cell, str) else cell


def as_json(value: Any) -> Any:
    """Return a value of a table or of `datasets` as plain JSON: lists for arrays, None for nan."""
    if callable(tolist := getattr(value, "tolist", None)):
        value = tolist()
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): as_json(one) for name, one in value.items()}
    return None if isinstance(value, float) and value != value else value


def _text(path: Path) -> str:
    if not path.name.endswith(ENDINGS):
        asked = (
            "; passages without questions are for `workbench store encode`" if path.suffix in (".txt", ".md") else ""
        )
        raise BadInput(f"{shorten(path)}: a data file ends in {', '.join(ENDINGS)}{asked}")
    if not is_file(path):
        raise BadInput(f"{shorten(path)}: no such file")
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as problem:  # gzip reports a cut file as EOFError
        raise unreadable(path, problem) from None


def unreadable(path: Path, problem: Exception) -> BadInput:
    """Return what to raise for a file that cannot be read."""
    why = "it is no UTF-8 text: save it as UTF-8" if isinstance(problem, UnicodeDecodeError) else shorten(problem)
    return BadInput(f"{shorten(path)} cannot be read: {why}")


def sample(record: Any, name: str, answered: bool = True) -> Sample:
    """Return the sample of one record, with id `name` if it has none. Raises BadInput that names the field."""
    if not isinstance(record, dict):
        raise BadInput(f"a record is an object, not {type(record).__name__}")
    given = ", ".join(map(str, record))
    record = {_field(name): value for name, value in record.items()}
    record = {field if ALIASES.get(field) in record else ALIASES.get(field, field): x for field, x in record.items()}
    if not {"question", "input"} & record.keys():
        raise BadInput(f"field 'question' is missing: there are {shorten(given) or 'none'}")
    if not {*PASSAGES} & record.keys():
        raise BadInput(f"field 'ctxs' is missing, the list of passages: there are {shorten(given)}{BESIDE}")
    if not answered and not any(record.get(field) for field in ("answers", "answer", "output")):
        return replace(sample(record | {"answers": ["?"]}, name, True), answers=())
    if isinstance(record.get("ctxs"), str) and "question" in record:
        record["ctxs"] = [record["ctxs"]]
    reader = next((reader for fits, reader in LAYOUTS if fits(record)), _passages_listed)
    return Sample.from_json({"id": record.get("id") or record.get("_id") or name} | reader(record))


def _passages_listed(record: Record) -> Record:
    ctxs, answers = nonempty_list(record, "ctxs"), _answers(record)
    gold = [str(ctx["title"]) for ctx in ctxs if isinstance(ctx, dict) and ctx.get("isgold") and ctx.get("title")]
    named = titles(record) or tuple(gold)
    musique = re.match(r"([2-4])hop\d?__", str(record.get("id")))  # its ids begin with the number of hops
    return {
        "question": words(record, "question"),
        "answers": answers,
        "ctxs": [_passage(ctx, i) for i, ctx in enumerate(ctxs)],
        "supporting_titles": named,
        "hops": record.get("hops") or (int(musique[1]) if musique else max(1, len(named))),
        "kind": record.get("kind") or record.get("type") or (f"{musique[1]}hop" if musique else ""),
    }


def _hotpotqa(record: Record) -> Record:
    context, facts = record["context"], record.get("supporting_facts") or []
    if isinstance(context, dict):  # columns, as on the Hub
        columns = [_listed(context.get(name) or [], f"context.{name}") for name in ("title", "sentences")]
        if len(columns[0]) != len(columns[1]):
            raise BadInput(f"field 'context' has {len(columns[0])} titles for {len(columns[1])} lists of sentences")
        context = [list(pair) for pair in zip(*columns, strict=True)]
    if isinstance(facts, dict):
        listed = _listed(facts.get("title") or [], "supporting_facts.title")
    else:
        pairs = [_listed(fact, "supporting_facts", 1) for fact in _listed(facts, "supporting_facts")]
        listed = [fact[0] for fact in pairs]
    named = titles({"supporting_titles": listed})
    return _passages_listed(record | {"ctxs": context, "supporting_titles": list(dict.fromkeys(named))})


def _musique(record: Record) -> Record:
    ctxs = [ctx if isinstance(ctx, dict) else {} for ctx in nonempty_list(record, "paragraphs")]
    gold = [plain(ctx.get("title"), "paragraphs.title") for ctx in ctxs if ctx.get("is_supporting")]
    read = [{"title": ctx.get("title"), "text": ctx.get("paragraph_text")} for ctx in ctxs]
    answers = [words(record, "answer"), *_listed(record.get("answer_aliases") or [], "answer_aliases")]
    named = list(dict.fromkeys(filter(None, gold)))
    return _passages_listed(record | {"ctxs": read, "supporting_titles": named, "answers": answers})


def _longbench(record: Record) -> Record:
    cuts = re.split(r"(?m)^Passage \d+:\n", words(record, "context"))
    if len(cuts) > 1:
        ctxs = [cut.strip().partition("\n")[::2] for cut in cuts[1:]]
    else:
        ctxs = [("", piece.strip()) for piece in segment.text(record["context"])]
    passages = [{"title": title, "text": text} for title, text in ctxs]
    question = words(record, "question" if "question" in record else "input")
    about = {"title": record.get("title"), "kind": record.get("dataset") or record.get("kind")}
    if about["title"] and len(passages) == 1:
        passages[0]["title"] = passages[0]["title"] or str(about["title"])
    return {"question": question, "answers": _answers(record), "ctxs": passages, "kind": about["kind"]}


def _kilt(record: Record) -> Record:
    outputs = [_object(output, "output") for output in nonempty_list(record, "output")]
    lists = [_listed(output.get("provenance") or [], "output.provenance") for output in outputs]
    sources = [_object(source, "output.provenance") for source in chain.from_iterable(lists)]
    with_text = {json.dumps(source, sort_keys=True): source for source in sources if source.get("text")}
    ctxs = _listed(record.get("ctxs") or list(with_text.values()), "ctxs")
    named = [plain(source["title"], "output.provenance.title") for source in sources if source.get("title")]
    return {
        "question": words(record, "input"),
        "answers": _answers({"answers": [output["answer"] for output in outputs if output.get("answer")]}),
        "ctxs": [_passage(ctx, i) for i, ctx in enumerate(ctxs)],
        "supporting_titles": list(dict.fromkeys(named)),
    }


def _listed(value: Any, field: str, least: int = 0) -> list[Any]:
    if not isinstance(value, list) or len(value) < least:
        raise BadInput(
            f"field '{field}' holds {format_value(value)}; a list{' of at least one' * bool(least)} is needed"
        )
    return value


def _object(value: Any, field: str) -> Record:
    if not isinstance(value, dict):
        raise BadInput(f"field '{field}' holds {format_value(value)}; objects are needed")
    return value


LAYOUTS: tuple[tuple[Callable[[Record], bool], Callable[[Record], Record]], ...] = (
    (lambda record: isinstance(record.get("context"), str), _longbench),
    (lambda record: isinstance(record.get("context"), list | dict), _hotpotqa),
    (lambda record: isinstance(record.get("paragraphs"), list), _musique),
    (lambda record: "output" in record and "input" in record, _kilt),
)


def _answers(record: Record) -> list[str]:
    if isinstance(record.get("answers"), dict):
        record = {"answers": record["answers"].get("text")}
    if "answers" not in record and isinstance(record.get("answer"), str):
        return [words(record, "answer")]
    if "answers" not in record and _is_answer(record.get("answer")):
        return [str(record["answer"])]
    listed = (answer if isinstance(answer, list) else [answer] for answer in nonempty_list(record, "answers"))
    flat = list(chain.from_iterable(listed))
    if bad := [alias for alias in flat if not _is_answer(alias)]:
        raise BadInput(f"field 'answers' holds {format_value(bad[0])}; each answer is a text")
    return nonempty_list({"answers": [str(alias) for alias in flat]}, "answers")


def _is_answer(alias: Any) -> bool:
    if isinstance(alias, str):
        return bool(alias.strip())
    return isinstance(alias, int | float) and math.isfinite(alias)


def _passage(ctx: Any, i: int) -> dict[str, str]:
    match ctx:
        case str(text) | [str(text)]:
            title = ""
        case {"text": text}:
            title = plain(ctx.get("title"), f"ctxs[{i}].title")
        case [str(title), text]:
            pass
        case _:
            raise BadInput(f"field 'ctxs[{i}]' is neither a text, {{title, text}} nor [title, text]")
    if isinstance(text, list) and all(isinstance(sentence, str) for sentence in text):
        text = re.sub(r"\s+", " ", " ".join(text)).strip()
    if not isinstance(text, str):
        raise BadInput(f"field 'ctxs[{i}].text' is {type(text).__name__}; a text is needed")
    return {"title": str(title), "text": text}


def samples(given: Any, answered: bool = True) -> list[Sample]:
    """Return samples of a list of `Sample`s or records, a pandas.DataFrame or a `datasets.Dataset`, one a row.

    Records have the layouts of files; their passages may also be LangChain documents or LlamaIndex nodes, titled by
    `title`, `source` or `file_name` of their metadata. Raises BadInput that names the row and the field.
    """
    if callable(to_dict := getattr(given, "to_dict", None)) and hasattr(given, "columns"):
        given = to_dict("records")
    if isinstance(given, Mapping) and callable(getattr(given, "with_format", None)):  # a `datasets.DatasetDict`
        raise BadInput(f"data is a dictionary of splits: load one of them, as data[{next(iter(given), 'train')!r}]")
    if isinstance(given, Sample) or (isinstance(given, Mapping) and {"question", "input"} & {*given}):
        given = [given]
    if isinstance(given, Mapping) or not fits_annotation(given, Iterable):
        raise BadInput(f"data is {format_value(given)}: a name, a file, a data frame or a list of records is needed")
    read = []
    for number, one in enumerate(given, 1):
        record = one.to_json() if isinstance(one, Sample) else _record(one)
        try:
            read.append(sample(record, f"given-{number}", answered))
        except BadInput as problem:
            raise BadInput(f"data, row {number}: {problem}") from None
    if not read:
        raise BadInput("data holds no rows")
    return read


def save_samples(given: Any) -> str:
    """Write samples to a file in the user's cache, named by their content, and return its path; return a Path as is."""
    if isinstance(given, Path):
        return str(given)
    text = "".join(json.dumps(sample.to_json()) + "\n" for sample in samples(given, answered=False))
    from platformdirs import user_cache_path  # not needed for data in files

    folder = user_cache_path("workbench") / "data"
    path = folder / f"given-{sha256(text.encode()).hexdigest()[:12]}.jsonl"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return str(path)


def _record(row: Any) -> Any:
    """Return a row without empty fields; anything but a mapping is returned unchanged."""
    if not isinstance(row, Mapping):
        return row
    with_records = {name: _documents(value) if name in PASSAGES else value for name, value in row.items()}
    return {name: value for name, value in as_json(with_records).items() if value is not None}


def _documents(passages: Any) -> Any:
    """Convert LangChain documents and LlamaIndex nodes, recognised by their fields, to records."""
    if isinstance(passages, Mapping) or not fits_annotation(passages, Iterable):
        return passages
    return [_document(getattr(one, "node", one)) for one in passages]  # of a NodeWithScore, its node


def _document(one: Any) -> Any:
    text, about = getattr(one, "page_content", getattr(one, "text", None)), getattr(one, "metadata", None)
    if not isinstance(text, str) or not isinstance(about, Mapping):
        return one
    titles = (about.get(name) for name in ("title", "source", "file_name"))
    return {"title": str(next(filter(None, titles), "")), "text": text}
