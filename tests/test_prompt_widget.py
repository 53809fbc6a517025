"""A prompt one can touch: what changes on the screen becomes what is computed, and what is computed is said truly."""

import base64
import json
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from IPython.display import DisplayHandle

from tests.refusals import refused
from workbench import data, explore
from workbench.app.explore.debounce import Debounced, Superseded
from workbench.app.explore.editor import heat as prompt_heat
from workbench.app.explore.editor.choices import EditorRequest
from workbench.app.explore.editor.grid import arrangements, first_request
from workbench.app.explore.editor.html import page as whole_page
from workbench.app.explore.editor.text import PromptReader
from workbench.app.explore.live import selection_of
from workbench.core.blocks import Block, Prompt

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> 🏳️‍🌈 naïve {title.__class__}"


@pytest.fixture(scope="module")
def sample():
    return data.load("lab", 1, 0, 3)[0]


@pytest.fixture
def touched(loaded, sample):
    work, wanted, _ = first_request(loaded, sample, select="first_k", ratio=0.5, max_new_tokens=3)
    return work, wanted


def last(work, wanted):
    return dict(work.stages(wanted))


def test_both_answers_come_in_stages_and_the_chosen_method_first(touched):
    work, wanted = touched
    stages = list(work.stages(wanted))
    names = [name for name, _ in stages]
    assert names[:7] == ["text", "bill", "answers", "answers", "heat", "bill", "answers"]
    assert set(names[7:]) == {"answers"}
    first, final = stages[2][1], stages[-1][1]
    assert first["full"] is None and first["kl"] is None
    assert final["full"]["done"] and final["method"]["done"] and final["kl"] >= 0
    assert sum(one["full"] for one in final["first"]) <= 1 + 1e-5
    texts = [value["method"]["text"] for name, value in stages if name == "answers" and value["method"]]
    assert all(later.startswith(sooner) for sooner, later in pairwise(texts)), "it streams"


def test_with_all_recomputed_the_method_is_full_attention(touched):
    work, wanted = touched
    answers = last(work, replace(wanted, select="all"))["answers"]
    assert answers["kl"] < 1e-6 and answers["agree"] and answers["method"]["text"] == answers["full"]["text"]
    heat = last(work, replace(wanted, select="all"))["heat"]
    assert heat["left"]["high"] < 1e-3 < heat["deviation"]["high"]


def test_only_what_changed_is_encoded_and_what_moved_is_shifted(touched):
    work, wanted = touched
    assert {block["status"] for block in last(work, wanted)["bill"]["blocks"]} == {"encoded"}
    again = last(work, replace(wanted, ratio=0.25))["bill"]
    assert again["rows"]["encoded"] == 0 and again["flops"]["encoding"] == 0
    system, a, b, c, question = wanted.pieces
    moved = last(work, replace(wanted, pieces=(system, b, a, c, question)))["bill"]
    assert [block["status"] for block in moved["blocks"]] == ["reused", "reused", "shifted", "shifted"]
    edited = replace(a, text=a.text + "One more sentence.\n")
    bill = last(work, replace(wanted, pieces=(system, edited, b, c, question)))["bill"]
    assert [block["status"] for block in bill["blocks"]].count("encoded") == 1
    assert bill["blocks"][1]["status"] == "encoded"
    assert sum(bill["rows"].values()) == bill["length"]
    assert 0 < bill["flops"]["encoding"] < bill["flops"]["method"]


def test_the_ratio_says_how_many_rows_are_computed(touched):
    work, wanted = touched
    none, half, most = (last(work, replace(wanted, ratio=ratio))["heat"]["chosen"] for ratio in (0, 0.5, 1))
    bill = last(work, replace(wanted, ratio=1.0))["bill"]
    assert none == [] and 0 < len(half) < len(most) == bill["rows"]["recomputed"] and set(half) <= set(most)


