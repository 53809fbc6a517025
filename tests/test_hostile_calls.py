"""Python calls with wrong types, shapes and numbers are refused by the name of the argument, before any work."""

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


@pytest.mark.parametrize(
    "tokens", [5, None, "abc", b"ab", [1.5], ["a"], [None], [[1]], object(), [10**30], [NAN], [-1], META]
)
def test_tokens_of_a_block_are_whole_numbers(tokens):
    refused(r"tokens is|token id", Block, tokens)


@pytest.mark.parametrize("tokens", [[1, 2], (1, 2), range(1, 3), torch.tensor([1, 2])])
def test_any_list_of_whole_numbers_makes_a_block(tokens):
    assert Block(tokens).tokens == (1, 2)


@pytest.mark.parametrize("blocks", [5, None, "ab", [1, 2], [Block((1,)), 5]])
def test_a_prompt_is_made_of_blocks(blocks):
    refused("blocks", Prompt, blocks)


def lists_nothing(row, col):
    return [True]


PLANS = {
    "rows": [5, None, "abc", [1.5], ["a"], [], [[1]], [True], {}, [10**30], [1, 0], [-1], torch.tensor([1.0])],
    "sees": [5, None, "abc", lambda a: a, lambda r, c: None, lambda r, c: 1, lambda r, c: r, lists_nothing],
    "sees ": [lambda r, c: torch.ones(2, dtype=torch.bool), lambda r, c: (c <= r).numpy()],
    "sparse": [5, "abc", [1]],
    "backend": [5, "abc", [1]],
    "return_queries": [5, "a", ("a",), (1.5,), None],
    "num_layers": [1.5, "a", True],
}
CASES = [
    pytest.param(name, value, id=f"{name} {i}") for name, values in PLANS.items() for i, value in enumerate(values)
]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_plan_refuses_an_argument_by_its_name(name, value):
    name = name.strip()
    refused(f"^{name} ", Plan, **{"rows": [0, 1], name: value})


def prefill(loaded, tokens=PROMPT.tokens, kv=None, **plan):
    request = PrefillRequest(tokens, Plan(**{"rows": torch.arange(5), **plan}), kv or loaded.spec.empty(5))
    return prefill_many(loaded.model, [request])


TOKENS = [[1, 2, 3, 4, 5], torch.rand(5), torch.ones(1, 5).long(), torch.tensor([1, 2, 3, 4, 10**6]), None, "abcde"]
TOKENS += [torch.tensor([], dtype=torch.long), torch.ones(5, dtype=torch.bool), torch.tensor([1, 2, 3, 4, -1])]


@pytest.mark.parametrize("tokens", TOKENS, ids=range(len(TOKENS)))
def test_tokens_of_a_prefill_are_a_tensor_of_ids(loaded, tokens):
    refused("token", prefill, loaded, tokens)


CHOSEN = [5, torch.ones(4, 1, 1, dtype=torch.bool), Tiles(torch.ones(3, 1, 1, dtype=torch.bool), 16)]
CHOSEN += [Tiles(torch.ones(4, 1, 1, dtype=torch.bool), 2)]


@pytest.mark.parametrize("chosen", CHOSEN, ids=["number", "tensor", "other heads", "other tiles"])
def test_what_a_sparse_method_answers_is_looked_at(loaded, chosen):
    refused(r"sparse chooses|tiles of \(", prefill, loaded, sparse=lambda queries, keys, rows, site: chosen)


@pytest.mark.parametrize(("kept", "size"), [(5, 16), (None, 16), (torch.ones(4, 1, 1), 16)])
def test_tiles_are_bools(kept, size):
    refused("tiles are", Tiles, kept, size)
    refused("size is 'a'", Tiles, torch.ones(4, 1, 1, dtype=torch.bool), "a")


def some(*shape):
    return torch.zeros(*shape)


KVS = {
    "tokens": ([some(2, 3, 4)], [some(2, 4, 4)]),
    "heads": ([some(2, 3, 4)], [some(1, 3, 4)]),
    "layers": ([some(2, 3, 4)] * 2, [some(2, 3, 4)]),
    "tokens of layers": ([some(2, 3, 4), some(2, 2, 4)], [some(2, 3, 4), some(2, 2, 4)]),
    "no heads": ([some(3, 4)], [some(3, 4)]),
    "numbers": ([1], [2]),
    "no lists": (5, 5),
}


@pytest.mark.parametrize("what", KVS)
def test_keys_and_values_agree(what):
    refused(r"a KV has keys|keys is", KV, *KVS[what])


def test_keys_and_values_that_were_changed_since_are_refused(loaded):
    for change in (lambda kv: kv.values.pop(), lambda kv: kv.keys.__setitem__(0, kv.keys[0][:, :3])):
        kv = loaded.spec.empty(5)
        change(kv)
        refused("a KV has keys", prefill, loaded, kv=kv)
    refused("kv is 5", prefill, loaded, kv=5)


