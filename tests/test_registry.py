"""Policies by name: what a spec says, and how a list of specs is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_prepare import CORPUS
from workbench.core.errors import BadInput
from workbench.methods import prepare, registry

WORD = st.from_regex(r"[a-z]{2,8}", fullmatch=True).filter(lambda word: word not in ("as", "in", "is", "if", "or"))
VALUE = st.one_of(st.integers(-5, 99), st.booleans(), st.none(), st.text("ab c/.-", min_size=1, max_size=6))


@given(st.dictionaries(WORD, VALUE, max_size=3))
def test_a_spec_reads_as_it_is_written(options):
    options = {f"o_{key}": value for key, value in options.items()}
    spec = f"name({', '.join(f'{key}={value!r}' for key, value in options.items())})"
    assert registry.parse(spec) == ("name", options) and registry.parse("name") == ("name", {})
    assert registry.split(f"{spec}, other,{spec}") == [spec, "other", spec]


@pytest.mark.parametrize("text", ["all", "last", "owner/name-of.it", "float32"])
def test_words_need_no_quotation_marks(text):
    assert registry.parse(f"x(a={text}, b=2)") == ("x", {"a": text, "b": 2})


def test_lists_within_brackets_stay_whole():
    spec = "query_guided(layers=[0, 1], tokens=last)"
    assert registry.split(f"none,{spec}") == ["none", spec]
    assert registry.parse(spec) == ("query_guided", {"layers": [0, 1], "tokens": "last"})


@pytest.mark.parametrize("spec", ["independent", "after_system(system=2)", "with_neighbours(n=3, search=exact)"])
def test_the_spec_of_a_policy_makes_it_again(spec):
    policy = prepare.named(spec, corpus=CORPUS)
    again = prepare.named(registry.spec_of(policy), corpus=CORPUS)
    assert again == policy and registry.spec_of(again) == registry.spec_of(policy)


@pytest.mark.parametrize("spec", ["", "1", "a b", "x(1)", "x(**{})", "x.y", "x(a=1"])
def test_what_is_no_spec_is_refused(spec):
    with pytest.raises(BadInput, match="is not understood"):
        registry.parse(spec)
