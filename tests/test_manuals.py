"""Questions over documentation that is installed."""

import json
import re
from collections import Counter
from inspect import cleandoc

import pytest

from tests.commands import refused_command, told
from tests.refusals import refused
from workbench import data
from workbench.data.installed_docs import pages as manual_pages
from workbench.data.installed_docs import samples as manuals
from workbench.data.installed_docs.questions import KINDS, items, plain, questions
from workbench.data.sample import stands_in
from workbench.experiments.trials.trial import Trial

NUMPY = cleandoc(
    """
    Return a smooth version of `a`.

    .. versionadded:: 1.4

    Uses :func:`numpy.convolve`, see [1]_ and `the guide <https://example.org>`_.

    .. math::

        x = y

    Parameters
    ----------
    a : array_like of floats
        The signal that is smoothed along its last axis. Any length.
    mode : {'full', 'same'}, optional
        The size of the output, as in convolve. Default is 'same'.

        .. versionadded:: 1.20.0
    tol : float, default=1e-3
        Where to stop.
    Returns
    -------
    out : ndarray of shape (n,)
        Smoothed.
    Raises
    ------
    ValueError
        If the signal is shorter than its window.

    Examples
    --------
    >>> smooth([1])
    1
    """
)
TORCH = cleandoc(
    """
    smooth(input, dim=-1) -> Tensor

    Smooths a tensor::

        code = 1

    Args:
        input (Tensor or Scalar): the tensor that is smoothed along dim.
        dim (int, optional): the dimension to smooth over in place. Default: ``-1``
        bound (Tuple[int, (str)], optional): goes on
            over two lines. Default: ``None`` if smooth else ``2``

    Shape:
        - Input: :math:`(N)`

    Example:
        >>> smooth(x)
    """
)


def asked(doc, name="pack.smooth"):
    return {(q.kind, q.subject): q.answer for _, q in questions(name, items(doc))}


def test_a_docstring_of_numpys_style_is_asked_for_what_it_states():
    assert asked(NUMPY) == {
        ("version", ""): "1.4",
        ("type", "a"): "array_like of floats",
        ("name", "a"): "a",
        ("values", "mode"): "{'full', 'same'}",
        ("default", "mode"): "'same'",
        ("version", "mode"): "1.20.0",
        ("name", "mode"): "mode",
        ("default", "tol"): "1e-3",
        ("returned", "out"): "ndarray of shape (n,)",
        ("error", "ValueError"): "ValueError",
    }


def test_a_docstring_of_googles_style_is_asked_for_what_it_states():
    assert asked(TORCH) == {
        ("type", "input"): "Tensor or Scalar",
        ("name", "input"): "input",
        ("default", "dim"): "-1",
        ("name", "dim"): "dim",
        ("type", "bound"): "Tuple[int, (str)]",
        ("name", "bound"): "bound",
    }


def test_code_formulas_links_and_examples_are_left_out_of_the_text():
    text = "\n".join(item.text for doc in (NUMPY, TORCH) for item in items(doc))
    assert "Uses numpy.convolve, see and the guide." in text and "Smooths a tensor:" in text
    assert not re.search(r"x = y|code|>>>|`|::|https|\[1\]|Input", text)


def test_a_question_with_two_answers_or_that_gives_its_answer_away_is_not_asked():
    twice = f"{NUMPY}\n\nOther Parameters\n----------------\ntol : float, default=2\n    Another."
    assert ("default", "tol") not in asked(twice) and ("default", "mode") in asked(twice)
    both = NUMPY.replace("Where to stop.", "Where to stop, 5 by default.")
    assert ("default", "tol") not in asked(both)
    told = NUMPY.replace("The signal that", "What a signal that")
    assert ("name", "a") not in asked(told)
    long = NUMPY.replace("array_like of floats", " or ".join(["int"] * 7))
    assert ("type", "a") not in asked(long)


@pytest.mark.parametrize(
    "text, read", [(":class:`~torch.Tensor`", "torch.Tensor"), ("``None``, `x` **y**", "None, x y")]
)
def test_markup_is_taken_off(text, read):
    assert plain(text) == read


@pytest.fixture(scope="module")
def drawn():
    return data.load("manuals", samples=140, seed=3)


def test_a_draw_depends_on_the_seed_only_and_a_longer_one_begins_with_a_shorter(drawn):
    assert data.load("manuals", samples=35, seed=3) == drawn[:35]
    assert data.load("manuals", samples=35, seed=4) != drawn[:35]
    assert len({sample.id for sample in drawn}) == len({sample.question for sample in drawn}) == 140


def test_kinds_come_in_turn_and_answers_are_spread(drawn):
    assert [sample.kind for sample in drawn[:14]] == [*KINDS, *KINDS]
    for kind in set(KINDS) - {"error"}:
        assert max(Counter(sample.answers for sample in drawn if sample.kind == kind).values()) == 1


def test_only_one_passage_of_a_context_holds_the_answer_and_the_question_names_its_object(drawn):
    for sample in drawn:
        (gold,) = (ctx for ctx in sample.ctxs if ctx.title in sample.supporting_titles)
        assert gold.title in sample.question and 1 <= len(sample.answers[0].split()) <= 12
        holding = [ctx for ctx in sample.ctxs if stands_in(sample.answers[0], ctx.text)]
        assert holding == [gold] and not stands_in(sample.answers[0], sample.question)
        assert len({ctx.title for ctx in sample.ctxs}) == len(sample.ctxs) == 10


def test_passages_are_short_texts_without_markup_and_the_answering_one_stands_anywhere(drawn):
    ctxs = {ctx for sample in drawn for ctx in sample.ctxs}
    assert all(60 <= len(ctx.text.split()) <= 230 for ctx in ctxs)  # a colon counts as a word
    assert sum("``" in ctx.text or ">>>" in ctx.text for ctx in ctxs) == 0
    places = Counter(i for each in drawn for i, ctx in enumerate(each.ctxs) if ctx.title in each.supporting_titles)
    assert len(places) == 10


