"""Traces of what happened: the schema of Chrome's format, and files that are refused."""

import json
from html.parser import HTMLParser

import pytest
import torch

from tests.random_models import Letters, model_of, prompt_of
from tests.refusals import refused
from workbench import KV, Block, Plan, Prompt, Tiles
from workbench.app.cli import app
from workbench.core.utils import html_views
from workbench.experiments.latency import trace
from workbench.methods.generation import generate
from workbench.methods.serving import Scheduler
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.store import HostTier, TieredStore
from workbench.store.events import Event, Events

jsonschema = pytest.importorskip("jsonschema")
NUMBER = {"type": "number", "minimum": 0}
BASE = {"name": {"type": "string"}, "pid": {"type": "integer"}, "tid": {"type": "integer"}, "ts": NUMBER}
SCHEMA = {  # of "Trace Event Format"
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "ph", "pid", "tid", "ts", "args"],
                "properties": BASE | {"args": {"type": "object"}},
                "oneOf": [
                    {"properties": {"ph": {"const": "X"}, "dur": NUMBER}, "required": ["dur"]},
                    {"properties": {"ph": {"const": "i"}, "s": {"enum": ["t", "p", "g"]}}, "required": ["s"]},
                    {"properties": {"ph": {"enum": ["b", "e"]}}, "required": ["id", "cat"]},
                    {"properties": {"ph": {"const": "M"}, "name": {"enum": ["process_name", "thread_name"]}}},
                ],
            },
        },
    },
}
MODEL = model_of()


@pytest.fixture(scope="module")
def events():
    """Of three requests over tiers of which the first holds one block."""
    events = Events()
    store = TieredStore([HostTier(1 << 13), HostTier(1 << 20, name="below")], events=events)
    scheduler = Scheduler(ContiguousEngine(MODEL, Letters(), store), batch=2, events=events)
    scheduler.run([prompt_of(6, 4, 3), prompt_of(6, 4, 2), prompt_of(9, 6, 2, seed=1)], 3)
    scheduler.close()
    return list(events)


def test_events_of_a_run_are_whole_and_in_order(events):
    by_request = {name: [e.what for e in events if e.request == name] for name in "012"}
    for whats in by_request.values():
        order = ["arrive", "wait", "load", "ready", "prefill", "first_token", "decode", "finish"]
        assert [what for what in dict.fromkeys(whats) if what in order] == order
        assert whats.count("wait") == 2
    assert any(e.what == "encode" and e.seconds > 0 for e in events)
    assert {e.what for e in events if e.key} >= {"hit", "miss", "write", "evict"}


def test_a_trace_is_of_chromes_format(events):
    traced = trace.chrome(events)
    jsonschema.validate(traced, SCHEMA)
    entries = traced["traceEvents"]
    names = {e["args"]["name"] for e in entries if e["ph"] == "M"}
    assert {"machine", "requests", "engine", "loader 0", "request 0", "request 2"} <= names
    open_ids = [e["id"] for e in entries if e["ph"] == "b"]
    assert open_ids == sorted(set(open_ids)) and sorted(e["id"] for e in entries if e["ph"] == "e") == open_ids
    assert {e["ph"] for e in entries} == {"M", "X", "i", "b", "e"}


def test_spans_of_one_track_never_overlap_in_part(events):
    """Viewers draw complete events of a track as a stack: they follow one another, or lie within each other."""
    tracks = {}
    for entry in trace.chrome(events)["traceEvents"]:
        if entry["ph"] == "X":
            tracks.setdefault((entry["pid"], entry["tid"]), []).append((entry["ts"], entry["ts"] + entry["dur"]))
    assert len(tracks) >= 5
    for spans in tracks.values():
        ends: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin + 1e-3:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-3
            ends.append(end)


