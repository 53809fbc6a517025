"""What a reader sees in a real JupyterLab and in a report page: figures that move, and no request to anywhere."""

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anywidget
import browser
import nbformat
import plotly.graph_objects as go
import pytest
import report_notebooks as tiny
from nbformat.sign import NotebookNotary
from short_runs import EXPLORED, explorers_of

from workbench import data, explore
from workbench.app.notebooks.run import NotebookTask, NotebookWorkers
from workbench.app.reports.html import PLOTLY, notebook_page
from workbench.plots.marks.theme import NOTEBOOK_STYLE

pytestmark = pytest.mark.browser

LIVE = """import ipywidgets

from workbench.app.explore.live import LiveFigure

if notebook.is_live():
    drawn = LiveFigure(go.Figure(go.Scatter(y=[0, 0])))
    power = ipywidgets.IntSlider(value=1, min=1, max=9)

    def redraw(change):
        drawn.data[0].y = [0, change["new"]]

    power.observe(redraw, "value")
    display(ipywidgets.VBox([power, drawn]))"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("notebooks"), "01_curve", tiny.FIGURE, LIVE, tiny.SAVE)


@pytest.fixture(scope="module")
def report(notebook, forked_workers, tmp_path_factory):
    """Its folder in a report, made by another process: the browser's loop runs in this one."""
    out = tmp_path_factory.mktemp("report")
    with NotebookWorkers(1) as workers:
        (ended,) = workers.run([NotebookTask(str(notebook), str(out), {})])
    assert ended.ok, ended.message
    return out / "01_curve"


def test_run_all_in_jupyterlab_is_live_and_its_slider_moves_the_figure(lab, notebook):
    with lab.open(notebook) as reader:
        reader.run_all()
        assert reader.errors() == []
        assert reader.wait_for_figures(at_least=2) == 2
        assert not any(link.is_visible() for link in reader.page.locator(".js-plotly-plot a[href^=http]").all())
        assert reader.move_slider()
        assert reader.left_the_machine == []


def test_a_theme_is_changed_back_at_once_without_an_error(lab):
    lab.reader.forget()
    for dark in (True, False):
        lab.reader.theme(dark)
    lab.reader.page.wait_for_timeout(300)  # a second removal would come 200 ms after the first
    assert lab.reader.problems == []


def test_a_cell_that_ends_in_an_error_is_noticed(lab, tmp_path):
    failing = tiny.write(tmp_path, "02_failing", "raise ValueError('no such thing')")
    with lab.open(failing) as reader:
        reader.run_all()
        assert reader.errors() == ["ValueError: no such thing"]


def test_executed_notebook_is_drawn_untrusted(lab, report):
    with lab.open(report / "01_curve.ipynb") as reader:
        assert reader.wait_for_figures() == 1
        assert reader.left_the_machine == []


def test_report_page_is_interactive_without_a_network(lab, report):
    with lab.page(report / "01_curve.html") as reader:
        assert reader.wait_for_figures() == 1
        assert "4" in reader.hover()  # the third of five squares
        assert reader.left_the_machine == []
        assert reader.problems == []


PRINTED = "window.print = () => { top.printed = [top.document.title, document.documentElement.outerHTML]; }"


def test_a_figure_is_saved_by_its_name_and_as_pdf_on_one_sheet_of_its_size(lab, report):
    with lab.page(report / "01_curve.html") as reader:
        page = reader.page
        page.add_init_script(PRINTED)
        page.reload()
        page.locator(".wb-save summary").first.click()
        with page.expect_download() as saved:
            page.get_by_role("button", name="SVG").click()
        assert saved.value.suggested_filename == "figure.svg"
        page.locator(".wb-save summary").first.click()
        page.get_by_role("button", name="PDF").click()
        page.wait_for_function("() => window.printed")
        named, sheet = page.evaluate("() => window.printed")
        wide = page.locator(".wb-plot").first.evaluate("plot => plot._fullLayout.width")
        page.set_content(sheet)
        printed = page.pdf(prefer_css_page_size=True)
    assert named == "figure" and len(re.findall(rb"/Type /Page\b", printed)) == 1
    right = float(re.search(rb"/MediaBox \[0 0 ([\d.]+) ", printed)[1])
    assert abs(right / 0.75 - wide) < 3, "px of a point are three quarters"


OPEN = "() => [...document.querySelectorAll('.wb-section')].map(part => part.open)"
PLOTS = "[...document.querySelectorAll('.js-plotly-plot')]"
WIDTHS = f"() => {PLOTS}.map(plot => plot._fullLayout.width - plot.clientWidth)"


