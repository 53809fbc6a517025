"""Pages that the documentation makes of docstrings: every method has one, with its formula."""

import ast
import re
from importlib import import_module
from inspect import isfunction
from pathlib import Path

import pytest
from latex2mathml.converter import convert

from workbench import results
from workbench.app.docs import methods as docs_methods
from workbench.app.docs import methods as docs_text
from workbench.app.docs import site as docs_site
from workbench.methods import registry
from workbench.methods.config import MethodConfig
from workbench.methods.presets import METHODS

ROOT = Path(__file__).parents[1]
PLAIN = {"all", "none", "random", "dense", "full"}  # a sentence says what these do
OURS = PLAIN | {"answer_guided", "behind_document", "oracle"}  # and what nobody published
PARTS = {"prepare", "select", "correct", "attend"}
POLICIES = [(folder, name) for folder in docs_methods.KINDS for name in docs_methods.names(folder)]


@pytest.fixture(scope="module")
def pages():
    return dict(docs_methods.pages(ROOT))


def test_every_method_has_a_page(pages):
    assert set(pages) == {f"{folder}-{name}" for folder, name in POLICIES} | {"index", "psr"}
    assert (
        all(f"| `{name}` |" in pages["index"] for name in METHODS if name != "psr")
        and "[psr](psr.md)" in pages["index"]
    )


def test_the_page_of_a_composition_says_what_each_part_adds(pages):
    part = pages["psr"].partition("## What each part adds")[2].partition("##")[0]
    rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == [f"| {name}" for name in results.read().counts("parts").method.unique()]
    assert all(bool(row[2].strip()) == bool(i) for i, row in enumerate(rows[2:])), "the first adds to nothing"


def test_every_page_says_what_it_does_how_to_use_it_how_it_did_and_shows_its_code(pages):
    for name, text in pages.items():
        if name not in ("index", "psr"):
            assert re.findall(r"^## (.+)$", text, re.M)[:4] == ["What it does", "Use it", "How it does", "Code"]
            assert "workbench trial --model " in text
            (notebook,) = re.findall(r"workbench report (notebooks/\S+\.ipynb)", text)
            assert (ROOT / notebook).is_file()


@pytest.mark.parametrize(("folder", "name"), POLICIES)
def test_what_a_page_says_of_using_a_method_chooses_what_the_method_needs(folder, name):
    config = MethodConfig(**docs_methods.fields(folder, name))
    words = docs_methods.command(folder, name).split()
    assert (words[words.index("--model") + 1] == "lab-full") == (config.prepare != "packet"), "it has no soft tokens"
    assert (config.chunk is not None) == (name == "quoka"), "of a whole prompt it chooses nothing"
    assert config.select != "none" or config.attend != "chosen", "with nothing recomputed passages are not read"


@pytest.mark.parametrize(("folder", "name"), POLICIES)
def test_a_method_has_a_formula_and_says_whether_it_follows_its_paper_its_code_or_a_description(folder, name):
    policy, _ = registry.find_policy(f"workbench.methods.{folder}", name, docs_methods.GIVEN)
    formulas = re.findall(r"\$\$(.+?)\$\$", policy.__doc__, re.S)
    assert formulas or name in PLAIN, f"{name} has no formula: put one in its docstring, between $$"
    assert all("<math" in convert(formula, display="block") for formula in formulas)
    said = docs_methods.source_followed(folder, name)
    assert said or name in OURS
    code = said in ("released code", "a reimplementation")
    assert not code or re.search(r"`\S+` of \w[\w-]*/\w", " ".join(policy.__doc__.split())), (
        "it names file and repository"
    )


def test_the_index_says_what_every_method_follows(pages):
    rows = [line.strip("| ").split(" | ") for line in pages["index"].splitlines() if line.startswith("| ")]
    found = {row[0]: row for row in rows}
    for name, each in METHODS.items():
        assert found["[psr](psr.md)" if name == "psr" else f"`{name}`"][2] == each.follows
        parts = {
            docs_methods.source_followed(kind, str(each.fields[kind]).split("(")[0])
            for kind in PARTS & set(each.fields)
        }
        assert each.follows == "a description" or "a description" not in parts, f"{name} follows no more than its parts"
    for folder, name in POLICIES:
        row = found[f"[{name}]({folder}-{name}.md)"]
        assert (row[2] if len(row) > 2 else "") == docs_methods.source_followed(folder, name)


