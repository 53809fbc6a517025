"""Policies by name: what a spec says, and how a list of specs is cut."""

import ast
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from documented import ROOT, blocks
from hypothesis import given
from hypothesis import strategies as st

from tests.random_models import model_of
from tests.refusals import refused
from tests.test_prepare import CORPUS
from workbench.app.notebooks import own
from workbench.core import spec_parser
from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV, Derived
from workbench.core.plan import Plan
from workbench.data import embedders
from workbench.engine.assembly import empty
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.methods import prepare, registry, select, unimported
from workbench.methods.config import MethodConfig
from workbench.methods.select import choose

WORD = st.from_regex(r"[a-z]{2,8}", fullmatch=True).filter(lambda word: word not in ("as", "in", "is", "if", "or"))
VALUE = st.one_of(st.integers(-5, 99), st.booleans(), st.none(), st.text("ab c/.-'\"(),=[\\é", max_size=6))


@given(st.dictionaries(WORD, VALUE, max_size=3))
def test_a_spec_reads_as_it_is_written(options):
    options = {f"o_{key}": value for key, value in options.items()}
    spec = f"name({', '.join(f'{key}={value!r}' for key, value in options.items())})"
    assert registry.parse(spec) == ("name", options) and registry.parse("name") == ("name", {})
    assert spec_parser.split(f"{spec}, other,{spec}") == [spec, "other", spec]


@pytest.mark.parametrize("text", ["all", "last", "owner/name-of.it", "float32"])
def test_words_need_no_quotation_marks(text):
    assert registry.parse(f"x(a={text}, b=2)") == ("x", {"a": text, "b": 2})


@pytest.mark.parametrize("path", ["/a/b/minilm.npz", "../runs/01/m-x.npz", "~/m.npz", "./m.npz", r"C:\m\x.npz"])
def test_a_path_needs_no_quotation_marks_and_any_text_may_have_them(path):
    for written in (path, repr(path), f'"{path}"'.replace("\\", "\\\\")):
        spec = f"x(n=4, embedder={written})"
        assert registry.parse(spec) == ("x", {"n": 4, "embedder": path})
        assert spec_parser.split(f"a,{spec}, b") == ["a", spec, "b"]
    odd = "/a b, (c)/it's.npz"
    assert registry.parse(f"x(embedder={odd!r})") == ("x", {"embedder": odd})


def test_a_policy_with_a_file_of_vectors_is_made_again_from_its_spec(tmp_path):
    path = tmp_path / "some vectors (1).npz"
    embedders.save(path, CORPUS.texts, "tfidf")
    policy = prepare.from_spec(f"with_neighbours(n=2, search=exact, embedder={str(path)!r})", corpus=CORPUS)
    assert policy.embedder == str(path) and prepare.from_spec(registry.spec_of(policy), corpus=CORPUS) == policy
    MethodConfig(mode="block", prepare=f"with_neighbours(n=2, embedder={str(path)!r})").check()
    missing = MethodConfig(mode="block", prepare=f"with_neighbours(n=2, embedder={tmp_path}/x.npz)")
    refused("no such file of vectors", missing.check)


def test_lists_within_brackets_stay_whole():
    spec = "query_guided(layers=[0, 1], tokens=last)"
    assert spec_parser.split(f"none,{spec}") == ["none", spec]
    assert registry.parse(spec) == ("query_guided", {"layers": [0, 1], "tokens": "last"})


@pytest.mark.parametrize("spec", ["independent", "after_system(system=2)", "with_neighbours(n=3, search=exact)"])
def test_the_spec_of_a_policy_makes_it_again(spec):
    policy = prepare.from_spec(spec, corpus=CORPUS)
    again = prepare.from_spec(registry.spec_of(policy), corpus=CORPUS)
    assert again == policy and registry.spec_of(again) == registry.spec_of(policy)


