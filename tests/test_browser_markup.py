"""Markup of strangers in a real JupyterLab: in passages, questions, answers, names of files, models and methods."""

import json
import shutil

import nbformat
import pytest

pytestmark = pytest.mark.browser

HOSTILE = [
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
NAME = "<img src=x onerror=window.owned=1><b style='background:url(http:a.example)'>"  # a file's: it holds no slash
CELLS = """from IPython.display import Markdown
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
  const bad = [...place.querySelectorAll(`.jp-OutputArea-output :is(${tags})`)];
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
    model, file, store = place / NAME, place / f"{NAME}.jsonl", place / f"{NAME} kept"
    shutil.copytree(folder, model)
    passages = [{"title": HOSTILE[i], "text": " ".join(HOSTILE[i::2])} for i in range(2)]
    record = {"question": " ".join(HOSTILE[:3]), "answers": HOSTILE, "ctxs": passages}
    file.write_text(json.dumps(record) + "\n")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = nbformat.v4.new_notebook(metadata=kernel)
    given = {"model": str(model), "file": str(file), "hostile": HOSTILE, "store": str(store)}
    book.cells = [nbformat.v4.new_code_cell(part) for part in CELLS.format(**given).split("\n---\n")]
    nbformat.write(book, path := place / "strange.ipynb")
    return path


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
