"""Python calls with wrong types, shapes and numbers are refused by the name of the argument, before any work."""

from functools import partial

import pytest
import torch

from tests.refusals import refused
from workbench import Runner, Sample, assemble, block_attention, data, explore, fetch, generate, models, revise
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.tiling.tiles import Tiles
from workbench.data.sample import Passage
from workbench.engine.decoding import check_length, decode
from workbench.engine.encoding import encode_many
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.sweeps.sweep import sweep
from workbench.experiments.trials.trial import Trial
from workbench.store import FolderStore, MemoryStore, TieredStore
from workbench.store.files.transfer import pack

NAN, INFINITY = float("nan"), float("inf")
META = torch.zeros(2, dtype=torch.long, device="meta")
PROMPT = Prompt((Block((1, 2, 3)), Block((4, 5))))


@pytest.mark.parametrize("tokens", [[1, 2], (1, 2), range(1, 3), torch.tensor([1, 2])])
def test_any_list_of_whole_numbers_makes_a_block(tokens):
    assert Block(tokens).tokens == (1, 2)


PLANS = {
    "rows": [5, None, "abc", [1.5], ["a"], [], [[1]], [True], {}, [10**30], [1, 0], [-1], torch.tensor([1.0])],
    "sees": [5, None, "abc", lambda a: a, lambda r, c: None, lambda r, c: 1, lambda r, c: r, lambda row, col: [True]],
    "sees ": [lambda r, c: torch.ones(2, dtype=torch.bool), lambda r, c: (c <= r).numpy()],
    "sparse": [5, "abc", [1]],
    "backend": [5, "abc", [1]],
    "return_queries": [5, "a", ("a",), (1.5,), None],
    "num_layers": [1.5, "a", True],
}
CALLS = {
    "mode": [5, None, [1]],
    "max_new_tokens": ["a", 0, 1.5, True, 10**30],
    "temperature": ["a", NAN, -1, INFINITY],
    "top_p": ["a", 2, NAN, 0],
    "seed": ["a", 10**30, 1.5, [1.5]],
    "stop": [5, [5], None],
    "prompts": [5, None, "abc", [1], PROMPT],
    "tokenizer": [None, 5],
    "store": [5, "prepared", {}, [], Block((1,)), MemoryStore],
    "model": [None, "lab-full"],
}


def prefill(loaded, tokens=PROMPT.tokens, kv=None, **plan):
    request = PrefillRequest(tokens, Plan(**{"rows": torch.arange(5), **plan}), kv or loaded.spec.empty(5))
    return prefill_many(loaded.model, [request])


def planned(loaded, value, name):
    return Plan(**{"rows": [0, 1], name: value})


def answered(loaded, value, name):
    prompts = loaded.layout.prompts(data.load("lab", samples=1, passages=2), loaded.tokenizer)
    given = {"model": loaded.model, "tokenizer": loaded.tokenizer, "prompts": prompts, "max_new_tokens": 1}
    return generate(**given | {name: value})


def zeros(*shapes):
    return [torch.zeros(*shape) for shape in shapes]


def decoded(loaded, logits, temperature=0.0):
    return decode(loaded.model, [loaded.spec.empty(5, 4)], [logits], 2, temperature, tokenizer=loaded.tokenizer)


def pool(loaded):
    return Pool(loaded.model, 8, 16)


