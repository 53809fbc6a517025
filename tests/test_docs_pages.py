"""Pages that the documentation makes of classes and results: every method has one, and no number is typed by hand."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from latex2mathml.converter import convert

from workbench.app import docs_methods, docs_site, docs_text
from workbench.app.docs_results import Results
from workbench.methods import modes, prepare, registry, select, sparse
from workbench.methods.presets import METHODS

ROOT = Path(__file__).parents[1]
FOLDERS = {"modes": modes, "prepare": prepare, "select": select, "sparse": sparse}
PLAIN = {"all", "none", "random", "dense", "full"}  # a sentence says what these do


@pytest.fixture(scope="module")
def pages():
    return dict(docs_methods.pages(ROOT))


def test_every_method_has_a_page(pages):
    names = {f"{folder}-{name}" for folder, package in FOLDERS.items() for name in registry.names(package.__name__)}
    assert set(pages) == names | {"index"}
    assert all(f"| `{name}` |" in pages["index"] for name in METHODS)


def test_every_page_says_what_it_does_how_to_use_it_how_it_did_and_shows_its_code(pages):
    for name, text in pages.items():
        if name != "index":
            assert re.findall(r"^## (.+)$", text, re.M)[:4] == ["What it does", "Use it", "How it does", "Code"]
            assert "workbench trial --model lab-full" in text


def test_formulas_are_drawn_without_a_network(pages):
    for name, text in pages.items():
        formulas = re.findall(r"\$\$(.+?)\$\$", text.split("## Code")[0], re.S)
        if name != "index" and name.partition("-")[2] not in PLAIN:
            assert formulas, f"{name} has no formula: put one in its docstring, between $$"
        assert all("<math" in convert(formula, display="block") for formula in formulas)


@pytest.mark.parametrize("folder", ["prepare", "select", "sparse"])
def test_options_are_those_of_the_policy_with_their_defaults(pages, folder):
    for name in registry.names(FOLDERS[folder].__name__):
        given = {"corpus": None} if folder == "prepare" else {"trained": None, "profiled": ()}
        policy, _ = registry.found(FOLDERS[folder].__name__, name, given)
        rows = dict(re.findall(r"^\| `(\w+)` \| `.+` \| (.+) \|$", pages[f"{folder}-{name}"], re.M))
        for field in fields(policy):
            if field.name not in given and field.init and field.repr:
                assert rows[field.name] == f"`{field.default!r}`", f"{name}: {field.name}"


def test_results_of_a_page_are_those_of_the_file():
    results = Results(ROOT / "data" / "benchmarks")
    row = results.lab.query("prepare == 'after_system' and select == 'answer_guided' and ratio == 0.15").iloc[0]
    said = results.of_selector("answer_guided")
    assert f"At 15%, exact match is {row.em:.1%}" in said
    assert f"`answer_guided` at 15% | {row.em:.1%} ({row.em_low:.1%} to {row.em_high:.1%})" in said
    assert results.of_sparse("seer_attention").count("`seer_attention(") == 5
    assert "Not measured there" in results.of_selector("no_such_selector")


@pytest.mark.parametrize(
    ("docstring", "written"),
    [
        ("Read `a_b` of a_b, arXiv:2404.06910.", "[arXiv:2404.06910](https://arxiv.org/abs/2404.06910)."),
        ("k   first\n    more\nlonger  second", "- **k**: first more\n- **longer**: second"),
        ("Head.\n\n    x = 1\n    y = 2\n\nEnd.", "Head.\n\n```text\nx = 1\ny = 2\n```\n\nEnd."),
        ("Costs $5 and <b>*", r"Costs \$5 and \<b\>\*"),
        ("Let $x_1$.\n\n$$x_1^2$$", "Let $x_1$.\n\n$$x_1^2$$"),
    ],
)
def test_a_docstring_becomes_markdown_and_what_looks_like_markup_stays_text(docstring, written):
    assert written in docs_text.markdown(docstring)


def test_a_site_of_the_same_files_is_left_as_it_is(tmp_path):
    (tmp_path / docs_site.STAMP).write_text(docs_site._state())
    assert docs_site.build(tmp_path) == tmp_path / "index.html"
    assert not (tmp_path / "index.html").exists()


def test_without_its_packages_the_site_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(docs_site, "NEEDED", ("no_such_package",))
    assert docs_site.missing() == "the documentation needs no_such_package: pip install 'cached-block-workbench[docs]'"
    with docs_site.Building(True) as building:
        assert building.put(tmp_path / "docs") is False