def test_sections_of_a_page_are_folded_and_what_is_pointed_at_is_opened(lab, tmp_path):
    figure = nbformat.v4.new_output("display_data", {PLOTLY: json.loads(go.Figure(go.Scatter(y=[1, 2])).to_json())})
    cells = [nbformat.v4.new_markdown_cell("# Title")]
    for name in ("One", "Two", "Three"):
        cells += [nbformat.v4.new_markdown_cell(f"## {name}\n\ntext of {name}")]
        cells += [nbformat.v4.new_code_cell("1", outputs=[figure])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "folded.ipynb")
    notebook_page(tmp_path / "folded.ipynb", tmp_path / "folded.html")
    with lab.page(tmp_path / "folded.html") as reader:
        page = reader.page
        assert page.evaluate(OPEN) == [True, False, False]
        assert not page.get_by_text("text of Two").is_visible()
        page.locator(".wb-contents a").nth(2).click()
        page.wait_for_function(f"() => String(({OPEN})()) === 'true,false,true'")
        page.set_viewport_size({"width": 900, "height": 700})
        page.locator(".wb-section > summary").nth(1).focus()
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => String(({WIDTHS})()) === '0,0,0'")
        page.get_by_text("Close all").click()
        page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(OPEN) == [True] * 3
        page.evaluate("() => dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(OPEN) == [False] * 3
        assert reader.problems == []


MENUS_ONLY = "08_recompute_tradeoff"  # its explorer has no slider
DAILY = ("01_masks", "06_kv_deviation", MENUS_ONLY, "09_sparse_masks")  # every sort of figure
# What the keyboard reaches: how much there is, then of what has the focus: its place, and whether it has a name, a
# ring, and keys that JupyterLab leaves to it
FOCUSED = """place => { const root = document.querySelector(place), now = document.activeElement;
  const all = [...root.querySelectorAll('select, input, button, textarea, [tabindex="0"], [contenteditable]')]
    .filter(one => one.offsetParent && !one.disabled && !one.closest('.js-plotly-plot'));
  const name = now.getAttribute('aria-label') || now.labels?.[0]?.textContent || now.textContent || now.title;
  const { outlineStyle, outlineWidth } = getComputedStyle(now);
  return [all.length, all.indexOf(now), name.trim() !== '', outlineStyle === 'solid' && parseFloat(outlineWidth) >= 2,
    now.dataset.lmSuppressShortcuts === 'true']; }"""
SHOWN = [pytest.param(name, marks=() if name in DAILY else pytest.mark.weekly) for name in EXPLORED]


@pytest.mark.parametrize("name", SHOWN)
def test_the_explorer_of_a_shipped_notebook_moves(lab, folder, tmp_path, name):
    short = tmp_path / f"{name}.ipynb"
    nbformat.write(explorers_of(name, str(folder)), short)
    with lab.open(short) as reader:
        reader.run_all(timeout_s=200)
        assert reader.errors() == []
        assert reader.wait_for_figures() > 0
        reader.page.locator(".wb-explorer button[data-lm-suppress-shortcuts]").first.wait_for()
        walk(reader.page, ".wb-explorer")
        chosen = reader.page.locator(".wb-explorer select").first
        chosen.focus()
        cell = reader.page.evaluate(CELL)
        chosen.press("ArrowDown")
        assert reader.page.evaluate(CELL) == cell, "the keys move the control, not the cell"
        slider = reader.page.locator(".widget-slider").count() - 1  # the head: it begins at its lowest value
        assert name == MENUS_ONLY or reader.move_slider(slider, steps=1)
        assert reader.errors() == []
        assert reader.left_the_machine == []


HOSTILE = (
    "Title: <b>x</b>\nText: <img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n"
)
TOUCH = """from workbench import data, explore

touched = explore.prompt({model!r}, data.load("lab", 1, 0, 2)[0], select="first_k", max_new_tokens=2)
display(touched)"""
REVISION = "() => Number(document.querySelector('.wb-prompt').dataset.revision)"
UP_TO_DATE = """revision => { const prompt = document.querySelector('.wb-prompt');
  return prompt && Number(prompt.dataset.revision) >= revision && prompt.dataset.stale === ''; }"""
ALL = "[...document.querySelectorAll('.wb-prompt')]"
SELECTED_TEXT = """() => { const text = document.querySelector('.wb-passage .wb-text');
  const range = document.createRange(); range.selectNodeContents(text);
  getSelection().removeAllRanges(); getSelection().addRange(range);
  const said = getSelection().toString(); getSelection().removeAllRanges(); return said; }"""
CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
UNSAVED = "() => window.jupyterapp.shell.currentWidget.context.model.dirty"
OTHER_ORDER = """() => { const [name, state] = location.hash.slice(1).split("=");
  const read = JSON.parse(decodeURIComponent(state)), [first, second, third, ...rest] = read.order;
  const order = encodeURIComponent(JSON.stringify({ ...read, order: [first, third, second, ...rest] }));
  history.replaceState(null, "", `#${name}=${order}`); }"""
MARKED = "() => [...document.querySelectorAll('.wb-map canvas')].map(canvas => canvas.dataset.marked)"
PAPER = "() => getComputedStyle(document.querySelector('.wb-prompt')).backgroundColor"


def answered(page, revision):
    """Wait until all that is shown answers this revision of the prompt."""
    page.wait_for_function(UP_TO_DATE, arg=revision, timeout=20_000)


def walk(page, place):
    """Go with the keyboard through all that is in `place`: in its order, each with a name, a ring and its own keys."""
    page.locator(f"{place} :is(select, input, [tabindex='0'])").first.focus()
    count, *first = page.evaluate(FOCUSED, place)
    reached = [first]
    for _ in range(count - 1):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED, place)[1:])
    assert reached == [[at, True, True, True] for at in range(count)]