BITS = torch.ones(4, 1, 1, dtype=torch.bool)
WHOLE, TEXTS = ["a", 1.5, [1], True, 10**30], [torch.zeros(2), "ab", [None], None]
NO_BLOCKS, NO_LOGITS = [None, "ab", [None], [Block((1,)), 5], 5], [torch.full((400,), x) for x in (NAN, INFINITY)]
NO_LOGITS += [torch.full((400,), -INFINITY), None, [1, 2]]
TOKENS = [[1, 2, 3, 4, 5], torch.rand(5), torch.ones(1, 5).long(), torch.tensor([1, 2, 3, 4, 10**6]), None, "abcde"]
TOKENS += [torch.tensor([], dtype=torch.long), torch.ones(5, dtype=torch.bool), torch.tensor([1, 2, 3, 4, -1])]
IDS = [5, None, "abc", b"ab", [1.5], ["a"], [None], [[1]], object(), [10**30], [NAN], [-1], META]
NARROW = [*zeros((399,), (2, 10), (0,)), torch.tensor(1.0)]
HALVES = [  # keys and values of other tokens, heads, layers, lengths of layers, without heads, no tensors, no lists
    (zeros((2, 3, 4)), zeros((2, 4, 4))),
    (zeros((2, 3, 4)), zeros((1, 3, 4))),
    (zeros((2, 3, 4), (2, 3, 4)), zeros((2, 3, 4))),
    (zeros((2, 3, 4), (2, 2, 4)), zeros((2, 3, 4), (2, 2, 4))),
    (zeros((3, 4)), zeros((3, 4))),
    ([1], [2]),
    (5, 5),
]
CHOSEN = [5, BITS, Tiles(BITS[:3], 16), Tiles(BITS, 2)]  # by a sparse method
REFUSED = [  # the sentence, a call, and values of which it refuses each
    (r"tokens is|token id", lambda of, value: Block(value), IDS),
    ("blocks", lambda of, value: Prompt(value), [5, None, "ab", [1, 2], [Block((1,)), 5]]),
    ("token", prefill, TOKENS),
    ("tiles are", lambda of, value: Tiles(value, 16), [5, None, torch.ones(4, 1, 1)]),
    ("size is 'a'", lambda of, value: Tiles(BITS, value), ["a"]),
    (r"a KV has keys|keys is", lambda of, value: KV(*value), HALVES),
    ("logits of request 0", decoded, NO_LOGITS),
    ("logits of request 0", lambda of, value: decoded(of, value, 1.0), NO_LOGITS),
    ("logits of request 0 are", decoded, NARROW),
    ("model is", lambda of, value: models.load(value), [5, None, [], {}, b"x"]),
    ("device", lambda of, value: models.device_of(value), ["a", 1.5, None, 10**30, "cuda:99", b"x"]),
    ("samples is", lambda of, value: data.load("lab", samples=value), WHOLE),
    ("passages is", lambda of, value: data.load("lab", passages=value), WHOLE),
    ("seed is", lambda of, value: data.load("lab", seed=value), WHOLE),
    ("pages is .*: it must be a whole number", lambda of, value: Pool(of.model, value, 16), [2.5, "8"]),
    ("size is .*: it must be a whole number", lambda of, value: Pool(of.model, 8, value), [16.0, None]),
    (r"2,147,483,647 pages takes [\d,.]+ GB", lambda of, value: Pool(of.model, value, 1 << 20), [(1 << 31) - 1]),
    ("folder is .*: it must be", lambda of, value: FolderStore(value), [None, 5, b"kept"]),
    ("nothing can be written there", lambda of, value: FolderStore(value, new=True), ["a\0b"]),
    ("is -5: it must be a whole number, 0 or more", lambda of, value: of.spec.empty(5).clone(value), [-5]),
    ("is -5: it must be a whole number, 0 or more", lambda of, value: of.spec.empty(5).grow(value), [-5]),
    ("is -5: it must be a whole number, 0 or more", lambda of, value: of.spec.empty(5).reserve(value), [-5]),
    ("tokens is -5", lambda of, value: pool(of).take(value), [-5]),
    ("reserve is -5", lambda of, v: (p := pool(of)).gather(p.encode(of.model, [Block((1, 2))]), v), [-5]),
    ("context is None", lambda of, value: pool(of).open(value, 1), [None]),
    ("pool is None", lambda of, value: Runner(of.model, value), [None]),
    ("prompt is None", lambda of, value: block_attention(value), [None]),
    ("tiers is None", lambda of, value: TieredStore(value), [None]),
    ("answers is", lambda of, value: Sample(answers=value), TEXTS),
    ("ctxs is", lambda of, value: Sample(ctxs=value), TEXTS),
    ("supporting_titles is", lambda of, value: Sample(supporting_titles=value), TEXTS),
    ("1 is no sample", lambda of, value: of.layout.prompts(value, of.tokenizer), [[1]]),
    ("samples is", lambda of, value: of.layout.prompts(value, of.tokenizer), [torch.tensor(1.0)]),
    ("blocks is", lambda of, value: encode_many(of.model, value), NO_BLOCKS),
    ("blocks is", lambda of, value: fetch(of.model, value, MemoryStore()), NO_BLOCKS),
    ("store is", lambda of, value: fetch(of.model, [Block((1,))], value), [None]),
    ("store is", lambda of, value: revise(of.model, PROMPT, value), [5]),
    ("budget", lambda of, value: MemoryStore(value), [NAN, "1GB", None, True, -1, 0]),
    (r"sparse chooses|tiles of \(", lambda of, value: prefill(of, sparse=lambda *_: value), CHOSEN),
    ("half of a character", lambda of, value: explore.prompt(of, value), ["a\ud800b\n\nWho?"]),
]
REFUSED += [(f"^{name.strip()} ", partial(planned, name=name.strip()), values) for name, values in PLANS.items()]
REFUSED += [(name, partial(answered, name=name), values) for name, values in CALLS.items()]
EACH = [
    pytest.param(words, call, value, id=f"{row} {words[:16]} {i}")
    for row, (words, call, values) in enumerate(REFUSED)
    for i, value in enumerate(values)
]


@pytest.mark.parametrize(("words", "call", "value"), EACH)
def test_a_wrong_value_is_refused_by_the_name_of_its_argument(loaded, words, call, value):
    refused(words, call, loaded, value)


def test_keys_and_values_that_were_changed_since_are_refused(loaded):
    for change in (lambda kv: kv.values.pop(), lambda kv: kv.keys.__setitem__(0, kv.keys[0][:, :3])):
        kv = loaded.spec.empty(5)
        change(kv)
        refused("a KV has keys", prefill, loaded, kv=kv)
    refused("kv is 5", prefill, loaded, kv=5)


