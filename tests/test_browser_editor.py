"""The prompt one can touch in an editor's notebook, as VS Code shows it: through anywidget's own front end, without
RequireJS, under a policy that allows no `eval` and no network, in the editor's colours."""

import json
from pathlib import Path

import anywidget
import pytest

from workbench import data, explore

pytestmark = pytest.mark.browser

POLICY = "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:"
PAGE = """<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<style>:root {{ --vscode-editor-background: {paper}; }}</style><body>
<script>window.refused = []; document.addEventListener("securitypolicyviolation", (event) =>
  window.refused.push(`${{event.violatedDirective}} ${{event.blockedURI}}`));</script>
<script type="application/json" id="state">{state}</script>
<script>{host}</script><script>{front}</script>"""
HOST = Path(__file__).parent / "widget_host.js"
FRONT = Path(anywidget.__file__).parent / "nbextension" / "index.js"


@pytest.fixture(scope="module")
def state(loaded):
    sample = data.load("lab", 1, 0, 3)[0]
    widget = explore.prompt(loaded, sample, max_new_tokens=2).wait(60)
    kept = {name: value for name, value in widget.get_state().items() if name not in ("layout", "comm")}
    return json.dumps(kept).replace("<", "\\u003c")


@pytest.mark.parametrize("paper", ["#ffffff", "#1e1e1e"])
def test_the_prompt_is_drawn_and_answers_to_its_slider(lab, state, tmp_path, paper):
    page = tmp_path / "editor.html"
    texts = {"host": HOST.read_text(), "front": FRONT.read_text().replace("</", "<\\/")}
    page.write_text(PAGE.format(policy=POLICY, paper=paper, state=state, **texts), encoding="utf-8")
    with lab.page(page) as reader:
        prompt = reader.page.locator(".wb-prompt")
        prompt.wait_for()
        assert prompt.locator(".wb-text span").count() > 50
        assert ("wb-dark" in prompt.get_attribute("class")) == (paper != "#ffffff")
        ratio = prompt.locator("input[type=range]").first
        before = float(reader.page.evaluate("model.get('wanted').ratio"))
        ratio.focus()
        reader.page.keyboard.press("ArrowRight")
        reader.page.wait_for_function("window.sent.length > 0")
        assert reader.page.evaluate("window.sent.at(-1).wanted.ratio") > before
        assert prompt.locator(".wb-stale").count() > 0, "what is older is marked"
        assert reader.page.evaluate("window.refused") == []
        assert (reader.left_the_machine, reader.problems) == ([], [])
