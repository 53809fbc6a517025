"""The built documentation in a real browser: formulas, search and links work from file://, and nothing leaves."""

import re
import shutil
from pathlib import Path

import pytest

from workbench.app.docs import site as docs_site

pytestmark = [pytest.mark.browser, pytest.mark.weekly]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built from scratch; Sphinx ends with an error at a broken link or heading."""
    return docs_site.build(tmp_path_factory.mktemp("docs") / "site").parent


def test_no_page_loads_anything_from_a_network(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert loaded == [], page.name


def test_a_page_of_a_method_shows_its_formula_and_search_finds_it(lab, site):
    with lab.page(site / "methods" / "select-query_guided.html") as reader:
        assert reader.page.locator("math").count() >= 2
        reader.page.goto((site / "search.html").as_uri() + "?q=neighbours")
        reader.page.locator("#search-results li").first.wait_for()
        assert (reader.left_the_machine, reader.problems) == ([], [])


def test_the_leaderboard_of_shipped_results_is_a_page_that_the_guide_leads_to_and_sorts(lab, site):
    with lab.page(site / "guide" / "leaderboard.html") as reader:
        reader.page.locator('a[href="../leaderboard.html"]').click()
        reader.page.wait_for_load_state()
        table = reader.page.locator("table.sorts").first
        names = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
        assert {"prophetkv", "cacheblend"} <= {name.strip() for name in names}
        table.locator("th button", has_text="method").click()
        found = [name.strip() for name in table.locator("tbody tr td:nth-child(2)").all_inner_texts()]
        assert found == sorted(found, key=str.lower) and sorted(found) == sorted(name.strip() for name in names)
        assert (reader.left_the_machine, reader.problems) == ([], [])


def test_figures_and_tables_of_the_leaderboard_are_saved(lab, site):
    with lab.page(site / "leaderboard.html") as reader:
        reader.wait_for_figures()
        figures, tables = (reader.page.locator(f"figure.saved:has({part})") for part in (".js-plotly-plot", "table"))
        text = {kind: saved(reader.page, tables.first, kind).read_text() for kind in ("CSV", "LaTeX")}
        head, full = (text["CSV"].splitlines()[at].split(",") for at in (0, 1))
        assert full[head.index("method")] == "full" and "to" in full[head.index("KL: interval")]
        assert text["LaTeX"].count(" & ") == (len(head) - 1) * len(text["CSV"].splitlines())
        assert saved(reader.page, figures.first, "SVG").read_text().startswith("<svg")
        assert saved(reader.page, figures.first, "PNG").read_bytes().startswith(b"\x89PNG")
        assert (reader.left_the_machine, reader.problems) == ([], [])


def saved(page, figure, kind):
    """Return the path of the file that a figure's or table's menu saves."""
    figure.locator(".wb-save summary").click()
    with page.expect_download() as download:
        figure.get_by_role("button", name=kind).click()
    return Path(download.value.path())


def test_a_site_can_be_moved(lab, site, tmp_path):
    shutil.copytree(site, tmp_path / "a folder")
    with lab.page(tmp_path / "a folder" / "index.html") as reader:
        reader.page.get_by_role("link", name="Troubleshooting").first.click()
        assert reader.page.locator("h1").inner_text().startswith("Troubleshooting")
        assert reader.problems == []