LOGITS = [torch.full((400,), NAN), torch.full((400,), INFINITY), torch.full((400,), -INFINITY), None, [1, 2]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", LOGITS, ids=["nan", "inf", "-inf", "none", "list"])
def test_logits_that_choose_no_token_are_refused(loaded, logits, temperature):
    with pytest.raises(BadInput, match="logits of request 0"):
        decode(loaded.model, [loaded.spec.empty(5, 4)], [logits], 2, temperature, tokenizer=loaded.tokenizer)


@pytest.mark.parametrize("logits", [torch.zeros(399), torch.zeros(2, 10), torch.zeros(0), torch.tensor(1.0)], ids=str)
def test_logits_narrower_than_the_vocabulary_are_refused(loaded, logits):
    with pytest.raises(BadInput, match="logits of request 0 are"):
        decode(loaded.model, [loaded.spec.empty(5, 4)], [logits], 2, tokenizer=loaded.tokenizer)


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
    assert list(decode(loaded.model, [loaded.spec.empty(5, 4)], [logits], 1, tokenizer=loaded.tokenizer)) == [[0]]


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
WRONG = [
    pytest.param(name, value, id=f"{name} {i}") for name, values in CALLS.items() for i, value in enumerate(values)
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_an_answer_is_refused_by_the_name_of_the_argument(loaded, name, value):
    prompts = loaded.layout.prompts(data.load("lab", samples=1, passages=2), loaded.tokenizer)
    given = {"model": loaded.model, "tokenizer": loaded.tokenizer, "prompts": prompts, "max_new_tokens": 1}
    refused(name, generate, **given | {name: value})


@pytest.mark.parametrize("value", [5, None, [], {}, b"x"])
def test_names_are_texts(value):
    refused("model is", models.load, value)


@pytest.mark.parametrize("value", ["a", 1.5, None, 10**30, "cuda:99", b"x"])
def test_a_device_is_one_that_is_there(loaded, value):
    refused("device", models.device_of, value)


@pytest.mark.parametrize("value", ["a", 1.5, [1], True, 10**30])
@pytest.mark.parametrize("name", ["samples", "passages", "seed"])
def test_numbers_of_data_are_whole(name, value):
    refused(f"{name} is", data.load, "lab", **{name: value})


@pytest.mark.parametrize(("name", "value"), [("pages", 2.5), ("pages", "8"), ("size", 16.0), ("size", None)])
def test_a_pool_has_a_whole_number_of_pages_and_tokens(loaded, name, value):
    refused(rf"{name} is .*: it must be a whole number", Pool, loaded.model, **{"pages": 8, "size": 16, name: value})


def test_a_prompt_in_pages_is_made_of_blocks_of_the_pool(loaded):
    pool = Pool(loaded.model, 8, 16)
    refused("'x' is no block of this pool", pool.open, ["x"], 1)
    assert pool.free == 7


@pytest.mark.parametrize("folder", [None, 5, b"kept"])
def test_a_store_lies_in_a_folder(folder):
    refused(r"folder is .*: it must be", FolderStore, folder)


@pytest.mark.parametrize("name", ["clone", "grow", "reserve"])
def test_a_kv_grows_by_no_less_than_nothing(loaded, name):
    refused("is -5: it must be a whole number, 0 or more", getattr(loaded.spec.empty(5), name), -5)


def test_pages_are_taken_for_no_less_than_nothing(loaded):
    pool = Pool(loaded.model, 8, 16)
    refused("tokens is -5", pool.take, -5)
    refused("reserve is -5", pool.gather, pool.encode(loaded.model, [Block((1, 2))]), -5)


def test_a_kv_of_another_dtype_than_the_model_is_refused(loaded):
    half = [loaded.spec.empty(3) for _ in PROMPT.context]
    for kv in half:
        kv.keys, kv.values = [x.half() for x in kv.keys], [x.half() for x in kv.values]
    refused("this KV is torch.float16", assemble, loaded.model, PROMPT, half)
    refused("this KV is torch.float16", Pool(loaded.model, 8, 16).put, half[0])


@pytest.mark.parametrize("field", ["answers", "ctxs", "supporting_titles"])
@pytest.mark.parametrize("value", [torch.zeros(2), "ab", [None], None])
def test_a_sample_is_made_of_texts_and_passages(field, value):
    refused(f"{field} is", Sample, **{field: value})


def test_lists_make_a_sample():
    assert hash(Sample("1", "Who?", ["Ada"], [Passage("A", "Ada.")])).bit_length()


def test_prompts_are_made_of_samples(loaded):
    refused("1 is no sample", loaded.layout.prompts, [1], loaded.tokenizer)
    refused("samples is", loaded.layout.prompts, torch.tensor(1.0), loaded.tokenizer)


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


NO_BLOCKS = [None, "ab", [None], [Block((1,)), 5], 5]


@pytest.mark.parametrize("value", NO_BLOCKS)
def test_blocks_are_a_list_of_blocks(loaded, value):
    refused("blocks is", encode_many, loaded.model, value)
    refused("blocks is", fetch, loaded.model, value, MemoryStore())


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


def test_blocks_are_kept_in_a_store(loaded):
    for call in (lambda: fetch(loaded.model, [Block((1,))], None), lambda: revise(loaded.model, PROMPT, 5)):
        refused("store is", call)


@pytest.mark.parametrize("budget", [NAN, "1GB", None, True, -1, 0])
def test_a_budget_is_a_positive_number(budget):
    refused("budget", MemoryStore, budget)


def test_what_is_no_pool_no_prompt_and_no_place_is_named(loaded):
    refused("pool is None", Runner, loaded.model, None)
    refused("context is None", lambda: Pool(loaded.model, 8, 16).open(None, 1))
    refused(r"2,147,483,647 pages takes [\d,.]+ GB", Pool, loaded.model, (1 << 31) - 1, 1 << 20)
    refused("prompt is None", block_attention, None)
    refused("nothing can be written there", FolderStore, "a\0b", new=True)
    refused("tiers is None", TieredStore, None)


def test_half_a_character_is_no_text(loaded):
    refused("half of a character", explore.prompt, loaded, "a\ud800b\n\nWho?")


def test_a_page_is_written_to_a_file(loaded, tmp_path):
    grid = {"orders": 1, "selectors": ["none"], "ratios": [0.1], "max_new_tokens": 1}
    page = explore.prompt_page(loaded, "Ada is here.\n\nWho?", **grid)
    refused("is a folder: a file is needed", page.write, tmp_path)