def test_kept_tiles_are_those_that_the_answer_was_computed_with(touched):
    work, wanted = touched
    heat = last(work, replace(wanted, select="all", sparse="window"))["heat"]
    layers, down, across = heat["tile_map"]["shape"]
    kept = np.frombuffer(base64.b64decode(heat["tile_map"]["data"]), np.uint8).reshape(layers, down, across)
    assert layers == 2 and down == across == -(-heat["length"] // 16)
    assert (kept[:, np.arange(down), np.arange(down)] == 255).all(), "every row keeps its own tile"
    assert last(work, wanted)["heat"]["tile_map"] is None, "without a sparse method there is no choice to draw"


def test_methods_beside_answer_the_same_prompt_once_and_keep_their_answer(touched):
    work, wanted = touched
    wanted = EditorRequest.of({**wanted.to_json(), "beside": [{"select": "none"}, {"select": "all"}], "place": 1})
    answers, bill = (last(work, wanted)[name] for name in ("answers", "bill"))
    reuse, full = answers["beside"]
    assert reuse["kl"] == pytest.approx(last(work, replace(wanted, select="none"))["answers"]["kl"])
    assert full["method"]["text"] == answers["full"]["text"] and full["method"]["done"]
    assert [one["computed"] for one in bill["beside"]] == [bill["rows"]["question"], bill["length"]]
    moved = list(work.stages(replace(wanted, ratio=0.25)))
    assert [name for name, _ in moved].count("bill") == 1, "those beside are not computed again"
    assert moved[1][1]["beside"] == bill["beside"] and dict(moved)["answers"]["beside"] == answers["beside"]
    assert wanted.names == ["first tokens (EPIC), 50%", "plain reuse (Full Reuse)", "all recomputed"]


def test_columns_are_timed_again_in_turns_where_some_were_timed_earlier_or_all_are_short(touched, monkeypatch):
    work, wanted = touched
    wanted = EditorRequest.of({**wanted.to_json(), "beside": [{"select": "none"}]})
    before = last(work, wanted)
    short = "workbench.app.explore.editor.answers.SHORT"
    monkeypatch.setattr(short, float("inf"))
    first = dict(work.timed_again())
    assert first["answers"]["seconds_full"] != before["answers"]["seconds_full"], "short: each is timed several times"
    changed = last(work, replace(wanted, ratio=0.25))
    again = dict(work.timed_again())
    assert changed["answers"]["seconds_full"] == first["answers"]["seconds_full"] != again["answers"]["seconds_full"]
    for one, other in [(again["bill"], changed["bill"]), (again["bill"]["beside"][0], changed["bill"]["beside"][0])]:
        timed = one.pop("seconds")
        assert (timed["method"] != other.pop("seconds")["method"]) == (other["flops"]["encoding"] == 0)
        one.pop("beside", None), other.pop("beside", None)
        assert one == other, "nothing else changes"
    for name in ("full", "method", "kl"):
        assert again["answers"][name] == changed["answers"][name]
    calls = []

    def alive():
        calls.append(None)
        raise Superseded

    last(work, wanted)
    with pytest.raises(Superseded):
        list(work.timed_again(alive))
    assert len(calls) == 1
    work = work.apart()
    monkeypatch.setattr(short, 0.0)
    last(work, wanted)
    assert list(work.timed_again()) == [], "long, and all are of this moment"


def test_the_first_view_is_reuse_of_cached_blocks(touched):
    work, wanted = touched
    bills = [values for name, values in work.stages(wanted, cold=True) if name == "bill"]
    assert bills[-1]["rows"]["encoded"] == 0 and bills[-1]["flops"]["method"] < bills[-1]["flops"]["full"]
    assert all(one["flops"]["encoding"] == 0 for one in bills[-1]["beside"])


def test_a_token_looks_where_full_attention_does_head_by_head(touched, loaded):
    work, wanted = touched
    assert work.attention_from(3, 0) is None, "nothing is answered yet"
    length = last(work, wanted)["heat"]["length"]
    seen = work.attention_from(length - 1, 1)["heads"]
    heads = loaded.model.config.num_attention_heads
    shares = np.frombuffer(base64.b64decode(seen["data"]), np.uint8).reshape(heads, length) / 255 * seen["high"]
    assert np.allclose(shares.sum(1), 1, atol=0.05 * length / 255 + 0.05)
    early = np.frombuffer(base64.b64decode(work.attention_from(3, 1)["heads"]["data"]), np.uint8).reshape(heads, length)
    assert early[:, 4:].max() == 0 < early[:, :4].max()
    assert work.attention_from(length, 1) is None and work.attention_from(3, 99) is None


def test_operations_fall_with_the_blocks_that_a_sparse_method_leaves_out(touched):
    work, wanted = touched
    dense, sparse = (last(work, replace(wanted, select="all", sparse=name))["bill"] for name in ("none", "window"))
    assert dense["kept"] == 1 > sparse["kept"] and sparse["flops"]["method"] < dense["flops"]["method"]
    assert sparse["seconds"]["method"] > sparse["seconds"]["choosing"] > 0 == dense["seconds"]["choosing"]


def test_an_answer_that_is_no_longer_wanted_stops_within_a_layer(touched):
    work, wanted = touched
    calls = []

    def alive():
        calls.append(None)
        if len(calls) == 3:
            raise Superseded

    with pytest.raises(Superseded):
        last_stage = [name for name, _ in work.stages(wanted, alive)]
        assert last_stage
    assert len(calls) == 3


def test_the_newest_wish_wins():
    began, go = threading.Event(), threading.Event()
    done, given_up = [], []

    def run(wish, alive):
        began.set()
        assert go.wait(5)
        try:
            alive()
        except Superseded:
            given_up.append(wish)
            raise
        done.append(wish)

    newest = Debounced(run)
    newest.ask(1)
    assert began.wait(5)
    newest.ask(2)
    newest.ask(3)
    go.set()
    assert newest.wait(5) and given_up == [1] and done == [3]


def test_a_change_in_the_browser_is_answered_by_its_revision(loaded, sample):
    widget = explore.prompt(loaded, sample, select="first_k", max_new_tokens=2).wait(20)
    assert widget.answers["revision"] == widget.heat["revision"] == 0 and widget.problem == "" == widget.busy
    wanted = json.loads(json.dumps(widget.wanted))
    wanted["blocks"][1], wanted["blocks"][2] = wanted["blocks"][2], wanted["blocks"][1]
    widget.set_state({"wanted": wanted | {"revision": 7, "ratio": 0.5}})
    widget.wait(20)
    assert [widget.record[name]["revision"] for name in ("text", "answers", "bill", "heat")] == [7] * 4
    assert [block["id"] for block in widget.text["blocks"]] == ["b0", "b2", "b1", "b3", "b4"]
    widget.change(select="none").wait(20)
    assert widget.bill["revision"] == 8 and widget.heat["score"] is None and widget.heat["chosen"] == []


def test_what_cannot_be_answered_is_said_and_the_older_answer_stays(loaded, sample):
    widget = explore.prompt(loaded, sample, select="none", max_new_tokens=2).wait(20)
    widget._kept.handles.append(DisplayHandle())  # a notebook shows it
    good = widget.wanted
    for change, said in [
        ({"blocks": widget.wanted["blocks"][-1:]}, "1 blocks"),
        ({"blocks": [{**widget.wanted["blocks"][0], "text": "  "}, *widget.wanted["blocks"][1:]]}, "empty"),
        ({"blocks": [{**widget.wanted["blocks"][0], "text": "a b " * 3000}, *widget.wanted["blocks"][1:]]}, "context"),
        ({"select": "__import__('os')"}, "not understood"),
        ({"ratio": 2}, "ratio 2"),
    ]:
        answered = widget.answers["revision"]
        widget.set_state({"wanted": {**good, **change, "revision": widget.wanted["revision"] + 1}})
        widget.wait(20)
        assert said in widget.problem and widget.answers["revision"] == answered and widget.busy == ""
        widget.set_state({"wanted": {**good, "revision": widget.wanted["revision"] + 1}})
        widget.wait(20)
        assert widget.problem == "" and widget.answers["revision"] == widget.wanted["revision"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks": "text"}, "blocks is str"),
        ({"blocks": [{"id": 1}]}, "a block is"),
        ({"ratio": "a"}, "ratio is 'a'"),
        ({"ratio": True}, "ratio is True"),
        ({"prepare": "with_neighbours"}, "prepare is 'with_neighbours'"),
        ({"positions": "sideways"}, "positions 'sideways'"),
        ({"sparse": "seer"}, "unknown sparse"),
        ({"select": 3}, "select is 3"),
        ({"revision": None}, "revision is None"),
        ({"beside": "none"}, "beside is str"),
        ({"beside": ["none"]}, "a method beside is"),
        ({"beside": [{"select": "guess"}]}, "unknown select"),
        ({"beside": [{}] * 12, "place": 0}, "13 methods"),
        ({"place": 5}, "place is 5"),
    ],
)
def test_a_wish_that_is_none_is_refused_in_a_sentence(touched, change, said):
    _, wanted = touched
    refused(said, lambda: EditorRequest.of(wanted.to_json() | change))