def test_pages_are_cut_once_and_then_read_while_versions_and_code_are_the_same(tmp_path, monkeypatch):
    cutting = []
    page = manual_pages.Page("numpy", "numpy", "numpy.x", "text", (questions("x", items(NUMPY))[0][1],))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "new"))
    monkeypatch.setattr(manual_pages, "cut_pages", lambda: cutting.append(1) or (page,))
    fresh = manual_pages.pages.__wrapped__
    assert fresh() == fresh() == (page,) and len(cutting) == 1
    monkeypatch.setattr(manual_pages.platform, "python_version", lambda: "another")
    assert fresh() == fresh() == (page,) and len(cutting) == 2
    for damage in ("", "[]", '{"made of": 1}'):
        (tmp_path / "new" / "manuals.json").write_text(damage)
        assert fresh() == (page,)
    assert len(cutting) == 5
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "new" / "manuals.json"))  # no folder
    assert fresh() == fresh() == (page,) and len(cutting) == 7


def test_half_of_the_other_passages_are_of_the_same_module(drawn):
    place = {page.name: page.place for page in manual_pages.pages()}
    shares = []
    for sample in drawn:
        of = [place[ctx.title] for ctx in sample.ctxs if ctx.title not in sample.supporting_titles]
        shares.append(of.count(place[sample.supporting_titles[0]]) / len(of))
    assert 0.35 < sum(shares) / len(shares) < 0.65


def test_there_are_thousands_of_questions_of_every_kind_in_both_parts():
    for part in manuals.PARTS:
        counts = Counter(question.kind for page in manuals._pages(part) for question in page.questions)
        assert set(counts) == set(KINDS) and counts.total() >= 2000 and min(counts.values()) >= 20


def test_what_is_trained_on_shares_no_object_and_no_run_of_words_with_what_is_scored():
    test, train = (data.corpus(part)[0].ctxs for part in manuals.PARTS)
    assert {ctx.title for ctx in test}.isdisjoint(ctx.title for ctx in train)
    runs = [{run for ctx in ctxs for run in manuals.word_runs(ctx.text)} for ctxs in (test, train)]
    assert len(runs[0]) > 10000 and len(runs[1]) > 10000 and runs[0].isdisjoint(runs[1])
    for part, ctxs in zip(manuals.PARTS, (test, train), strict=True):
        assert {ctx for sample in data.load(part, 20) for ctx in sample.ctxs} < set(ctxs)


def test_methods_of_one_name_go_together():
    assert manuals.scored("pandas.DataFrame.fillna") == manuals.scored("pandas.Series.fillna")
    assert 0.3 < sum(manuals.scored(f"pack.f{i}") for i in range(500)) / 500 < 0.5


def test_packages_that_are_missing_are_left_out_and_named(monkeypatch):
    whole = manual_pages.pages.__wrapped__
    monkeypatch.setattr(manual_pages, "PLACES", {"numpy": "numpy.linalg", "no-such": "no_such_package no_such.Thing"})
    assert {page.package for page in whole()} == {"numpy"}
    assert manual_pages.versions() | {"numpy": ""} == {"numpy": "", "no-such": "not installed"}


def test_everything_is_imported_before_a_docstring_is_read(monkeypatch):
    """SciPy lengthens the docstring of numpy.sinc once it is imported, as scikit-learn does."""
    steps = []
    monkeypatch.setattr(manual_pages, "_found", lambda place: steps.append("import"))
    monkeypatch.setattr(manual_pages, "_objects", lambda place, holder: steps.append("read") or ())
    assert list(manual_pages._documents()) == []
    assert steps == sorted(steps) and {"import", "read"} == set(steps)


def test_versions_of_the_packages_are_in_records_and_ids(drawn, folder, loaded):
    versions = data.versions("manuals")
    assert set(versions) == {"numpy", "pandas", "scikit-learn", "torch"} and data.versions("lab") == {}
    for sample in drawn:
        package, rest = (
            sample.id.split("-", 1) if not sample.id.startswith("scikit") else ("scikit-learn", sample.id[13:])
        )
        assert rest.startswith(f"{versions[package]}/{sample.supporting_titles[0]}/{sample.kind}-")
    trial = Trial(str(folder), data="manuals", samples=1, passages=1, max_new_tokens=1, timed=1)
    assert versions.items() <= trial.run(loaded=loaded).versions.items()


def test_what_was_drawn_can_be_written_and_read_as_a_file(tmp_path, drawn):
    out = tmp_path / "drawn.jsonl"
    asked = ["data", "manuals", "--samples", "35", "--seed", "3", "--out", out]
    assert "35 samples, numpy" in told(*asked)
    assert data.load(out) == drawn[:35]
    refused_command(*asked[:-1], tmp_path / "drawn.txt")
    assert not (tmp_path / "drawn.txt").exists()
    assert [json.loads(line) for line in told(*asked[:6], "--json").splitlines()] == [
        sample.to_json() for sample in drawn[:35]
    ]


def test_too_many_passages_are_refused():
    said = "passages is 101; a context of manuals has 1 to 100 passages"
    refused(said, data.load, "manuals", samples=1, passages=101)
    assert len(data.load("manuals", samples=1, passages=100)[0].ctxs) == 100
    assert [len(each.ctxs) for each in data.load("manuals", samples=2, passages=1)] == [1, 1]
    said = "unknown part 'all' of the manuals: allowed are manuals, manuals-train"
    refused(said, lambda: next(manuals.samples(1, 0, part="all")))
