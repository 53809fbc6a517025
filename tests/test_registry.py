"""Policies by name: what a spec says, and how a list of specs is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_prepare import CORPUS
from workbench.core.errors import BadInput
from workbench.data import embedders
from workbench.methods import prepare, registry, select
from workbench.methods.config import MethodConfig

WORD = st.from_regex(r"[a-z]{2,8}", fullmatch=True).filter(lambda word: word not in ("as", "in", "is", "if", "or"))
VALUE = st.one_of(st.integers(-5, 99), st.booleans(), st.none(), st.text("ab c/.-'\"(),=[\\é", max_size=6))


@given(st.dictionaries(WORD, VALUE, max_size=3))
def test_a_spec_reads_as_it_is_written(options):
    options = {f"o_{key}": value for key, value in options.items()}
    spec = f"name({', '.join(f'{key}={value!r}' for key, value in options.items())})"
    assert registry.parse(spec) == ("name", options) and registry.parse("name") == ("name", {})
    assert registry.split(f"{spec}, other,{spec}") == [spec, "other", spec]


@pytest.mark.parametrize("text", ["all", "last", "owner/name-of.it", "float32"])
def test_words_need_no_quotation_marks(text):
    assert registry.parse(f"x(a={text}, b=2)") == ("x", {"a": text, "b": 2})


@pytest.mark.parametrize("path", ["/a/b/minilm.npz", "../runs/01/m-x.npz", "~/m.npz", "./m.npz", r"C:\m\x.npz"])
def test_a_path_needs_no_quotation_marks_and_any_text_may_have_them(path):
    for written in (path, repr(path), f'"{path}"'.replace("\\", "\\\\")):
        spec = f"x(n=4, embedder={written})"
        assert registry.parse(spec) == ("x", {"n": 4, "embedder": path})
        assert registry.split(f"a,{spec}, b") == ["a", spec, "b"]
    odd = "/a b, (c)/it's.npz"
    assert registry.parse(f"x(embedder={odd!r})") == ("x", {"embedder": odd})


def test_a_policy_with_a_file_of_vectors_is_made_again_from_its_spec(tmp_path):
    path = tmp_path / "some vectors (1).npz"
    embedders.save(path, CORPUS.texts, "tfidf")
    policy = prepare.named(f"with_neighbours(n=2, search=exact, embedder={str(path)!r})", corpus=CORPUS)
    assert policy.embedder == str(path) and prepare.named(registry.spec_of(policy), corpus=CORPUS) == policy
    MethodConfig(mode="block", prepare=f"with_neighbours(n=2, embedder={tmp_path}/x.npz)").check()


def test_lists_within_brackets_stay_whole():
    spec = "query_guided(layers=[0, 1], tokens=last)"
    assert registry.split(f"none,{spec}") == ["none", spec]
    assert registry.parse(spec) == ("query_guided", {"layers": [0, 1], "tokens": "last"})


@pytest.mark.parametrize("spec", ["independent", "after_system(system=2)", "with_neighbours(n=3, search=exact)"])
def test_the_spec_of_a_policy_makes_it_again(spec):
    policy = prepare.named(spec, corpus=CORPUS)
    again = prepare.named(registry.spec_of(policy), corpus=CORPUS)
    assert again == policy and registry.spec_of(again) == registry.spec_of(policy)


@pytest.mark.parametrize(
    "spec", ["", "1", "a b", "x(1)", "x(**{})", "x.y", "x(a=1", "x(a=)", "x(a=1, a=2)", "x(a=b c)", "x(a=/a b)", "x(,)"]
)
def test_what_is_no_spec_is_refused(spec):
    with pytest.raises(BadInput, match="is not understood"):
        registry.parse(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("first_k(k=0)", "k is 0: how many tokens at a block's start, 1 or more"),
        ("first_k(system=-1)", "system is -1: how many blocks at the front are no passages, 0 or more"),
        ("answer_guided(window=True)", "window is True: how many tokens at the question's end, 1 or more"),
        ("answer_guided(softmax=row)", "softmax is 'row': within each 'block', or over the whole 'prompt'"),
        ("answer_guided(layers=x)", "layers is 'x': it is last, all or layer numbers in brackets, as in (0, -1)"),
        ("oracle(layers=x)", "layers is 'x': it is all, last or layer numbers in brackets, as in (0, -1)"),
        ("oracle(part=x)", "part is 'x': allowed are kv, k, v (keys and values, keys, values)"),
        ("query_guided(tokens=x)", "tokens is 'x': 'all' or 'last' of the question"),
        ("inter_attention(side=x)", "side is 'x': 'pays' or 'receives'"),
        ("kv_deviation(layer=1.5)", "layer is 1.5: it is a layer number, 0 or more"),
        ("cache_craft(alpha=-1)", "alpha is -1: it is 0 or more"),
        ("random(seed=x)", "seed is 'x': it is a whole number"),
    ],
)
def test_an_option_that_is_not_allowed_is_refused_in_one_sentence(spec, message):
    with pytest.raises(BadInput) as refusal:
        select.named(spec)
    assert str(refusal.value) == message
    assert select.named("first_k").k is None
