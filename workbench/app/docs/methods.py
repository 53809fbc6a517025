"""Documentation pages from docstrings by Sphinx's autodoc: one per method, and the API reference, one per folder.

Docstrings are plain text: paragraphs, lists of names with their meaning after two spaces, examples indented by four
spaces, and formulas between dollar signs in raw strings. A comment `#:` after a field of a class describes the field.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from pkgutil import iter_modules

from workbench.methods import registry
from workbench.methods.presets import METHODS
from workbench.results import read

ITEM = re.compile(r"^([^\s].*?) {2,}(\S.*)$")
CODE = re.compile(r"(`[^`\n]+`)")
MATH = re.compile(r"(`[^`\n]+`|\$[^$\n]+\$)")
SIGNS = {"rst": re.compile(r"([\\*_|`])"), "md": re.compile(r"([\\*_\[\]{}<>$|#~])")}
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
FOLLOWS = re.compile(r"\*Follows (released code|a reimplementation|the paper|a description)")


def rst(docstring: str) -> list[str]:
    """Convert a docstring to lines of reStructuredText: formulas, code, lists and text."""
    text = cleandoc(docstring)
    has_math = "$$" in text
    return "\n\n".join(_paragraph(part, has_math) for part in re.split(r"\n\s*\n", text) if part.strip()).split("\n")


def _paragraph(part: str, has_math: bool) -> str:
    lines = part.rstrip().splitlines()
    if has_math and part.lstrip().startswith("$$"):
        return _block("math::", [line.strip() for line in part.replace("$$", "").strip().splitlines()])
    if all(line.startswith("    ") for line in lines):
        return _block("code-block:: text", [line[4:] for line in lines])
    if ITEM.match(lines[0]):
        return _items(lines, has_math)
    return _text(" ".join(line.strip() for line in lines), has_math)


def _block(directive: str, lines: Sequence[str]) -> str:
    return "\n".join([f".. {directive}", "", *(f"   {line}" for line in lines)])


def _items(lines: Sequence[str], has_math: bool) -> str:
    """Return a definition list of names and meanings."""
    items: list[list[str]] = []
    for line in lines:
        if found := ITEM.match(line):
            items.append([found[1], found[2]])
        elif line.startswith(" ") or not items[-1][1]:
            items[-1][1] += f" {line.strip()}"
        else:
            items.append([line.strip(), ""])
    named = ((f"`{name}`" if name.isidentifier() else name, text) for name, text in items)
    return "\n".join(f"- {_text(name, has_math)}: {_text(text, has_math)}".rstrip(": ") for name, text in named)


def _text(text: str, has_math: bool) -> str:
    parts = (MATH if has_math else CODE).split(text)
    return "".join(_marked(part) if i % 2 else SIGNS["rst"].sub(r"\\\1", part) for i, part in enumerate(parts))


def _marked(part: str) -> str:
    """Return code or a formula that may touch adjacent text."""
    role, text = ("math", part.strip("$")) if part[0] == "$" else ("code", part.strip("` ").replace("\\", "\\\\"))
    return rf"\ :{role}:`{text}`\ "


def escape_markdown(text: str) -> str:
    """Escape Markdown in a text, except code; link papers."""
    said = [part if i % 2 else SIGNS["md"].sub(r"\\\1", part) for i, part in enumerate(CODE.split(text))]
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", "".join(said))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


KINDS = {  # folder of `workbench.methods` → heading, description, notebook that compares them
    "modes": ("Modes", "How a prompt gets its keys and values.", "03_reuse"),
    "prepare": ("Preparations", "What a passage saw before its keys and values were cached.", "08_recompute_tradeoff"),
    "select": ("Selectors", "Which cached tokens are recomputed.", "08_recompute_tradeoff"),
    "correct": ("Corrections", "How cached tokens that are not recomputed are corrected.", "08_recompute_tradeoff"),
    "attend": ("Attention rules", "What computed rows attend to.", "08_recompute_tradeoff"),
    "sparse": ("Sparse methods", "Which key tiles are attended to.", "10_sparse_quality"),
}
MODE_OF = {"full": "full", "reuse": "block", "superposition": "superposition"}
OPTIONS = {
    name: name for name in ("prepare", "select", "correct", "attend", "sparse")
}  # for the command line and `generate`
FITTED = ("seer_attention",)
SCORED = ("relax_kv", "fuse", "chosen")  # need a selector
CHUNKED = {"quoka": 256}  # select among the tokens before a chunk
MODELS = {"packet": "smollm2-reader-packet"}  # method → model that has what it reads
GIVEN = {"corpus": None, "trained": None, "profiled": ()}  # options that a spec cannot express


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of every page: `index`, compositions, then one per method, as `select-query_guided`."""
    yield "index", _index()
    yield "psr", _psr()
    for folder in KINDS:
        for name in names(folder):
            yield f"{folder}-{name}", page(root, folder, name)