COUNTED = """from importlib import reload

import plotly.graph_objects as go
import tqdm.auto

from workbench.app.explore.debounce import progress
from workbench.app.explore.live import explorer, slider

for each in (tqdm.autonotebook, tqdm.auto):
    reload(each)  # the process that was forked is no notebook
progress("counting")(2, 2)
explorer([slider("points", 3, 1, 9)], lambda points: go.Figure(go.Scatter(y=list(range(points)))))"""


def order(page):
    """Ids of the blocks as they stand."""
    return page.eval_on_selector_all(".wb-block", "nodes => nodes.map(node => node.dataset.id)")


def drag(page, number, to):
    """Drag passage `number` onto the place of passage `to` with the mouse."""
    boxes = [page.locator(".wb-passage").nth(i).bounding_box() for i in (number, to)]
    grip = page.locator(".wb-passage .wb-grip").nth(number).bounding_box()
    page.mouse.move(grip["x"] + 5, grip["y"] + 5)
    page.mouse.down()
    page.mouse.move(grip["x"] + 5, boxes[1]["y"] + (2 if to < number else boxes[1]["height"] - 2), steps=4)
    page.mouse.up()


LOGO = '<a class="modebar-btn--logo">plotly</a>'
OWN = f'<div class="jp-Notebook">{NOTEBOOK_STYLE}{LOGO}</div>'
OLDER = f'<div class="jp-Notebook"><style>.modebar-btn--logo {{ display: block !important; }}</style>{LOGO}</div>'
HIDDEN = "() => [...document.querySelectorAll('a')].map(logo => getComputedStyle(logo).display === 'none')"


@pytest.mark.parametrize(("both", "own"), [(OWN + OLDER, 0), (OLDER + OWN, 1)])
def test_a_notebook_keeps_its_style_beside_one_that_was_saved_with_another(lab, tmp_path, both, own):
    (tmp_path / "beside.html").write_text(both, encoding="utf-8")
    with lab.page(tmp_path / "beside.html") as reader:
        assert reader.page.evaluate(HIDDEN)[own]


@contextmanager
def opened_again(lab, notebook, touch):
    """Run a notebook and `touch` it, save it, and open it without the state of its widgets, and without a kernel's."""
    with lab.open(notebook) as reader:
        reader.run_all()
        assert reader.errors() == []
        touch(reader)
        reader.page.evaluate(f"() => {browser.NOTEBOOK}.context.save()")
    executed = nbformat.read(lab.jupyterlab.root / notebook.name, as_version=4)
    assert executed.metadata.pop("widgets")
    NotebookNotary(data_dir=str(lab.jupyterlab.folder / "data")).sign(executed)
    again = notebook.with_name(f"again_{notebook.name}")
    nbformat.write(executed, again)
    with lab.open(again) as reader:
        static = reader.page.locator(".wb-static")
        static.wait_for()
        assert not any(view.is_visible() for view in reader.page.locator(".jp-OutputArea-output.jupyter-widgets").all())
        yield static


