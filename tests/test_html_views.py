"""What notebooks show of the nouns: short, in the theme of the page, and without markup of users."""

from html.parser import HTMLParser

import pytest
import torch

from workbench import KV, Block, Plan, Prompt, Tiles
from workbench.core.utils import html_views

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