@given(text=st.text(min_size=1, max_size=40).filter(str.strip))
def test_texts_of_tokens_join_to_the_text_of_their_block(loaded, text):
    tokens = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    block = Block(tuple(tokens))
    texts = PromptReader(loaded.tokenizer, loaded.layout).texts(block)
    assert len(texts) == len(block)
    assert "".join(texts) == loaded.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


def test_tokens_of_a_prompt_that_is_given_as_tokens_stay_until_its_text_is_changed(loaded):
    odd = Prompt((Block((0, 40, 41)), Block((7, 8, 9)), Block((50, 51))))
    work, wanted, _ = first_request(loaded, odd, select="none")
    assert work.reader.prompt(wanted.pieces) == odd
    changed = replace(wanted.pieces[1], text="other")
    assert work.reader.prompt((wanted.pieces[0], changed, wanted.pieces[2])).blocks[1] != odd.blocks[1]


def test_markup_of_a_passage_stays_text_in_the_page_and_in_the_summary(loaded, tmp_path):
    widget = explore.prompt(loaded, [HOSTILE, HOSTILE + "b", "Question?"], select="none", max_new_tokens=1).wait(20)
    assert "".join(widget.text["blocks"][1]["tokens"]) == HOSTILE + "b"
    path = widget.save(tmp_path / "page.html", orders=2, selectors=["none"], ratios=[0.5])
    written = path.read_text()
    assert written.count("</script>") == 1 and "<img" not in written and "onerror=alert" in written
    assert "http:" not in written and "https:" not in written and "default-src 'none'" in written
    assert "<img" not in widget._repr_mimebundle_()[0]["text/html"]