def test_a_prompt_whose_state_was_not_saved_is_shown_as_it_was(lab, folder, tmp_path):
    said = []

    def touch(reader) -> None:
        answered(reader.page, 0)
        static = reader.page.locator(".wb-static")
        static.locator("tr").nth(1).wait_for(state="attached")
        assert not static.is_visible(), "a view that lives stands alone"
        said.append(static.text_content())

    notebook = tiny.write(tmp_path, "03_touched", TOUCH.format(model=str(folder)))
    with opened_again(lab, notebook, touch) as static:
        assert [static.text_content()] == said and "full attention" in said[0]


def test_an_explorer_whose_state_was_not_saved_is_shown_as_it_was(lab, tmp_path):
    def touch(reader) -> None:
        picture = reader.page.locator(".wb-static img")
        picture.wait_for(state="attached")
        assert not picture.is_visible(), "a view that lives stands alone"
        first = picture.get_attribute("src")
        assert reader.move_slider()
        changed = "first => document.querySelector('.wb-static img').src !== first"
        reader.page.wait_for_function(changed, arg=first, timeout=10_000)

    with opened_again(lab, tiny.write(tmp_path, "06_counted", COUNTED), touch) as static:
        assert static.locator("img").evaluate("one => one.complete && one.naturalWidth") > 300


@pytest.fixture(scope="module")
def prompt_page(folder, tmp_path_factory):
    """A page without a kernel, made by this process before the browser needs it."""
    path = tmp_path_factory.mktemp("page") / "prompt.html"
    blocks = ["Answer.\n", HOSTILE, "Title: B\nText: The second passage is here.\n", "Question: what?\nAnswer:"]
    chosen = {"selectors": ["none", "first_k"], "select": "first_k", "sparse": "window", "max_new_tokens": 2}
    page = explore.prompt_page(str(folder), blocks, **chosen)
    return page.write(path)


def test_a_prompt_without_a_kernel_is_touched_from_a_file(lab, prompt_page):
    with lab.page(prompt_page) as reader:
        page = reader.page
        answered(page, 0)
        assert "Answer." in page.evaluate(SELECTED_TEXT)
        assert "<script>" in page.locator(".wb-passage").nth(1).inner_text() and page.title() != "owned"
        assert page.locator(".wb-text img, .wb-text script, .wb-text b").count() == 0
        before = page.locator(".wb-bill").inner_text()
        page.locator(".wb-bar input[type=range]").first.press("ArrowRight")
        answered(page, 1)
        assert page.locator(".wb-bill").inner_text() != before
        drag(page, 2, 0)
        answered(page, 2)
        assert order(page) == ["b2", "b0", "b1", "b3"]
        page.locator(".wb-grip").first.press("ArrowDown")
        answered(page, 3)
        assert order(page) == ["b0", "b2", "b1", "b3"]
        assert page.evaluate("() => document.activeElement.className") == "wb-grip", "the focus stays"
        page.locator("[data-id=b2] .wb-text").press("ArrowRight")
        assert len(set(page.evaluate(MARKED))) == 1 != page.evaluate(MARKED).count("")
        page.locator("[data-id=b2] .wb-remove").click()
        answered(page, 4)
        assert order(page) == ["b0", "b1", "b3"] and page.locator(".wb-problem").count() == 0
        page.locator(".wb-show").nth(1).click()  # of plain reuse
        answered(page, 5)
        page.locator("select:has(option[value=first_k])").select_option("first_k")
        answered(page, 6)
        assert page.locator(".wb-problem").count() == 0, "all that a menu offers is on the page"
        page.get_by_role("button", name="Undo").click()
        answered(page, 7)
        page.locator("input[type=search]").fill("answer")
        assert page.locator(".wb-found").count() > 0
        page.locator(".wb-passage .wb-t").nth(9).hover()
        page.locator("input[type=search]").press("Enter")
        assert page.locator(".wb-found.wb-marked").count() == 1, "wherever the mouse rests"
        state = [order(page), page.locator(".wb-cards").inner_text(), page.evaluate(MARKED)]
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        answered(page, 1)
        assert [order(page), page.locator(".wb-cards").inner_text(), page.evaluate(MARKED)] == state, "it can be sent"
        light = page.evaluate(PAPER)
        page.emulate_media(color_scheme="dark")
        page.wait_for_selector(".wb-prompt.wb-dark")
        assert page.evaluate(PAPER) != light
        assert page.title() != "owned" and reader.problems == [] == reader.left_the_machine


@pytest.fixture(scope="module")
def page_of_one_order(loaded, tmp_path_factory):
    sample = data.load("lab", 1, 0, 3)[0]
    chosen = {"selectors": ["none", "first_k"], "select": "first_k", "sparse_methods": ["window"], "max_new_tokens": 2}
    page = explore.prompt_page(loaded, sample, orders=1, ratios=[0.2, 0.5], **chosen)
    return sample, page.write(tmp_path_factory.mktemp("one") / "prompt.html")


