import gzip
import json

import pytest

from tests.refusals import refused
from workbench import data
from workbench.data import Passage, Sample
from workbench.data.sources import files, folders

OURS = {
    "id": "q1",
    "question": "Who works for Corvex Labs?",
    "answers": ["Ana Reyes", "Ana"],
    "ctxs": [{"title": "Corvex", "text": "Corvex Labs employs Ana."}, {"title": "Ana", "text": "Ana Reyes plays."}],
    "supporting_titles": ["Corvex"],
    "hops": 1,
    "kind": "single-hop",
}


def write(path, *records):
    text = json.dumps(records) if ".jsonl" not in path.name else "\n".join(map(json.dumps, records))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("ending", sorted({*files.ENDINGS} - {*files.TABLES}))
def test_every_container_gives_the_same_sample(tmp_path, ending):
    (sample,) = data.load(write(tmp_path / f"a{ending}", OURS))
    assert sample == Sample.from_json(OURS)
    assert sample.to_json() == OURS
    assert sample.ctxs[1] == Passage("Ana", "Ana Reyes plays.")


def test_json_lines_under_a_json_name_and_a_data_key_are_read(tmp_path):
    lines = tmp_path / "lines.json"
    lines.write_text(json.dumps(OURS) + "\n\n" + json.dumps(OURS))
    assert len(data.load(lines)) == 2
    (tmp_path / "keyed.json").write_text(json.dumps({"version": 1, "data": [OURS]}))
    assert len(data.load(tmp_path / "keyed.json")) == 1