def test_a_page_holds_every_order_and_choice_and_says_what_the_widget_says(loaded, sample, touched):
    work, wanted = touched
    page = explore.prompt_page(
        loaded, sample, orders=6, selectors=["none", "first_k"], ratios=[0.25, 0.5], max_new_tokens=3
    )
    assert page.answer_count == (6 + 3) * (1 + 2) == len(page.records())
    system, a, b, c, question = wanted.pieces
    for pieces in ((system, c, a, b, question), (system, a, c, question)):
        one = replace(wanted, pieces=pieces)
        mine, warm, theirs = last(work, one), last(work, one), page.result(one)
        assert (
            theirs["answers"]["full"] == mine["answers"]["full"] and theirs["heat"]["chosen"] == mine["heat"]["chosen"]
        )
        assert theirs["answers"]["kl"] == pytest.approx(mine["answers"]["kl"], abs=1e-5)
        assert theirs["bill"]["rows"] == warm["bill"]["rows"], "its blocks were cached for orders before"
    refused("not on the page", page.result, replace(wanted, ratio=0.3))
    sparse = explore.prompt_page(loaded, sample, orders=1, ratios=[0.5], sparse="window", max_new_tokens=3)
    reuse, *_ = (one for one in sparse.records() if one["select"] == "none")
    assert reuse["kl"] == pytest.approx(last(work, replace(wanted, select="none"))["answers"]["kl"], abs=1e-5), "dense"
    assert [one["ratio"] for one in sparse.records() if one["select"] == "query_guided"] == [0.5]
    of_page = {spec: first_request(loaded, sample, sparse=spec)[2]["sparse"] for spec in ("window", "window(local=2)")}
    for spec, entries in of_page.items():
        assert [one["value"] for one in entries if one["title"] == "window and sink"] == [spec], "one entry a method"
    assert len(arrangements(wanted.pieces, 2)) == 2, "some orders only: none is left out"
    data = json.loads(json.dumps(page.data))
    assert len(whole_page(data)) < 400_000


@pytest.mark.parametrize(
    ("grid", "said"),
    [({"orders": 0}, "orders 0"), ({"ratios": [2]}, "ratio 2"), ({"selectors": ["guess"]}, "unknown select")],
)
def test_a_grid_that_cannot_be_is_refused_before_any_work(loaded, sample, grid, said):
    refused(said, explore.prompt_page, loaded, sample, **grid)
    refused("unknown choice 'method'", explore.prompt_page, loaded, sample, method="x")


def test_the_marked_token_is_shared_with_the_explorers_of_the_prompt(loaded, sample):
    widget = explore.prompt(loaded, sample, select="none", max_new_tokens=1).wait(20)
    selection = selection_of(loaded.layout.prompt(sample, loaded.tokenizer))
    widget.token = 12
    assert selection.token == 12
    widget.hovered = 14
    assert selection.token == 14
    selection.token = 5
    assert widget.token == 5 and selection.token == 5, "what is chosen elsewhere stays, wherever the mouse rested here"
    selection.token = -1
    assert widget.token is None and selection.token == -1


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50), st.booleans())
def test_a_darker_byte_never_stands_for_less(values, log):
    painted = prompt_heat.encode_heatmap(torch.tensor(values, dtype=torch.float64)[None], log=log)
    data = np.frombuffer(base64.b64decode(painted["data"]), np.uint8)
    order = np.argsort(np.float32(values), kind="stable")
    assert (np.diff(data[order].astype(int)) >= 0).all() and painted["shape"] == [1, len(values)]
    assert painted["high"] == 0 or data.max() == 255


AT_EXIT = """
import threading, torch
from workbench.app.explore.debounce import Newest

def run(wish, alive):
    while True:
        begun.set()
        alive()
        torch.ones(256, 256) @ torch.ones(256, 256)  # without the lock of the interpreter

begun, newest = threading.Event(), Newest(run)
newest.ask(1)
begun.wait()
print("the end")
"""


def test_an_interpreter_that_ends_while_a_wish_is_answered_ends_well():
    ran = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "the end\n", "")


def test_what_is_closed_takes_no_wish():
    done = []
    newest = Debounced(lambda wish, alive: done.append(wish))
    newest.close()
    newest.ask(1)
    assert newest.wait(5) and not done