def test_a_page_offers_only_what_it_holds_and_says_what_the_answer_needs(lab, page_of_one_order):
    sample, path = page_of_one_order
    with lab.page(path) as reader:
        page = reader.page
        answered(page, 0)
        assert page.locator(".wb-ask").inner_text() == sample.question
        needed = [ctx.title for ctx in sample.ctxs if ctx.title in sample.supporting_titles]
        names = page.locator(".wb-needed").all_inner_texts()
        assert [name.partition(": ")[2] for name in names] == needed and names[0].startswith("passage ")
        page.locator(".wb-needed").first.click()
        assert "★" in page.evaluate("() => document.activeElement.closest('.wb-block').textContent")
        for button in page.locator(".wb-grip, .wb-passage .wb-remove").all():
            assert button.is_disabled() and "run the notebook to" in button.get_attribute("title")
        for _ in range(2):
            page.get_by_role("button", name="Add a column").click()
        answered(page, 2)
        shown = page.locator(".wb-card .wb-show").all_inner_texts()
        assert len(shown) == len(set(shown)) == 5 and page.locator(".wb-problem").count() == 0
        for value in ("window", "none"):
            page.locator("select:has(option[value=window])").select_option(value)
        answered(page, 4)
        assert page.locator(".wb-problem").count() == 0, "sparse attention is switched off again"
        assert page.locator(".wb-right-sign, .wb-wrong-sign").count() == 5
        page.evaluate(OTHER_ORDER)
        page.reload()
        page.wait_for_selector(".wb-problem")
        assert page.locator(".wb-right-sign, .wb-wrong-sign").count() == 0, "what is outdated is not judged"
        assert reader.problems == [] == reader.left_the_machine


def test_a_prompt_in_jupyterlab_is_answered_as_it_is_touched(lab, folder, tmp_path):
    touched = tiny.write(tmp_path, "03_touch", TOUCH.format(model=str(folder)))
    with lab.open(touched) as reader:
        page = reader.page
        reader.run_all()
        assert reader.errors() == []
        answered(page, 0)
        before = page.locator(".wb-bill").inner_text()
        slider = page.locator(".wb-bar input[type=range]").first
        cell = page.evaluate(CELL)
        for key in ("ArrowDown", "ArrowUp", "End"):
            slider.press(key)
        page.locator("select:has(option[value=after_system])").press("ArrowDown")
        page.locator("select:has(option[value=after_system])").press("ArrowUp")
        page.locator(".wb-bar input[type=range]").first.press("s")
        assert page.evaluate(CELL) == cell, "the keys move the control, not the cell"
        assert page.evaluate(UNSAVED)
        page.locator(".wb-bar input[type=range]").first.press("Control+s")
        page.wait_for_function(f"() => !({UNSAVED})()")
        assert page.locator("[data-lm-suppress-shortcuts]").count() > 10, "only for that one key"
        answered(page, 1)
        walk(page, ".wb-prompt")
        assert page.locator(".wb-bill").inner_text() != before and page.evaluate(REVISION) >= 1
        drag(page, 1, 0)
        answered(page, 2)
        page.locator("[data-id=b2] .wb-grip").press("ArrowDown")
        answered(page, 3)
        page.locator("[data-id=b2] .wb-grip").press("ArrowUp")  # JupyterLab's own keys leave it alone
        answered(page, 4)
        assert order(page) == ["b0", "b2", "b1", "b3"]
        page.locator("[data-id=b1] .wb-edit").click()
        page.locator(".wb-editor textarea").fill(HOSTILE)
        page.locator(".wb-editor textarea").press("Control+Enter")
        answered(page, 5)
        page.wait_for_function("() => document.querySelectorAll('[data-id=b1] .wb-t').length > 5")
        assert "<script>" in page.locator("[data-id=b1] .wb-text").inner_text() and "owned" not in page.title()
        page.locator(".wb-add").click()
        page.locator(".wb-editor textarea").fill("Title: New\nText: One more.\n")
        page.locator(".wb-editor button").first.click()
        answered(page, 6)
        assert len(order(page)) == 5 and "encode uncached blocks" in page.locator(".wb-cards").inner_text()
        page.locator("select:has(option[value=window])").select_option("window")
        answered(page, 7)
        assert "of all blocks selected" in page.locator(".wb-map").last.inner_text()
        page.locator(".wb-passage .wb-t").nth(3).hover()
        assert page.evaluate(MARKED).count("") == 0
        page.locator("select:has(option[value=look])").select_option("look")
        page.wait_for_function("() => document.querySelector('.wb-maps').innerText.includes('heads down')")
        page.get_by_role("button", name="Add a column").click()
        answered(page, 8)
        names = page.locator(".wb-card .wb-show").all_inner_texts()
        assert len(names) == 4 == len(set(names)), "another method than those shown"
        before = order(page), page.evaluate(REVISION)
        for text in ("{}", '{"blocks": [1, 2]}', '{"blocks": [], "beside": 5}'):
            with page.expect_file_chooser() as chooser:
                page.get_by_role("button", name="Open state").click()
            chooser.value.set_files({"name": "bad.json", "mimeType": "application/json", "buffer": text.encode()})
            page.wait_for_function("() => document.querySelector('.wb-detail').textContent.startsWith('bad.json')")
            assert (order(page), page.evaluate(REVISION)) == before, "what is no state changes nothing"
            page.locator(".wb-passage .wb-t").nth(4).hover()
            page.locator(".wb-passage .wb-t").nth(3).hover()
        page.get_by_role("button", name="Copy as code").click()
        code = page.locator(".wb-code textarea").input_value()
        light = page.evaluate(PAPER)
        reader.theme(dark=True)
        page.wait_for_selector(".wb-prompt.wb-dark")
        assert page.evaluate(PAPER) != light
        reader.theme(dark=False)
        assert reader.left_the_machine == []
    made: dict[str, Any] = {}
    exec(code, made)
    assert made["touched"].wait(60).problem == "" and "Title: New" in made["blocks"][3]
    assert len(made["touched"].wanted["beside"]) == 2 and made["touched"].wanted["sparse"] == "window"
    assert made["touched"].answers["expected"] and made["touched"].options["max_new_tokens"] == 2