ANSWERS = {
    "none": lambda q: None,
    "number": lambda q: 5,
    "one row fewer": lambda q: q[:, 1:],
    "heads behind rows": lambda q: q.transpose(0, 1),
    "flat": lambda q: q.flatten(),
    "other dtype": lambda q: q.double(),
    "on another device": lambda q: q.to("meta"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_what_a_backend_answers_is_looked_at(loaded, what):
    def own(q, keys, values, rows, sees, tiles, scale):
        return ANSWERS[what](q)

    refused(r"backend own answers .*: \[heads, rows, width\] = \(4, 5, ", prefill, loaded, backend=own)


def test_one_logit_that_rules_a_token_out_is_allowed(loaded):
    logits = torch.zeros(400).index_fill(0, torch.tensor(3), -INFINITY)
    assert next(decoded(loaded, logits)) == [0]


def test_a_prompt_in_pages_is_made_of_blocks_of_the_pool(loaded):
    pages = pool(loaded)
    refused("'x' is no block of this pool", pages.open, ["x"], 1)
    assert pages.free == 7


def test_a_kv_of_another_dtype_than_the_model_is_refused(loaded):
    half = [loaded.spec.empty(3) for _ in PROMPT.context]
    for kv in half:
        kv.keys, kv.values = [x.half() for x in kv.keys], [x.half() for x in kv.values]
    refused("this KV is torch.float16", assemble, loaded.model, PROMPT, half)
    refused("this KV is torch.float16", pool(loaded).write_kv, half[0])


def test_lists_make_a_sample():
    assert hash(Sample("Who?", ["Ada"], [Passage("A", "Ada.")], id="1")).bit_length()


@pytest.mark.parametrize(("name", "value"), [("jobs", "2"), ("jobs", 1.5), ("jobs", 0)])
def test_a_sweep_runs_in_a_whole_number_of_processes(tmp_path, name, value):
    refused(f"{name} is", sweep, Trial(model="lab-full", samples=1), tmp_path / "out", **{name: value}, ratio=[0.1])
    assert not list(tmp_path.iterdir())


def test_a_sweep_writes_into_no_file_and_no_store(tmp_path):
    (tmp_path / "file").write_text("mine")
    FolderStore(tmp_path / "kept", {"model": "m"}, new=True)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for name in ("file", "kept"):
        with pytest.raises(BadInput, match="results need a folder of their own"):
            sweep(Trial(model="lab-full", samples=1), tmp_path / name, ratio=[0.1])
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_store_is_not_exported_into_itself(tmp_path):
    FolderStore(tmp_path / "kept", {"model": "m"}, new=True)
    refused("lies in the folder that is exported", pack, tmp_path / "kept", tmp_path / "kept" / "a.tar")


@pytest.mark.parametrize("count", [5000, 10**9])
def test_more_new_tokens_than_the_context_holds_are_refused_before_any_work(loaded, count, monkeypatch):
    prompts = loaded.layout.prompts(data.load("lab", samples=1, passages=2), loaded.tokenizer)
    monkeypatch.setattr("workbench.engine.forward.run", None)
    asked = [
        lambda: generate(loaded.model, loaded.tokenizer, prompts, max_new_tokens=count),
        lambda: decode(loaded.model, [loaded.spec.empty(5, 4)], [torch.zeros(400)], count),
        lambda: explore.prompt(loaded, prompts[0], max_new_tokens=count),
        lambda: Trial(model="lab-full", samples=1, max_new_tokens=count).run(loaded=loaded),
    ]
    for call in asked:
        refused(r"max_new_tokens is \d+: [\d,]+ is the model's context, prompt included", call)
    refused("1,048,576 is the most where the model's context is unknown", check_length, 10**9, None)


def test_requests_of_a_prefill_are_requests_with_a_kv_each(loaded):
    for value in (None, [None], "ab", 5):
        refused("requests is", prefill_many, loaded.model, value)
    kv, plan = loaded.spec.empty(5, 5), Plan(torch.arange(5))
    requests = [PrefillRequest(torch.arange(3, 8), plan, kv), PrefillRequest(torch.arange(13, 18), plan, kv)]
    refused("two requests share one KV", prefill_many, loaded.model, requests)
    assert not any(keys.any() for keys in kv.keys), "nothing was written"


def test_draws_with_numbers_next_to_nothing_are_refused_or_greedy(loaded):
    def drawn(**options):
        return list(decode(loaded.model, [loaded.spec.empty(5, 4)], [torch.arange(400.0)], 1, **options))

    refused("temperature 1e-300", drawn, temperature=1e-300)
    assert len(drawn(temperature=10**30)[0]) == 1
    assert drawn(temperature=-0.0) == drawn(temperature=1e-6) == drawn(temperature=1.0, top_p=1e-300) == [[399]]


def test_a_page_is_written_to_a_file(loaded, tmp_path):
    grid = {"orders": 1, "selectors": ["none"], "ratios": [0.1], "max_new_tokens": 1}
    page = explore.prompt_page(loaded, "Ada is here.\n\nWho?", **grid)
    refused("is a folder: a file is needed", page.write, tmp_path)
