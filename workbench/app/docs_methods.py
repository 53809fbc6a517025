"""A page for every method, made of its class (what it does, formula, options, code) and of committed results."""

import ast
from collections.abc import Iterator
from pathlib import Path

import griffe

from workbench.app.docs_api import package
from workbench.app.docs_results import Results
from workbench.app.docs_text import escaped, markdown, table

KINDS = {  # folder of `workbench.methods` → heading, what its files are
    "modes": ("Modes", "How a prompt gets its keys and values."),
    "prepare": ("Preparations", "What a passage saw before its keys and values were cached."),
    "select": ("Selectors", "Which cached tokens are recomputed."),
    "sparse": ("Sparse methods", "Which key tiles are attended to."),
}
MODE_OF = {"full": "full", "reuse": "block", "superposition": "superposition"}
OPTIONS = {"prepare": "prepare", "select": "select", "sparse": "sparse"}  # of the command line and of `generate`
FITTED = ("seer_attention",)


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of every page: `index`, then one a method, as `select-query_guided`."""
    results = Results(root / "data" / "benchmarks")
    yield "index", _index(root)
    for folder in KINDS:
        for module in policies(root, folder):
            yield f"{folder}-{module.name}", page(root, folder, module, results)


def policies(root: Path, folder: str) -> list[griffe.Module]:
    """Return modules of a folder of policies, by name."""
    modules = package(root)[f"methods.{folder}"].modules.values()
    return sorted(
        (each for each in modules if not each.is_alias and not each.name.startswith("_")), key=lambda each: each.name
    )


def page(root: Path, folder: str, module: griffe.Module, results: Results) -> str:
    """Return the page of one method."""
    made = policy(module)
    head = markdown(module.docstring.value) if module.docstring else ""
    body = markdown(made.docstring.value) if made.docstring else ""
    file = f"workbench/methods/{folder}/{module.name}.py"
    parts = [f"# {module.name}", f"*{KINDS[folder][0]}*: {head}", "## What it does", body, _options(root, made)]
    parts += ["## Use it", use(folder, module.name), "## How it does", _results(folder, module.name, results)]
    parts += ["## Code", f"`{file}`", f"```python\n{(root / file).read_text().rstrip()}\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


def policy(module: griffe.Module) -> griffe.Class:
    """Return the class of a module that carries its name."""
    camel = module.name.title().replace("_", "")
    return next(each for name, each in module.classes.items() if name.startswith(camel) and not each.is_alias)


def use(folder: str, name: str) -> str:
    """Return how to ask for a method, on the command line and in Python."""
    method = command(folder, name)
    python = f"MethodConfig({', '.join(f'{key}={value!r}' for key, value in fields(folder, name).items())})"
    options = "" if folder == "modes" else f"Every option may be given: `{name}(option=value)`."
    more = " It needs a gate that was fitted to the model: `workbench sparse --help`." if name in FITTED else ""
    return (
        f"```sh\n{method}\n```\n\n```python\nfrom workbench.methods.config import MethodConfig\n\n"
        f"method = {python}\n```\n\n{options}{more}"
    ).rstrip()


def fields(folder: str, name: str) -> dict[str, str]:
    """Return the fields of a trial that choose a method."""
    if folder == "modes":
        return {"mode": MODE_OF[name]}
    return {"mode": "full", "sparse": name} if folder == "sparse" else {"mode": "block", OPTIONS[folder]: name}


def command(folder: str, name: str) -> str:
    """Return a trial of the method on the lab model."""
    given = " ".join(f"--{key} {value}" for key, value in fields(folder, name).items())
    return f"workbench trial --model lab-full --data lab --samples 20 {given}"


def _results(folder: str, name: str, results: Results) -> str:
    if folder == "modes":
        return results.of_mode(MODE_OF[name])
    reader = {"prepare": results.of_preparation, "select": results.of_selector, "sparse": results.of_sparse}
    return reader[folder](name)


def _options(root: Path, made: griffe.Class) -> str:
    """Return a table of the options with their defaults."""
    rows = []
    for each in made.attributes.values():
        if each.annotation is None or "property" in each.labels or each.name.isupper():
            continue
        value = default(root, str(each.value)) if each.value is not None else ""
        if value is not None:
            rows.append((f"`{each.name}`", f"`{each.annotation}`", f"`{value}`" if value else "needed"))
    return f"### Options\n\n{table(('option', 'type', 'default'), rows)}" if rows else ""


def default(root: Path, value: str) -> str | None:
    """Return the default of an option from its source: of `fraction(0.99)` 0.99; None of a field that is no option."""
    node = ast.parse(value, mode="eval").body
    if not isinstance(node, ast.Call):
        return value
    words = {word.arg: word.value for word in node.keywords}
    name = ast.unparse(node.func).rpartition(".")[2]
    if name == "field":
        if ast.unparse(words.get("init", ast.Constant(True))) == "False" or "default" in words:
            return None
        return ast.unparse(words["default_factory"]) if "default_factory" in words else ""
    if node.args:
        return ast.unparse(node.args[0])
    return _declared(root, name)


def _declared(root: Path, helper: str) -> str:
    """Return the default that a helper without arguments declares: the first argument of the call that it returns."""
    for file in ("registry.py", "select/__init__.py", "sparse/__init__.py"):
        source = (root / "workbench" / "methods" / file).read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == helper:
                returned = next(part.value for part in node.body if isinstance(part, ast.Return))
                assert isinstance(returned, ast.Call)
                return ast.unparse(returned.args[0])
    raise KeyError(helper)


def _index(root: Path) -> str:
    """Return all methods by kind, and the published ones as choices of them."""
    parts = ["# Methods", "Any preparation, selector, ratio and sparse method go together."]
    parts.append("A published method is one choice of them: `workbench trial --method NAME`.")
    parts += ["## Published methods", table(("name", "published as", "source", "choice"), _published(root))]
    for folder, (heading, said) in KINDS.items():
        entries = []
        for module in policies(root, folder):
            first = module.docstring.value.splitlines()[0] if module.docstring else ""
            entries.append((f"[{module.name}]({folder}-{module.name}.md)", escaped(first)))
        parts += [f"## {heading}", said, table(("name", "what it does"), entries)]
        names = "\n".join(f"{folder}-{module.name}" for module in policies(root, folder))
        parts.append(f"```{{toctree}}\n:hidden:\n:titlesonly:\n\n{names}\n```")
    return "\n\n".join(parts) + "\n"


def _published(root: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows of the published methods, from the source of `methods.presets`."""
    tree = ast.parse((root / "workbench" / "methods" / "presets.py").read_text())
    assigned = next(x for x in tree.body if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "METHODS")
    assert isinstance(assigned.value, ast.Dict)
    for key, made in zip(assigned.value.keys, assigned.value.values, strict=True):
        assert isinstance(made, ast.Call) and key is not None
        title, source = (ast.literal_eval(part) for part in made.args[:2])
        choice = _words(made.args[2])
        yield f"`{ast.literal_eval(key)}`", title, escaped(source), f"`{', '.join(choice)}`"


def _words(made: ast.expr) -> list[str]:
    """Return the fields of a trial that a published method chooses.

    They stand in a dict, or in `_block(…)` and `_after_system(…)`.
    """
    if isinstance(made, ast.Dict):
        return [f"{ast.literal_eval(k)}={ast.unparse(v)}" for k, v in zip(made.keys, made.values, strict=True) if k]
    assert isinstance(made, ast.Call)
    before = {"_block": ["mode='block'"], "_after_system": ["mode='block'", "prepare='after_system'"]}
    return [*before[ast.unparse(made.func)], *(ast.unparse(word) for word in made.keywords)]