# --- Markup of strangers: in passages, questions, answers, names of files, models and methods
STRANGE = [
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    '<a href="javascript:window.owned=1" target="_self">link</a>',
    "<a href='http://a.example/'>link</a>",
    "<span style='background:url(http://a.example/x)'>shade</span>",
    '<b style="background-image:url(//a.example/x)">bold</b>',
    "<svg onload=window.owned=1>",
    "<iframe src=http://a.example></iframe>",
    "<style>*{background:url(http://a.example/x)}</style>",
    "![](http://a.example/x.png)",
    "$\\href{javascript:window.owned=1}{x}$",
]
STRANGE_NAME = "<img src=x onerror=window.owned=1><b style='background:url(http:a.example)'>"  # no slash
STRANGE_CELLS = """from IPython.display import Markdown
from workbench import data, explore, models
from workbench.methods.generation import generate

loaded = models.load({model!r})
(sample,) = data.load({file!r}, samples=1)
explore.prompt(loaded, sample, select="first_k", max_new_tokens=2)
---
explore.masks(loaded, sample)
---
explore.deviation(loaded, sample)
---
explore.tokens(loaded, sample)
---
explore.sparse(loaded, sample, methods=("window",))
---
from workbench.data import prompt_view


from workbench.plots.attention.prompt_strip import prompt_strip

view = prompt_view.of_sample(sample, {file!r}, loaded.tokenizer, loaded.layout)
prompt_strip(view)
---
import pandas as pd

rows = [
    {{"model": name, "mode": "block", "prepare": name, "select": name, "kind": name, "em": 0.5, "em_low": 0.4,
      "em_high": 0.6, "rows_computed": 9, "flops": 1e9, "n": 3}}
    for name in {hostile!r}
]
explore.tradeoff(pd.DataFrame(rows))
---
from workbench.store import FolderStore

(prompt,) = loaded.layout.prompts([sample], loaded.tokenizer)
kept = FolderStore({store!r}, {{"model": {model!r}}}, new=True)
generate(loaded.model, loaded.tokenizer, [prompt], "block", store=kept, max_new_tokens=1)
display(prompt, prompt.blocks[0])
explore.store({store!r})"""
FOUND = """() => { const place = window.jupyterapp.shell.currentWidget.node;
  const tags = 'img:not(.plot-img), script, iframe, object, embed, base, form';  // plotly has an image of its own
  const still = one => one.matches('.wb-static > p > img[src^="data:image/svg+xml;base64,"]');  // which runs nothing
  const bad = [...place.querySelectorAll(`.jp-OutputArea-output :is(${tags})`)].filter(one => !still(one));
  const links = [...place.querySelectorAll('.jp-OutputArea-output a')].filter(a => /javascript|a\\.example/i.test(
    (a.getAttribute('href') || '') + (a.getAttributeNS('http://www.w3.org/1999/xlink', 'href') || '')));
  const all = [...place.querySelectorAll('.jp-OutputArea-output *')];
  const loads = all.filter(node => /a\\.example/.test(node.getAttribute('style') || ''));
  const runs = all.filter(node => [...node.attributes].some(one => /^on/.test(one.name) && /owned/.test(one.value)));
  const styles = all.filter(node => node.localName === 'style' && /a\\.example/.test(node.textContent));
  return [...bad, ...links, ...loads, ...runs, ...styles].map(node => node.outerHTML.slice(0, 200)); }"""


