"""Pages of installed documentation: docstrings of public objects, cut into passages with their questions.

A package that is not installed is left out. Modules are imported from a fixed list, so the pages depend on the packages
and their versions alone. They are kept in the user's cache and read from there while these stay the same.
"""

import inspect
import json
import platform
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

from workbench.core.utils import versions as installed
from workbench.core.utils.files import write_text
from workbench.data import assets
from workbench.data.installed_docs import questions as questions_of
from workbench.data.installed_docs.questions import DocQuestion, DocstringItem, items, questions

LEAST, MOST = 60, 220  # words of a passage
REPEATED = 3  # a paragraph or entry shared by more objects is boilerplate, and left out
PLACES = {  # classes before the modules that contain them: an object belongs to its first place
    "numpy": "numpy.ndarray numpy.random.Generator numpy numpy.fft numpy.linalg numpy.ma numpy.random numpy.strings"
    " numpy.polynomial numpy.lib.stride_tricks",
    "pandas": "pandas.DataFrame pandas.Series pandas.Index pandas.MultiIndex pandas.DatetimeIndex pandas.Timestamp"
    " pandas.Series.str pandas.Series.dt pandas.api.typing.DataFrameGroupBy pandas.api.typing.Rolling"
    " pandas.api.typing.Resampler pandas pandas.api.types pandas.api.extensions",
    "scikit-learn": "sklearn.cluster sklearn.compose sklearn.covariance sklearn.cross_decomposition sklearn.datasets"
    " sklearn.decomposition sklearn.discriminant_analysis sklearn.dummy sklearn.ensemble sklearn.feature_extraction"
    " sklearn.feature_extraction.text sklearn.feature_selection sklearn.gaussian_process sklearn.impute"
    " sklearn.inspection sklearn.isotonic sklearn.kernel_approximation sklearn.linear_model sklearn.manifold"
    " sklearn.metrics sklearn.metrics.pairwise sklearn.mixture sklearn.model_selection sklearn.multiclass"
    " sklearn.naive_bayes sklearn.neighbors sklearn.neural_network sklearn.pipeline sklearn.preprocessing"
    " sklearn.random_projection sklearn.semi_supervised sklearn.svm sklearn.tree sklearn.utils",
    "torch": "torch.Tensor torch torch.fft torch.linalg torch.special torch.nn torch.nn.functional torch.nn.init"
    " torch.nn.utils torch.optim torch.optim.lr_scheduler torch.distributions torch.utils.data torch.autograd"
    " torch.sparse",
}


@dataclass(frozen=True)
class Page:
    """A passage of the docstring of object `name`, with the questions that it answers."""

    package: str
    place: str  #: the module or class that lists the object
    name: str
    text: str
    questions: tuple[DocQuestion, ...]


def versions() -> dict[str, str]:
    """Return the versions of the packages that pages are cut from."""
    return installed.versions(PLACES)


@cache
def pages() -> tuple[Page, ...]:
    """Return all pages, by package, place and name: from the user's cache, or cut once and kept there."""
    file, made_of = assets.cache() / "manuals.json", _made_of()
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["made of"] == made_of:
            return tuple(
                Page(**page | {"questions": tuple(DocQuestion(**each) for each in page["questions"])})
                for page in kept["pages"]
            )
    found = cut_pages()
    with suppress(OSError):  # read-only cache
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"made of": made_of, "pages": [asdict(page) for page in found]}))
    return found


def _made_of() -> dict[str, str]:
    """Return all that pages depend on: versions of Python and packages, and the code that cuts them."""
    code = b"".join(Path(str(module)).read_bytes() for module in (__file__, questions_of.__file__))
    versions = installed.versions((*PLACES, "scipy"))
    return versions | {"python": platform.python_version(), "code": sha256(code).hexdigest()}