@pytest.mark.parametrize(
    "spec", ["", "1", "a b", "x(1)", "x(**{})", "x.y", "x(a=1", "x(a=)", "x(a=1, a=2)", "x(a=b c)", "x(a=/a b)", "x(,)"]
)
def test_what_is_no_spec_is_refused(spec):
    refused("is not understood", registry.parse, spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("first_k(k=0)", "k is 0: how many tokens at a block's start, 1 or more"),
        ("first_k(system=-1)", "system is -1: how many blocks at the front are no passages, 0 or more"),
        ("answer_guided(window=True)", "window is True: how many tokens at the question's end, 1 or more"),
        (
            "answer_guided(softmax=row)",
            "softmax is 'row': within each 'block', over all 'documents', over the 'context' or the whole 'prompt'",
        ),
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
    assert refused(".", select.from_spec, spec) == message
    assert select.from_spec("first_k").k is None


LIGHTLY = """import sys
from workbench.methods import registry, unimported
for kind in sys.argv[1:]:
    for name in registry.shipped(package := f"workbench.methods.{kind}"):
        print(kind, name, [each.name for each in registry.spec_fields(unimported.fields_only(package, name))], sep="|")
assert not {"torch", "transformers"} & set(sys.modules)
"""


def test_the_options_of_every_policy_are_known_without_its_import():
    kinds = ("modes", "prepare", "select", "correct", "attend", "sparse")
    ran = subprocess.run([sys.executable, "-c", LIGHTLY, *kinds], capture_output=True, text=True, check=True)
    for kind, name, options in (line.split("|") for line in ran.stdout.splitlines()):
        policy, _ = registry.find_policy(f"workbench.methods.{kind}", name)
        assert str([each.name for each in registry.spec_fields(policy)]) == options, name


# --- A selector from its text is one like any other, and text that is none is refused in a sentence
PAGE = next(block.body for block in blocks(ROOT / "docs" / "extend" / "method.md") if "class LastTokens" in block.body)
PROMPT = Prompt(tuple(Block((n, n + 1, n + 2)) for n in range(4)))


def test_the_selector_of_the_documentation_chooses_the_last_tokens_of_every_block():
    found = own.selector(PAGE, "last_tokens")
    scores = found.score(PROMPT)
    assert scores.shape == torch.Size([9]) and choose(scores, PROMPT, tokens=3).tolist() == [2, 5, 8]
    assert found == own.selector(PAGE, "last_tokens") or found.system == 1


def test_the_notebook_holds_the_selector_of_the_documentation():
    notebook = (ROOT / "notebooks" / "15_add_a_method.ipynb").read_text()
    assert all(line.strip() in notebook for line in re.findall(r"^ {8}(.+)$", PAGE, re.M))


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("class", "mine", r"mine\.py, line 1: invalid syntax"),
        ("x = 1", "mine", "mine.py holds no dataclass Mine"),
        ("x = 1", "../mine", "no name of a file"),
        ("from dataclasses import dataclass\n\n@dataclass\nclass Mine:\n    k: int = 1", "mine", "Mine is no selector"),
    ],
)
def test_text_that_is_no_selector_is_refused(source, name, message):
    refused(message, own.selector, source, name)


# --- What is kept beside cached keys: completed from chunk to chunk, never of keys that are no more
LENGTH = 96


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 13), st.booleans()), min_size=1, max_size=12))
def test_what_is_kept_is_that_of_the_keys_as_they_are(writes):
    """Running sums stand for means: written anywhere, asked of any length, at any time."""
    keys, derived = torch.zeros(13, dtype=torch.long), Derived()

    def complete(sums, first):
        sums = torch.zeros(14, dtype=torch.long) if sums is None else sums
        sums[first + 1 :] = sums[first] + keys[first:].cumsum(0)
        return sums

    for number, (first, length, asked) in enumerate(writes, 1):
        keys[first] = number
        derived.mark_stale(first)
        if asked:
            assert derived.get_updated("sums", length, complete)[length] == keys[:length].sum()


def test_what_fails_half_way_is_made_anew():
    derived = Derived()
    derived.get_updated("x", 8, lambda value, first: [first])

    def fails(value, first):
        value.append("half")
        raise MemoryError

    with pytest.raises(MemoryError):
        derived.get_updated("x", 16, fails)
    assert derived.get_updated("x", 16, lambda value, first: (value, first)) == (None, 0)


def test_chunks_complete_what_earlier_chunks_left_and_a_layer_that_is_written_again_starts_there():
    found = []

    def asked(queries, keys, rows, site):
        site.derived.get_updated("asked", keys.shape[1], lambda value, first: found.append((site.layer, first)))

    model = model_of("llama")
    tokens, kv = torch.arange(LENGTH) % 50, empty(model, LENGTH)
    for chunk in (*torch.arange(LENGTH).split(32), torch.arange(40, 60), torch.arange(60, LENGTH)):
        prefill_many(model, [PrefillRequest(tokens, Plan(chunk, sparse=asked), kv)], 1)
    assert [first for layer, first in found if layer == 0] == [0, 32, 64, 40, 60]


def test_a_copy_keeps_nothing_of_the_original():
    kv = KV.zeros([(1, 8)], 4, reserve=4)
    kv.derived(0).get_updated("x", 4, lambda value, first: "theirs")
    for copy in (kv.clone(), kv.slice(0, 4)):
        assert copy.derived(0).get_updated("x", 4, lambda value, first: (value, first)) == (None, 0)
    kv.grow(2)
    assert kv.derived(0).get_updated("x", 6, lambda value, first: (value, first)) == ("theirs", 4)
    kv.mark_changed(1)
    assert kv.derived(0).get_updated("x", 6, lambda value, first: first) == 1


def test_a_check_under_a_condition_is_left_to_the_policy_itself(monkeypatch):
    source = """
class Some:
    def __post_init__(self):
        check_options(self)
        check_less(self.a, self.b)
        if self.c:
            check_less(self.b, self.a)
"""
    monkeypatch.setattr(unimported, "_statements", lambda package, name: iter(ast.parse(source).body))
    compared = []
    for rule in unimported._rules("of no package", "some", "Some"):
        exec(rule, {"check_less": lambda *pair: compared.append(pair), "self": SimpleNamespace(a=1, b=2, c=False)})
    assert compared == [(1, 2)]