@pytest.fixture(scope="module")
def strange(folder, tmp_path_factory):
    """A notebook whose model, data and records bear such names and texts."""
    place = tmp_path_factory.mktemp("strange")
    model, file, store = place / STRANGE_NAME, place / f"{STRANGE_NAME}.jsonl", place / f"{STRANGE_NAME} kept"
    shutil.copytree(folder, model)
    passages = [{"title": STRANGE[i], "text": " ".join(STRANGE[i::2])} for i in range(2)]
    record = {"question": " ".join(STRANGE[:3]), "answers": STRANGE, "ctxs": passages}
    file.write_text(json.dumps(record) + "\n")
    given = {"model": str(model), "file": str(file), "hostile": STRANGE, "store": str(store)}
    return tiny.write(place, "strange", *STRANGE_CELLS.format(**given).split("\n---\n"))


def test_markup_of_strangers_stays_text_in_jupyterlab(lab, strange):
    with lab.open(strange) as reader:
        reader.run_each()
        assert reader.errors() == []
        assert reader.wait_for_figures(at_least=7) >= 7
        reader.page.wait_for_function(
            "() => document.querySelector('.wb-prompt')?.dataset.stale === ''", timeout=20_000
        )
        assert reader.page.evaluate(FOUND) == []
        for plot in reader.page.locator(".js-plotly-plot").all():  # what is said of a point, too
            plot.scroll_into_view_if_needed()
            box = plot.bounding_box()
            for share in (0.3, 0.5, 0.7):
                reader.page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.55 * box["height"])
            assert reader.page.evaluate(FOUND) == []
        assert reader.page.evaluate("() => window.owned") is None
        assert reader.left_the_machine == [] == reader.problems


# --- What is left when a kernel has gone
def test_views_follow_each_other_and_a_cell_that_runs_again_shows_the_newest(lab, folder, tmp_path):
    touched = tiny.write(tmp_path, "04_views", TOUCH.format(model=str(folder)), "display(touched)")
    with lab.open(touched) as reader:
        page = reader.page
        for _ in range(2):  # a cell that runs again shows the newest
            reader.run_all()
        answered(page, 0)
        page.wait_for_function(f"() => {ALL}.length === 2")
        page.locator(".wb-bar input[type=range]").first.press("End")
        page.wait_for_function(f"() => {ALL}.every(view => view.dataset.revision === '1' && view.dataset.stale === '')")
        reader.restart()
        page.wait_for_function(f"() => {ALL}.every(view => view.querySelector('.wb-status.wb-problem'))")
        assert reader.left_the_machine == []


def test_a_prompt_is_answered_while_another_cell_runs(lab, folder, tmp_path):
    busy = tiny.write(
        tmp_path, "07_busy", TOUCH.format(model=str(folder)), "import time\ntouched.wait()\ntime.sleep(60)"
    )
    with lab.open(busy) as reader:
        page = reader.page
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        page.locator(".wb-card").first.wait_for(timeout=60_000)
        answered(page, 0)
        page.locator(".wb-bar input[type=range]").first.press("End")
        answered(page, 1)
        assert not page.evaluate(browser.IDLE), "the cell has not ended"
        reader.restart()