def names(folder: str) -> list[str]:
    """List the methods of a folder."""
    return registry.names(f"workbench.methods.{folder}")


def page(root: Path, folder: str, name: str) -> str:
    """Return the page of one method."""
    heading, _, notebook = KINDS[folder]
    file = f"workbench/methods/{folder}/{name}.py"
    policy, _ = registry.find_policy(f"workbench.methods.{folder}", name, GIVEN)
    parts = [
        f"# {name}",
        f"*{heading}*: {_head(folder, name)}",
        "## What it does",
        f"```{{eval-rst}}\n.. autoclass:: {policy.__module__}.{policy.__name__}\n   :no-index:\n```",
        "## Use it",
        use(folder, name),
        "## How it does",
        f"`workbench report notebooks/{notebook}.ipynb` draws it beside the others, measured on the shipped models; "
        "with `--results FOLDER`, from your own trials.",
        "## Code",
        f"`{file}`",
        f"```python\n{(root / file).read_text(encoding='utf-8').rstrip()}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def use(folder: str, name: str) -> str:
    """Return how to use a method, on the command line and in Python."""
    method = command(folder, name)
    python = f"MethodConfig({', '.join(f'{key}={value!r}' for key, value in fields(folder, name).items())})"
    options = "" if folder == "modes" else f"Every option may be given: `{name}(option=value)`."
    more = " It needs a gate that was fitted to the model: `workbench sparse --help`." if name in FITTED else ""
    return (
        f"```sh\n{method}\n```\n\n```python\nfrom workbench.methods.config import MethodConfig\n\n"
        f"method = {python}\n```\n\n{options}{more}"
    ).rstrip()


def fields(folder: str, name: str) -> dict[str, str | int]:
    """Return the fields of a trial that choose a method."""
    if folder == "modes":
        return {"mode": MODE_OF[name]}
    if folder == "sparse":
        return {"mode": "full", "sparse": name, **({"chunk": CHUNKED[name]} if name in CHUNKED else {})}
    scored = {"select": "query_guided"} if name in SCORED else {}
    return {"mode": "block", **scored, OPTIONS[folder]: name}


def command(folder: str, name: str) -> str:
    """Return a trial of the method, on the lab model if that has what it reads."""
    given = " ".join(f"--{key} {value}" for key, value in fields(folder, name).items())
    return f"workbench trial --model {MODELS.get(name, 'lab-full')} --data lab --samples 20 {given}"


def _head(folder: str, name: str) -> str:
    """Return the first line of a method's file."""
    return escape_markdown((import_module(f"workbench.methods.{folder}.{name}").__doc__ or "").splitlines()[0])


def source_followed(folder: str, name: str) -> str:
    """Return what a method follows, from its docstring; "" if unpublished."""
    policy, _ = registry.find_policy(f"workbench.methods.{folder}", name, GIVEN)
    found = FOLLOWS.search(policy.__doc__ or "")
    return found[1] if found else ""


def _index() -> str:
    """Return the index: all methods by kind, and published ones as combinations."""
    parts = ["# Methods", "Any preparation, selector, ratio and sparse method go together."]
    parts.append("A published method is one choice of them: `workbench trial --method NAME`.")
    parts.append(
        "Each says what it follows: released code that was read, a reimplementation by others, its paper, or a "
        "description, where no more was found; its page names files and differences. A ratio is rounded to whole "
        "tokens, where released code cuts it down: at most one token more."
    )
    published = [
        (
            "[psr](psr.md)" if name == "psr" else f"`{name}`",
            f"{each.title}: {escape_markdown(each.source)}",
            each.follows,
            _choice(name),
        )
        for name, each in METHODS.items()
    ]
    parts += ["## Published methods", table(("name", "published as", "follows", "choice"), published)]
    for folder, (heading, said, _) in KINDS.items():
        entries = [
            (f"[{name}]({folder}-{name}.md)", _head(folder, name), source_followed(folder, name))
            for name in names(folder)
        ]
        parts += [f"## {heading}", said, table(("name", "what it does", "follows"), entries)]
        listed = "\n".join(f"{folder}-{name}" for name in names(folder))
        parts.append(f"```{{toctree}}\n:hidden:\n:titlesonly:\n\n{listed}\n```")
    parts.append("```{toctree}\n:hidden:\n:titlesonly:\n\npsr\n```")
    return "\n\n".join(parts) + "\n"


def _choice(name: str) -> str:
    """Return the fields of a trial that select a published method."""
    return f"`{', '.join(f'{k}={v!r}' for k, v in METHODS[name].fields.items())}`"


def _psr() -> str:
    """Return the page of PSR, a composition of methods with their own pages."""
    method, links = (
        METHODS["psr"],
        "[link0](prepare-link0.md), [kv_deviation](select-kv_deviation.md), [ape](attend-ape.md)",
    )
    parts = [
        "# psr",
        f"*Published method*: {links} together, as in {escape_markdown(method.source)}.",
        f"*Follows a description of its parts; its code is not public.* Reported: {method.reported}.",
        "## Use it",
        f"```sh\nworkbench trial --model smollm2 --data needles --method psr\n```\n\nIt stands for {_choice('psr')}.",
        *_added(),
    ]
    return "\n\n".join(parts) + "\n"


ADDED = {
    "em": "exact match",
    "f1": "F1",
    "kl": "KL from full attention, nats a token",
}  # measures of a composition's parts


def _added() -> list[str]:
    """Return the measured contribution of each part of PSR; nothing if not measured."""
    found = read().counts("parts")
    if found.empty:
        return []
    head = ["part", *(cell for words in ADDED.values() for cell in (words, "added (95%)"))]
    lines = []
    for step, rows in found.groupby("method", sort=False):
        known, cells = rows.set_index("measure"), [str(step)]
        for name in ADDED:
            more = known.loc[f"{name}_added"] if f"{name}_added" in known.index else None
            cells.append(f"{known.value[name]:.3f}")
            cells.append("" if more is None else f"{more.value:+.3f} ({more.low:+.3f} to {more.high:+.3f})")
        lines.append(cells)
    one = found.iloc[0]
    said = f"{one.model} on {one.data}, {one.n:.0f} questions, {one.passages:.0f} passages; differences by question."
    return ["## What each part adds", said, table(head, lines)]


FOLDERS = "core kernels data models engine store methods metrics results experiments training plots app".split()
# Documented by `--help`.
COMMANDS = ("workbench.app.commands", "workbench.app.leaderboard.command", "workbench.app.training")
MODULE = "## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n   :ignore-module-all:\n```"


def api(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of every folder's page: the head from docs/api, then its modules."""
    for folder in FOLDERS:
        head = (root / "docs" / "api" / f"{folder}.md").read_text(encoding="utf-8")
        yield folder, "\n\n".join([head, *(MODULE.format(name=name) for name in modules_of(f"workbench.{folder}"))])


def modules_of(package: str) -> Iterator[str]:
    """Yield the names of a package and its public modules."""
    yield package
    for module in sorted(iter_modules(import_module(package).__path__), key=lambda each: each.name):
        name = f"{package}.{module.name}"
        if not module.name.startswith("_") and name not in COMMANDS:
            yield from modules_of(name) if module.ispkg else [name]
