"""Sphinx configuration: MyST Markdown, the theme Furo, formulas as MathML, no external resources.

`make docs` (`workbench.app.docs.site`) copies this folder, adds generated pages and builds runs/docs/index.html.
"""

from importlib.util import find_spec

from docutils import nodes
from latex2mathml.converter import convert

from workbench.app.docs import methods as docs_text

project = "Cached-block workbench"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autodoc_mock_imports = [name for name in ("triton",) if find_spec(name) is None]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["commands.css"]  # long lines of code are wrapped
html_show_search_summary = False  # fetches pages, which browsers refuse for file://
html_copy_source = False
html_show_copyright = False
html_use_index = True
html_math_renderer = "mathml"
pygments_style, pygments_dark_style = "default", "monokai"
add_module_names = False
smartquotes = False
toc_object_entries = False  # else every page lists all objects


def _inline(translator, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator, node: nodes.math_block) -> None:
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def _docstring(app, what, name, obj, options, lines: list[str]) -> None:
    lines[:] = docs_text.rst("\n".join(lines))


def _skipped(app, what: str, name: str, member, skip: bool, options) -> bool | None:
    """Skip imported objects, before autodoc reads their signature and source."""
    here = app.env.temp_data.get("autodoc:module")
    elsewhere = what == "module" and here and getattr(member, "__module__", here) != here
    return True if elsewhere else None


def setup(app) -> None:
    """Register MathML formulas, and the project's docstring format."""
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-skip-member", _skipped)
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