# --- Linked explorers under the dark theme
LINKED = """from workbench import data, explore, models

loaded = models.load({folder!r})
sample = data.load("lab", 1, 0, 3)[0]
explore.tokens(loaded, sample)
---
explore.deviation(loaded, sample)"""
FILTER = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => getComputedStyle(plot).filter)"""
MARKS = """() => [...document.querySelectorAll('.js-plotly-plot')]
  .map(plot => (plot.layout.shapes || []).filter(shape => shape.name === 'selected token').length)"""
GONE = "() => getComputedStyle(document.querySelector('.wb-explorer'), '::before').content"
# Where the box of token 40 lies on the screen: the text is drawn as bars, each from its base on.
TOKEN = """() => { const plot = document.querySelectorAll('.js-plotly-plot')[0];
  const {xaxis: x, yaxis: y} = plot._fullLayout;
  plot.scrollIntoView({block: 'center'});
  const box = plot.getBoundingClientRect(), point = plot.calcdata[0][40];
  return [box.left + x._offset + x.c2p(point.b + point.s / 2), box.top + y._offset + y.c2p(point.p)]; }"""


def test_a_click_on_a_token_marks_it_in_every_explorer_and_figures_turn_dark(lab, folder, tmp_path):
    linked = tiny.write(tmp_path, "05_linked", *LINKED.format(folder=str(folder)).split("\n---\n"))
    with lab.open(linked) as reader:
        reader.run_all()
        assert reader.errors() == [] and reader.wait_for_figures(at_least=2) == 2
        assert reader.page.evaluate(MARKS) == [0, 0]
        reader.page.mouse.click(*reader.page.evaluate(TOKEN))
        reader.page.wait_for_function(f"() => ({MARKS})().every(count => count > 0)", timeout=10_000)
        assert reader.page.evaluate(FILTER) == ["none", "none"]
        reader.theme(dark=True)
        reader.page.wait_for_function(f"() => ({FILTER})().every(filter => filter.includes('invert'))", timeout=10_000)
        reader.theme(dark=False)
        assert reader.page.evaluate(GONE) == "none"
        reader.restart()
        reader.page.wait_for_function(f"() => ({GONE})() !== 'none'", timeout=10_000)
        assert reader.left_the_machine == []


# --- The prompt one can touch in an editor's notebook, as VS Code shows it: through anywidget's own front end, without
# RequireJS, under a policy that allows no `eval` and no network, in the editor's colours
POLICY = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:"
EDITOR = """<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<style>:root {{ --vscode-editor-background: {paper}; }}</style><body>
<script>window.refused = []; document.addEventListener("securitypolicyviolation", (event) =>
  window.refused.push(`${{event.violatedDirective}} ${{event.blockedURI}}`));</script>
<script type="application/json" id="state">{state}</script>
<script>{host}</script><script>{front}</script>"""
HOST = Path(__file__).parent / "widget_host.js"
FRONT = Path(anywidget.__file__).parent / "nbextension" / "index.js"


@pytest.fixture(scope="module")
def widget_state(loaded):
    sample = data.load("lab", 1, 0, 3)[0]
    widget = explore.prompt(loaded, sample, max_new_tokens=2).wait(60)
    kept = {name: value for name, value in widget.get_state().items() if name not in ("layout", "comm")}
    return json.dumps(kept).replace("<", "\\u003c")


# How much the chosen method's card says, where choosing takes this share of the time to the first token
CHOOSING = """share => { const bill = structuredClone(model.get("bill"));
  bill.seconds.choosing = share * bill.seconds.method;
  model.set("bill", bill);
  return document.querySelector(".wb-card.wb-method .wb-more").textContent.split(" · ").length; }"""


@pytest.mark.parametrize("paper", ["#ffffff", "#1e1e1e"])
def test_the_prompt_is_drawn_and_answers_to_its_slider(lab, widget_state, tmp_path, paper):
    page = tmp_path / "editor.html"
    texts = {"host": HOST.read_text(), "front": FRONT.read_text().replace("</", "<\\/")}
    page.write_text(EDITOR.format(policy=POLICY, paper=paper, state=widget_state, **texts), encoding="utf-8")
    with lab.page(page) as reader:
        prompt = reader.page.locator(".wb-prompt")
        prompt.wait_for()
        assert prompt.locator(".wb-text span").count() > 50
        assert ("wb-dark" in prompt.get_attribute("class")) == (paper != "#ffffff")
        little, much = (reader.page.evaluate(CHOOSING, share) for share in (0.01, 0.5))
        assert much == little + 1, "what costs next to nothing is not told"
        ratio = prompt.locator("input[type=range]").first
        before = float(reader.page.evaluate("model.get('wanted').ratio"))
        ratio.focus()
        reader.page.keyboard.press("ArrowRight")
        reader.page.wait_for_function("window.sent.length > 0")
        assert reader.page.evaluate("window.sent.at(-1).wanted.ratio") > before
        assert prompt.locator(".wb-stale").count() > 0, "what is older is marked"
        assert reader.page.evaluate("window.refused") == []
        assert (reader.left_the_machine, reader.problems) == ([], [])