def test_a_record_with_receipts_is_traced(tmp_path, capsys):
    receipts = [g.receipt for g in generate(MODEL, Letters(), [prompt_of(6, 4, 3), prompt_of(6, 2)], "block")]
    rows = [{"id": f"q{i}", "at": 1.0, "receipt": receipt.to_json()} for i, receipt in enumerate(receipts)]
    events = trace.of_receipts(json.loads(json.dumps(rows)))
    jsonschema.validate(trace.chrome(events), SCHEMA)
    assert {e.request for e in events} == {"q0", "q1"} and {"load", "encode", "prefill", "decode"} <= {
        e.what for e in events
    }
    ended = [e.at for e in events if e.what == "finish"]
    assert ended == [pytest.approx(1.0 + sum(receipts[0].seconds.values()))] * 2
    record, out = tmp_path / "record.json", tmp_path / "trace.json"
    record.write_text(json.dumps({"trial": {}, "receipts": rows}))
    app(["trace", str(record), "--out", str(out)], standalone_mode=False)
    jsonschema.validate(json.loads(out.read_text()), SCHEMA)
    assert "of 2 requests" in capsys.readouterr().out
    for arguments in ([str(tmp_path / "none.json")], [str(record), "--out", str(tmp_path)]):
        with pytest.raises(SystemExit) as ended:
            app(["trace", *arguments])
        assert ended.value.code == 2
    assert capsys.readouterr().err.count("error: ") == 2


@pytest.mark.parametrize(
    "content, words",
    [
        ("[1, 2]", "does not hold the record of a trial"),
        ('{"trial": {}}', "without receipts"),
        ('{"trial": {}, "receipts": [{}]}', "receipt 0 lacks"),
        ('{"eve', "no JSON file"),
        ("[" * 100_000, "no JSON file"),
        ("[" + "9" * 5000 + "]", "no JSON file"),
    ],
)
def test_other_files_are_refused_in_one_sentence(content, words, tmp_path):
    file = tmp_path / "record.json"
    file.write_text(content)
    refused(words, trace.read_trace, file)


def test_a_recorder_keeps_so_many_events_and_counts_the_others():
    events = Events(lambda: 0.0, most=2)
    for _ in range(3):
        events.add("run")
    assert len(events) == 2 and events.dropped == 1
    refused("event 'nap'", Event, "nap", 0.0)


# --- What notebooks show of the nouns: short, in the theme of the page, and without markup of users
EVIL = '<img src=x onerror="alert(1)"><b>'
PROMPT = Prompt((Block((1, 2, 3), EVIL), Block(tuple(range(40)), "passage"), Block((4, 5))))
TENSORS = [torch.zeros(2, 5, 8), torch.zeros(2, 5, 8)]
ALLOWED = {"p", "b", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect"}


class Tags(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def shown(value) -> str:
    text = value._repr_html_()
    assert set(Tags(text).tags) <= ALLOWED and len(text) < 400_000
    return " ".join(Tags(text).texts)


def test_blocks_and_prompts_show_their_places():
    assert EVIL in shown(PROMPT.blocks[0]) and "tokens 40" in shown(PROMPT.blocks[1])
    text = shown(PROMPT)
    assert "Prompt of 45 tokens in 3 blocks" in text and EVIL in text and "question" in text and "43" in text


def test_a_kv_shows_shapes_and_bytes():
    text = shown(KV(TENSORS, TENSORS, start=7).lock())
    assert "positions 7 to 11" in text and "2 of 2 heads × 8 channels" in text and "1.2 KiB" in text
    assert "float32 on cpu" in text and "read-only" in text


def test_a_plan_shows_rows_as_ranges():
    text = shown(Plan(torch.tensor([0, 1, 2, 7, 9, 10]), return_queries=(0, 3), num_layers=2))
    assert "6: 0–2, 7, 9–10" in text and "sees causal" in text and "0, 3" in text and "the first 2" in text
    assert "8 more ranges" in html_views.ranges(torch.arange(0, 40, 2))


@pytest.mark.parametrize("side", [4, 1024])
def test_tiles_show_a_picture_of_bounded_size(side):
    kept = torch.ones(2, side, side, dtype=torch.bool).tril()
    text = shown(Tiles(kept, 32, columns=torch.zeros(2, side * 32, dtype=torch.bool)))
    assert f"{side:,} query tiles × {side:,} key tiles of 32 tokens" in text and "0.0% of the keys" in text
    assert Tiles(kept, 32)._repr_html_().count("<rect") <= html_views.CELLS**2


def test_a_long_table_is_cut():
    text = html_views.table("T", [(i,) for i in range(100)])
    assert "and 60 more" in text and text.count("<tr>") == 41
