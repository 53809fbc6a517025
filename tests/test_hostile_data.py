"""Data files, layouts and JSON from strangers end in one sentence, or are read as what they are."""

import gzip
import json

import pytest

from tests.refusals import refused
from workbench import data
from workbench.core.errors import BadInput
from workbench.core.utils import json_text
from workbench.data import layouts
from workbench.data.layouts import LAB, Layout
from workbench.data.sources import files, folders

OURS = {"question": "q", "answers": ["a"], "ctxs": [{"title": "t", "text": "x"}]}
HOTPOT = {"question": "q", "answer": "a", "context": [["t", ["s"]]], "supporting_facts": [["t", 0]]}
KILT = {"input": "q", "output": [{"answer": "a", "provenance": [{"title": "t", "text": "x"}]}]}
MUSIQUE = {"id": "2hop__1", "question": "q", "answer": "a", "paragraphs": [{"title": "t", "paragraph_text": "x"}]}
INFINITY = float("inf")

WRONG = {
    "hops": (OURS, "hops", ["three", -1, 1.5, INFINITY, [2], {"a": 1}, True, 10**30]),
    "id": (OURS, "id", [{"a": 1}, [1]]),
    "kind": (OURS, "kind", [{"a": 1}, [1]]),
    "supporting_titles": (OURS, "supporting_titles", [5, 1.5, True, "abc", [[1]], [None], {"a": 1}]),
    "answers": (OURS, "answers", [5, "abc", [None], [{}], [[]], [""], [INFINITY]]),
    "ctxs": (OURS, "ctxs", [5, [5], [None], [{"text": 5}], [{"title": {"a": 1}, "text": "a"}], [["t", [1]]], [[]]]),
    "context": (HOTPOT, "context", [[5], [["t", 5]], {"title": 5, "sentences": 5}, {"title": ["t"], "sentences": []}]),
    "supporting_facts": (HOTPOT, "supporting_facts", [5, "abc", [5], [None], [[]], {"title": 5}, [{"a": 1}]]),
    "paragraphs": (MUSIQUE, "paragraphs", [[5], [{}], [{"title": [1], "paragraph_text": "x", "is_supporting": 1}]]),
    "answer_aliases": (MUSIQUE, "answer_aliases", [5, "abc", [None], {"a": 1}]),
    "output": (KILT, "output", [5, [5], ["a"], [{}], [{"answer": "a", "provenance": 5}]]),
    "provenance": (KILT, "output", [[{"answer": "a", "provenance": [bad]}] for bad in (5, "x", {"text": 5})]),
    "a KILT record's ctxs": (KILT, "ctxs", [5, "a", [5], {"a": 1}]),
}
CASES = [(record | {field: value}) for record, field, values in WRONG.values() for value in values]


@pytest.mark.parametrize("record", CASES, ids=[json.dumps(case)[:90] for case in CASES])
def test_a_field_of_a_wrong_type_is_named(record, tmp_path):
    (tmp_path / "r.jsonl").write_text(json.dumps(OURS) + "\n" + json.dumps(record))
    refused(r"r\.jsonl, line 2: (field|the question)", files.read, tmp_path / "r.jsonl")


TEXTS = {
    "nested too deep": "[" * 100_000 + "]" * 100_000,
    "nested too deep inside": json.dumps(OURS)[:-1] + ', "x": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    "too many digits": json.dumps(OURS)[:-1] + ', "x": ' + "9" * 5000 + "}",
    "half a character": json.dumps(OURS | {"question": "\ud800"}),
    "'hops' is inf": json.dumps(OURS | {"hops": INFINITY}),
    "'hops' is nan": json.dumps(OURS | {"hops": float("nan")}),
}


@pytest.mark.parametrize("ending", ["json", "jsonl"])
@pytest.mark.parametrize("why", TEXTS)
def test_json_that_breaks_readers_is_refused(why, ending, tmp_path):
    (tmp_path / f"r.{ending}").write_text(TEXTS[why])
    refused(why.removesuffix(" inside"), files.read, tmp_path / f"r.{ending}")


def test_a_whole_character_of_two_halves_is_read(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(OURS | {"question": "😀"}))
    assert files.read(tmp_path / "r.json")[0].question == "😀"


def test_a_gzip_file_damaged_anywhere_is_refused(tmp_path):
    whole = gzip.compress(json.dumps([OURS] * 200).encode(), mtime=0)
    for i in range(10, len(whole) - 4):
        (tmp_path / "g.json.gz").write_bytes(whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :])
        refused(r"g\.json\.gz", files.read, tmp_path / "g.json.gz")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".json", "x" * 5000 + ".txt", "a\0b.json", "a\ud800.json"])
def test_a_name_that_no_file_can_have_is_refused(name):
    for call in (data.load, data.corpus, layouts.named, lambda text: folders.read(f"{text}.txt")):
        with pytest.raises(BadInput) as refused:
            call(name)
        assert len(str(refused.value)) < 1000


FIELDS = ["{}", "{0}", "{nope}", "{title.__class__}", "{text.__class__.__mro__}", "{text[0]}", "{text!r}", "{text!s}"]
FIELDS += ["{question:>10}", "{answer:{title}}", "{", "}", "{ text }", "{__class__}"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("part", ["passage", "question", "answer"])
def test_a_field_of_a_template_that_is_not_plainly_one_of_its_own_is_refused(part, field):
    record = LAB.to_json()
    refused(f"layout template {part}", Layout.from_json, record | {part: record[part] + field})


def test_braces_that_are_doubled_are_text():
    assert "{x}" in Layout.from_json(LAB.to_json() | {"passage": "{text}{{x}}\n"}).passage.format(text="a")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"bos":' + "9" * 5000 + "}", '{"name": "\\ud800"}', "[]", "{"])
def test_a_broken_layout_file_is_one_sentence(text, tmp_path):
    (tmp_path / "layout.json").write_text(text)
    refused(r"layout file .*layout\.json", layouts.named, str(tmp_path / "layout.json"))


def test_a_json_file_of_another_kind_names_what_is_needed(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    assert json_text.read(tmp_path / "a.json", list) == [1]
    refused(r"a\.json is corrupt: an object is needed, not list", json_text.read, tmp_path / "a.json")
    refused(r"b\.json is missing", json_text.read, tmp_path / "b.json")