def cut_pages() -> tuple[Page, ...]:
    """Cut all pages from the docstrings that are installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names warn on access
        documented = [(package, place, name, items(doc)) for package, place, name, doc in _documents()]
    times = Counter(text for *_, listed in documented for text in {item.text for item in listed})
    texts: dict[str, Page] = {}
    for package, place, name, listed in documented:
        own = [item for item in listed if times[item.text] <= REPEATED]
        asked = questions(name, own)
        for run in passages(own):
            text = _text(own[run.start : run.stop])
            page = Page(package, place, name, text, tuple(question for i, question in asked if i in run))
            texts.setdefault(text, page)
    return tuple(texts.values())


def passages(listed: Sequence[DocstringItem]) -> list[range]:
    """Return runs of items that have 60 to 220 words together; longer items and shorter runs are left out."""
    runs, begin = [], 0
    while begin < len(listed):
        end, words = begin, 0
        while end < len(listed) and (more := words + _words(listed, begin, end)) <= MOST:
            end, words = end + 1, more
        if words >= LEAST:
            runs.append(range(begin, end))
        begin = max(end, begin + 1)
    return runs


def _words(listed: Sequence[DocstringItem], begin: int, i: int) -> int:
    """Return the number of words that item `i` adds to a passage from `begin` on, its heading's included if new."""
    item = listed[i]
    new = i == begin or item.heading != listed[i - 1].heading
    return len(item.text.split()) + new * len(item.heading.split())


def _documents() -> Iterator[tuple[str, str, str, str]]:
    """Yield package, place, name and docstring of every object; each docstring once, at its first place."""
    found = [(package, place, _found(place)) for package, places in PLACES.items() for place in places.split()]
    seen: set[str] = set()
    for package, place, holder in found:  # after all imports, as importing SciPy changes a docstring of numpy
        for name, thing in _objects(place, holder):
            doc = _doc(thing)
            if doc and doc not in seen:
                seen.add(doc)
                yield package, place, name, inspect.cleandoc(doc)


def _text(listed: Sequence[DocstringItem]) -> str:
    lines, heading = [], ""
    for item in listed:
        if item.heading != heading:
            heading = item.heading
            lines.append(f"{heading}:")
        lines.append(item.text)
    return "\n".join(lines)


def _objects(place: str, holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield public functions, classes and methods of a place, by name; none if its import failed."""
    of_module = isinstance(holder, ModuleType)
    listed = getattr(holder, "__all__", None) if of_module else dir(holder)
    for name in sorted({name for name in listed or dir(holder) if not name.startswith("_")}):
        thing = _member(holder, name)
        if not callable(thing) or not _belongs(thing, place.partition(".")[0], place if listed is None else ""):
            continue
        yield f"{place}.{name}", thing
        if inspect.isclass(thing) and of_module:
            methods = {own: of for own, of in vars(thing).items() if not (own.startswith("_") or inspect.isclass(of))}
            yield from ((f"{place}.{name}.{own}", methods[own]) for own in sorted(methods))


def _found(place: str) -> Any:
    """Return the module or class of a place; None if there is none."""
    parts = place.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(parts[:cut]))
        except Exception:  # not installed, or broken, or the last part is a class
            continue
        for name in parts[cut:]:
            thing = _member(thing, name)
        return thing
    return None


def _member(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except Exception:  # packages raise errors of many types for experimental or removed names
        return None


def _belongs(thing: Any, root: str, place: str = "") -> bool:
    """Return whether an object belongs to `root` or `place`; modules without `__all__` also have imported names."""
    module = getattr(thing, "__module__", None) or "builtins"
    own = module == "builtins" or module.startswith((place or root, f"{root}._C", f"_{root}"))
    return own and module.partition(".")[0] in (root, f"_{root}", "builtins")


def _doc(thing: Any) -> str:
    """Return the object's own docstring, unchanged."""
    kinds = (staticmethod, classmethod, numpy.ufunc)
    own = inspect.isroutine(thing) or inspect.isclass(thing) or isinstance(thing, kinds)
    doc = getattr(thing, "__doc__", None) if own else None
    return doc if isinstance(doc, str) else ""