BASE = {"question": "Who?", "answers": ["Ana"]}
SENTENCES = [["T", ["One.", " Two."]], ["U", ["Three."]]]
LAYOUTS = {
    "cacheblend": BASE
    | {"ctxs": [{"title": "T", "text": "one"}, {"title": "", "text": "two"}], "answers": [["Ana", "A."]]},
    "text only": BASE | {"ctxs": [{"text": "one"}, "two"]},
    "lists": BASE | {"ctxs": [["T", "one"], ["two"]]},
    "lists of sentences": BASE | {"ctxs": SENTENCES[:1]},
    "lost in the middle": BASE | {"ctxs": [{"title": "T", "text": "one", "isgold": True}], "nq_annotated_gold": {}},
    "hotpotqa": {
        "_id": "h",
        "question": "Who?",
        "answer": "Ana",
        "type": "bridge",
        "context": SENTENCES,
        "supporting_facts": [["T", 0], ["U", 0], ["T", 1]],
    },
    "hotpotqa columns": {
        "id": "h",
        "question": "Who?",
        "answer": "Ana",
        "context": {"title": ["T", "U"], "sentences": [["One."], ["Two."]]},
        "supporting_facts": {"title": ["U"], "sent_id": [0]},
    },
    "musique": {
        "id": "3hop1__1_2_3",
        "question": "Who?",
        "answer": "Ana",
        "answer_aliases": ["A."],
        "paragraphs": [
            {"idx": 0, "title": "T", "paragraph_text": "one", "is_supporting": False},
            {"idx": 1, "title": "U", "paragraph_text": "two", "is_supporting": True},
        ],
    },
    "longbench passages": {
        "input": "Who?",
        "answers": ["Ana"],
        "dataset": "hotpotqa",
        "_id": "l",
        "context": "Passage 1:\nT\nOne.\n\nPassage 2:\nU\nTwo.\nThree.\n",
    },
    "longbench text": {"input": "Who?", "answers": ["Ana"], "context": "One.\n\nTwo."},
    "kilt": {
        "id": "k",
        "input": "Who?",
        "output": [
            {"answer": "Ana", "provenance": [{"title": "T", "text": "one"}]},
            {"provenance": [{"title": "U", "text": "two"}]},
            {"answer": "A. Reyes"},
        ],
    },
}
EXPECTED = {  # answers, passages, supporting titles
    "cacheblend": (("Ana", "A."), [("T", "one"), ("", "two")], ()),
    "text only": (("Ana",), [("", "one"), ("", "two")], ()),
    "lists": (("Ana",), [("T", "one"), ("", "two")], ()),
    "lists of sentences": (("Ana",), [("T", "One. Two.")], ()),
    "lost in the middle": (("Ana",), [("T", "one")], ("T",)),
    "hotpotqa": (("Ana",), [("T", "One. Two."), ("U", "Three.")], ("T", "U")),
    "hotpotqa columns": (("Ana",), [("T", "One."), ("U", "Two.")], ("U",)),
    "musique": (("Ana", "A."), [("T", "one"), ("U", "two")], ("U",)),
    "longbench passages": (("Ana",), [("T", "One."), ("U", "Two.\nThree.")], ()),
    "longbench text": (("Ana",), [("", "One."), ("", "Two.")], ()),
    "kilt": (("Ana", "A. Reyes"), [("T", "one"), ("U", "two")], ("T", "U")),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts_are_recognised(tmp_path, name):
    (sample,) = data.load(write(tmp_path / "a.jsonl", LAYOUTS[name]))
    assert (sample.answers, [(p.title, p.text) for p in sample.ctxs], sample.supporting_titles) == EXPECTED[name]
    assert sample.question == "Who?"
    assert sample.id


def test_kinds_and_hops_are_those_of_the_source(tmp_path):
    (musique,) = data.load(write(tmp_path / "a.jsonl", LAYOUTS["musique"]))
    (ours,) = data.load(write(tmp_path / "b.jsonl", OURS | {"id": "4hop3__1", "hops": 0, "kind": ""}))
    (hotpot,) = data.load(write(tmp_path / "c.jsonl", LAYOUTS["hotpotqa"]))
    assert [(each.kind, each.hops) for each in (musique, ours, hotpot)] == [("3hop", 3), ("4hop", 4), ("bridge", 2)]


def test_a_corpus_is_the_whole_file_also_without_answers(tmp_path):
    path = write(tmp_path / "a.jsonl", *(OURS | {"id": f"{i}", "answers": []} for i in range(9)))
    assert len(data.corpus(path, samples=2, passages=1)) == 9
    assert sum(len(each.ctxs) for each in data.corpus(path, samples=2, passages=1)) == 18


@pytest.mark.parametrize(
    "record, message",
    [
        ({k: v for k, v in OURS.items() if k != "answers"}, "line 2: field 'answers' is missing"),
        (OURS | {"answers": []}, "line 2: field 'answers' is empty"),
        (OURS | {"answers": "Ana"}, "line 2: field 'answers' is str"),
        (OURS | {"answers": [" "]}, "line 2: field 'answers' holds ' '"),
        ({k: v for k, v in OURS.items() if k != "ctxs"}, "line 2: field 'ctxs' is missing"),
        (OURS | {"ctxs": []}, "line 2: field 'ctxs' is empty"),
        (OURS | {"ctxs": [3]}, r"line 2: field 'ctxs\[0\]'"),
        (OURS | {"ctxs": [{"title": "T", "text": None}]}, r"line 2: field 'ctxs\[0\].text' is NoneType"),
        ({k: v for k, v in OURS.items() if k != "question"}, "line 2: field 'question' is missing"),
        ({"input": "Who?", "context": "One."}, "line 2: field 'answers' is missing"),
        ({"input": "Who?", "output": [{"provenance": []}]}, "line 2: field 'answers' is empty"),
        (
            {"input": "Who?", "output": [{"answer": "Ana", "provenance": [{"title": "T"}]}]},
            "line 2: field 'ctxs' is empty",
        ),
        ({"question": "Who?", "answer": "Ana", "paragraphs": [3]}, r"line 2: field 'ctxs\[0\].text' is NoneType"),
        (["Ana"], "line 2: a record is an object, not list"),
    ],
)
def test_a_bad_record_is_named_by_file_line_and_field(tmp_path, record, message):
    said = refused(message, data.load, write(tmp_path / "bad.jsonl", OURS, record), samples=1, answered=True)
    assert str(tmp_path / "bad.jsonl") in said


def test_answers_may_be_missing_or_numbers_and_cells_apart_by_semicolons(tmp_path):
    record = {"question": "When?", "context": "It was 1989."}
    (sample,) = data.load(write(tmp_path / "unanswered.jsonl", record))
    assert sample.answers == () and data.load(record) == data.load([record])
    assert data.load({**record, "answer": 1989})[0].answers == ("1989",)
    (tmp_path / "semicolons.csv").write_text("question;answers;context\nWhen?;1989;It was 1989.\n")
    (sample,) = data.load(tmp_path / "semicolons.csv")
    assert sample.answers == ("1989",) and sample.ctxs[0].text == "It was 1989."


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.jsonl", b'{"id": 1}\n{"id', "line 1: field 'question' is missing"),
        ("a.jsonl", b'{"id', "line 1: not JSON"),
        ("a.json", b'[{"id": 1},\n{"id', "line 2: not JSON"),
        ("a.json", b"[]", "holds no records"),
        ("a.jsonl", b"", "holds no records"),
        ("a.jsonl.gz", gzip.compress(json.dumps(OURS).encode())[:-9], "cannot be read"),
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
        ("a.jsonl", b"\xff\xfe\x00", "a.jsonl cannot be read: it is no UTF-8"),
        ("a.xml", b"x", r"ends in \.json"),
        ("gone.jsonl", None, "no such file"),
        ("empty.csv", b"", "is empty"),
        ("no-such-set", None, "unknown data 'no-such-set': allowed are lab"),
        ("x", None, "unknown data"),
    ],
)
def test_a_file_that_is_broken_of_another_kind_or_not_there_is_refused(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(message, data.load, name)


def test_a_draw_depends_on_the_seed_only_and_keeps_the_order(tmp_path):
    path = write(tmp_path / "a.jsonl", *(OURS | {"id": f"{i:03}"} for i in range(50)))
    drawn = [sample.id for sample in data.load(path, samples=10, seed=1)]
    assert drawn == sorted(drawn) == [sample.id for sample in data.load(path, samples=10, seed=1)]
    assert drawn != [sample.id for sample in data.load(path, samples=10, seed=2)]
    assert len(data.load(path, samples=99)) == 50


def test_fewer_passages_keep_the_supporting_ones_in_order(tmp_path):
    ctxs = [{"title": t, "text": t} for t in "abcdef"]
    path = write(tmp_path / "a.jsonl", OURS | {"ctxs": ctxs, "supporting_titles": ["e", "b"]})
    assert [p.title for p in data.load(path, passages=3)[0].ctxs] == ["a", "b", "e"]
    assert [p.title for p in data.load(path, passages=2)[0].ctxs] == ["b", "e"]


def test_a_markdown_heading_stays_with_what_follows_it(tmp_path):
    wanted = ["# Bikes\n\nThe Velox has gears.", "## Boats\n\n### Old\n\nThe Marlin floats.", "# End"]
    (tmp_path / "a.md").write_text("\n\n".join(wanted))
    assert [one.text for one in folders.passages(tmp_path)] == wanted
    assert [one.text for one in folders.read_document(tmp_path / "a.md").ctxs] == wanted