def test_the_reference_names_every_public_module_once():
    pages = dict(docs_methods.api(ROOT))
    named = [name for page in pages.values() for name in re.findall(r"automodule:: (\S+)", page)]
    assert len(named) == len(set(named)) and set(pages) == {*docs_methods.FOLDERS}
    index = (ROOT / "docs" / "api" / "index.md").read_text()
    for folder in docs_methods.FOLDERS:
        assert f"[{folder}]({folder}.md)" in index and f"\n{folder}\n" in index
        assert "```python\n" in pages[folder], "an example"
        root = ROOT if folder == "kernels" else ROOT / "workbench"
        files = {f"workbench.{folder}.{path.stem}" for path in (root / folder).glob("[!_]*.py")}
        assert files <= set(named)


@pytest.mark.parametrize(
    ("docstring", "written"),
    [
        ("Read `a_b` of a_b*.", r"Read \ :code:`a_b`\  of a\_b\*."),
        ("k   first\n    more\nlonger  second", "- \\ :code:`k`\\ : first more\n- \\ :code:`longer`\\ : second"),
        ("Head.\n\n    x = 1\n    y = 2\n\nEnd.", "Head.\n\n.. code-block:: text\n\n   x = 1\n   y = 2\n\nEnd."),
        ("Let $x_1$.\n\n$$x_1^2$$", "Let \\ :math:`x_1`\\ .\n\n.. math::\n\n   x_1^2"),
    ],
)
def test_a_docstring_becomes_markup_and_what_looks_like_markup_stays_text(docstring, written):
    assert "\n".join(docs_text.rst(docstring)) == written


def public() -> list[tuple[str, ast.AST, list[str]]]:
    """Return name, tree and lines of every module of the reference."""
    names = [name for folder in docs_methods.FOLDERS for name in docs_methods.modules_of(f"workbench.{folder}")]
    texts = [(name, Path(import_module(name).__file__).read_text()) for name in names]
    return [(name, ast.parse(text), text.splitlines()) for name, text in texts]


def is_code(paragraph: str) -> bool:
    try:
        return any(isinstance(node, ast.Call | ast.Assign) for node in ast.walk(ast.parse(paragraph)))
    except SyntaxError:
        return False


def test_examples_in_docstrings_are_indented_so_that_pages_show_them_as_code():
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for name, tree, _ in public():
        for said in (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)):
            shown = [part for part in said.split("\n\n") if not part.startswith("    ") and "$$" not in part]
            assert not [part for part in shown if is_code(part)], name


def test_comments_on_fields_of_public_classes_are_on_their_pages():
    for name, tree, lines in public():
        for made in (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"):
            for field in (node for node in made.body if isinstance(node, ast.AnnAssign)):
                private = field.target.id.startswith("_")
                assert private or "  # " not in lines[field.lineno - 1], f"{name}: {field.target.id} needs `#:`"


def test_functions_of_the_reference_have_the_signature_of_their_source():
    """Sphinx compares both and refuses to build a site where they differ, as those of commands do."""
    for name in (name for name, *_ in public()):
        functions = [value for value in vars(import_module(name)).values() if isfunction(value)]
        assert not [made.__name__ for made in functions if made.__module__ == name and "__signature__" in vars(made)]


def test_a_site_of_the_same_files_is_left_as_it_is(tmp_path):
    (tmp_path / docs_site.STAMP).write_text(docs_site._state())
    assert docs_site.build(tmp_path) == tmp_path / "index.html"
    assert not (tmp_path / "index.html").exists()


def test_without_its_packages_the_site_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(docs_site, "NEEDED", ("no_such_package",))
    assert docs_site.missing() == "the documentation needs no_such_package: pip install 'cached-block-workbench[docs]'"
    with docs_site.Building(True) as building:
        assert building.copy_when_built(tmp_path / "docs") is False
