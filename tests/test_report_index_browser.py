"""The index in a real browser: pictures are drawn from plotly's JSON, search works, and nothing runs or leaves."""

import pytest
from test_report_index import STRANGE, card, executed

from workbench.app import html, report_index, thumbnail

pytestmark = pytest.mark.browser
DRAWN = "() => [...document.querySelectorAll('[data-picture]')].every(place => place.dataset.drawn)"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    cards = [card(out, "01_first#", title="Masks"), card(out, "02_second", title=STRANGE, metrics={"found": STRANGE})]
    for name, output in [("03_text", {"text/plain": STRANGE}), ("04_none", {"text/html": "<b>1</b>"})]:
        path = executed(out / name, output)
        thumbnail.write(path, path.parent)
        cards.append(report_index.card(path.parent, name, "ok", 1.0, "", {}))
    (out / report_index.PLOTLY_FILE).write_text(html.get_plotlyjs())
    (out / "index.html").write_text(report_index.page("4 notebooks", [report_index.Group(cards)]))
    return out / "index.html"


def test_pictures_are_drawn_and_search_finds_entries(lab, index):
    with lab.page(index) as reader:
        page = reader.page
        page.wait_for_function(DRAWN)
        assert [page.locator(".picture").nth(n).locator("img").count() for n in range(4)] == [1, 1, 0, 0]
        assert "Who%20sees" in page.locator(".picture img").first.get_attribute("src")
        assert page.locator(".picture").nth(2).inner_text() == STRANGE
        assert page.locator("h2").nth(1).inner_text() == STRANGE
        page.locator("#search").fill("masks")
        assert page.locator("article:visible").count() == 1
        assert page.locator("#count").inner_text() == "1 of 4"
        page.locator("#search").fill("")
        assert page.locator("article:visible").count() == 4
        assert (reader.left_the_machine, reader.problems) == ([], [])


def test_pictures_follow_light_and_dark(lab, index):
    with lab.page(index) as reader:
        reader.page.wait_for_function(DRAWN)
        reader.page.emulate_media(color_scheme="dark")
        reader.page.wait_for_function("() => document.querySelector('[data-picture]').dataset.drawn === 'dark'")
        assert reader.problems == []
