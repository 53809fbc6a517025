"""Pages have owners: what is not held cannot be read, written or given back; a pool at random against one in memory."""

from contextlib import contextmanager
from random import Random
from threading import Thread

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.random_models import Letters, block_of, model_of, prompt_of
from tests.refusals import refused
from workbench.core.kv import KV
from workbench.engine import encoding
from workbench.engine.encoding import encode_many
from workbench.engine.graphs import cuda_graphs
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages import page_storage, paged_pool
from workbench.engine.pages.page_allocator import NoPages
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.stream_order import StreamOrder
from workbench.methods.generation import generate
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.kv_deviation import KvDeviation
from workbench.methods.select.query_guided import QueryGuided

MODEL = model_of(num_hidden_layers=1)
PAGES, SIZE = 14, 4
BLOCKS = [block_of(n, seed=n) for n in (3, 4, 9, 6)]
KVS = dict(zip(BLOCKS, encode_many(MODEL, BLOCKS), strict=True))


class PoolAtRandom(RuleBasedStateMachine):
    """Blocks and prompts come and go; `held` says which pages each has, `said` what was written for each."""

    blocks = Bundle("blocks")
    prompts = Bundle("prompts")

    def __init__(self):
        super().__init__()
        self.pool, self.other = Pool(MODEL, PAGES, SIZE, kernels=False), Pool(MODEL, PAGES, SIZE, kernels=False)
        self.runner = Runner(MODEL, self.pool)
        self.held: dict[int, set[int]] = {}
        self.live: list[object] = []  # so that no id is used again
        self.said: dict[int, list[int]] = {}
        self.tokens = 0

    @rule(target=blocks, which=st.sampled_from(BLOCKS), encoded=st.booleans())
    def add_block(self, which, encoded):
        needed = -(-len(which) // SIZE)
        if needed > self.pool.free:
            with pytest.raises(NoPages):
                self.pool.write_kv(KVS[which])
            return multiple()
        made = self.pool.encode(MODEL, [which])[0] if encoded else self.pool.write_kv(KVS[which])
        self._hold(made, made.pages.tolist())
        return made, which

    @rule(block=consumes(blocks))
    def give_block(self, block):
        cached, _ = block
        self.pool.free_pages(cached)
        del self.held[id(cached)]
        refused("given back before", self.pool.free_pages, cached)
        refused("given back before", self.pool.open, [cached], 3)

    @rule(target=prompts, some=st.lists(blocks, min_size=1, max_size=3), reserve=st.integers(1, 9), naive=st.booleans())
    def open_prompt(self, some, reserve, naive):
        context = [cached for cached, _ in some]
        if any(id(cached) not in self.held for cached in context):
            return multiple()
        needed = -(-reserve // SIZE)
        if needed > self.pool.free:
            with pytest.raises(NoPages) as refused:
                self.pool.open(context, reserve)
            assert refused.value.missing == needed - self.pool.free
            return multiple()
        made = self.pool.open(context, reserve, positions="naive" if naive else "re-encoded")
        self._hold(made, made.owned)
        self.said[id(made)] = []
        return made, [block for _, block in some], naive

    @rule(prompt=prompts, count=st.integers(1, 4))
    def compute(self, prompt, count):
        made, blocks, naive = prompt
        ids = torch.tensor([(self.tokens + i) % 90 + 1 for i in range(count)])
        if made.closed:
            refused("is closed", self.runner.prefill, [made], [ids])
        elif any(id(cached) not in self.held for cached in made.context):
            refused("given back before", self.runner.prefill, [made], [ids])
        elif count > made.reserve:
            refused("with room for", self.runner.prefill, [made], [ids])
        else:
            self.tokens += count
            self.runner.prefill([made], [ids])
            self.said[id(made)] += ids.tolist()
            self._compare(made, blocks, naive)

    @rule(prompt=consumes(prompts))
    def close_prompt(self, prompt):
        made = prompt[0]
        if not made.closed:
            self.pool.close(made)
            del self.held[id(made)]
        refused("closed twice", self.pool.close, made)

    @rule(block=blocks, prompt=prompts)
    def misuse(self, block, prompt):
        free = self.pool.free
        for call in (
            lambda: self.other.open([block[0]], 3),
            lambda: self.other.free_pages(block[0]),
            lambda: self.other.close(prompt[0]),
            lambda: Runner(MODEL, self.other).prefill([prompt[0]], [torch.tensor([1])]),
            lambda: self.pool.free_pages([0]),
            lambda: self.pool.free_pages([PAGES]),
            lambda: self.runner.prefill([prompt[0]], [torch.tensor([97])]),
            lambda: self.runner.prefill([prompt[0]] * 2, [torch.tensor([1])] * 2),
        ):
            refused(".", call)
        assert (self.pool.free, self.other.free) == (free, PAGES - 1)

    @invariant()
    def every_page_has_one_owner(self):
        pages = [page for held in self.held.values() for page in held]
        assert len(pages) == len(set(pages)) == PAGES - 1 - self.pool.free
        assert 0 not in pages

    def _hold(self, owner, pages):
        self.live.append(owner)
        self.held[id(owner)] = set(pages)

    def _compare(self, made, blocks, naive):
        """What the prompt reads is its blocks, and what was computed for it, whoever else was at work."""
        rows = len(self.said[id(made)])
        got = self.pool.read_kv(made.context, made, rows, "naive" if naive else "re-encoded")
        values = torch.cat([KVS[block].values[0] for block in blocks], 1)
        torch.testing.assert_close(got.values[0][:, : made.length], values, atol=1e-5, rtol=1e-4)
        fresh = MODEL.get_decoder().layers[0]
        with torch.no_grad():
            x = fresh.input_layernorm(MODEL.get_input_embeddings()(torch.tensor(self.said[id(made)])))
            wanted = fresh.self_attn.v_proj(x).unflatten(-1, (got.values[0].shape[0], -1)).transpose(0, 1)
        torch.testing.assert_close(got.values[0][:, made.length :], wanted, atol=1e-5, rtol=1e-4)


PoolAtRandom.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestPoolAtRandom = PoolAtRandom.TestCase


def test_pages_that_others_have_taken_since_are_not_given_back():
    pool = Pool(MODEL, 3, SIZE, kernels=False)
    mine = pool.take(5)
    pool.free_pages(mine)
    theirs = pool.take(5)
    refused("others have taken it since", pool.free_pages, mine)
    assert pool.free == 0
    pool.free_pages(theirs)
    refused("is not taken", pool.free_pages, [1, 2])
    refused("page 0 is scratch", pool.free_pages, [0])
    refused("page 3 is not of this pool: its pages are 1 to 2", pool.free_pages, [3])
    one = pool.take(1)
    refused("twice", pool.free_pages, [*one, *one])


def test_pages_are_looked_at_again_only_where_some_were_given_back_that_others_may_read(monkeypatch):
    pool = Pool(MODEL, PAGES, SIZE, kernels=False)
    cached, other = pool.put_many([KVS[BLOCKS[0]], KVS[BLOCKS[1]]])
    prompt, ended = pool.open([cached], 2), pool.open([cached], 2)
    looked = []
    monkeypatch.setattr(pool.owners, "still_owned", lambda *pages: looked.append(1) or True)
    pool.close(ended)
    looked.clear()
    pool.check(prompt)
    assert not looked
    pool.free_pages(other)
    looked.clear()
    pool.check(prompt)
    pool.check(prompt)
    assert looked == [1]


def test_a_request_of_another_model_is_refused():
    pool, other = Pool(MODEL, 9, SIZE, kernels=False), model_of(seed=5)
    for call in (lambda: Runner(other, pool), lambda: pool.encode(other, BLOCKS[:1])):
        refused("of another model", call)
    refused("another model", pool.write_kv, KV([torch.zeros(1, 2, 3)], [torch.zeros(1, 2, 3)]))
    assert pool.free == 8


def test_tokens_outside_the_vocabulary_are_refused_before_anything_is_written():
    pool = Pool(MODEL, 9, SIZE, kernels=False)
    prompt = pool.open(pool.encode(MODEL, BLOCKS[:1]), 4)
    for ids in ([97], [-1], [3, 97]):
        refused("the vocabulary is 0 to 96", Runner(MODEL, pool).prefill, [prompt], [torch.tensor(ids)])
    assert prompt.written == 0


def test_a_pool_too_small_waits_or_refuses_by_choice_and_names_the_pages_missing():
    pool = Pool(MODEL, 5, SIZE, kernels=False)
    cached = pool.encode(MODEL, BLOCKS[:1])
    first = pool.open(cached, 9)
    with pytest.raises(NoPages, match="needs 2 pages, 0 of the pool are free: 2 are missing"):
        pool.open(cached, 5)
    opened = []
    waiting = Thread(target=lambda: opened.append(pool.open(cached, 5, wait=30.0)))
    waiting.start()
    pool.close(first)
    waiting.join()
    assert len(opened) == 1
    with pytest.raises(NoPages):
        pool.open(cached, 100, wait=30.0)  # it never fits: nobody is waited for


def full(*_, **__):
    raise torch.OutOfMemoryError("nothing is left")


def test_what_runs_out_of_memory_leaves_the_pool_and_other_requests_whole(monkeypatch):
    pool = Pool(MODEL, 14, SIZE, kernels=False)
    runner, cached = Runner(MODEL, pool), pool.encode(MODEL, BLOCKS[:1])
    prompt = pool.open(cached, 4)
    free = pool.free
    for part, name, call in (
        (page_storage, "packed_pass", lambda: pool.encode(MODEL, BLOCKS)),
        (pool, "copy_in", lambda: pool.write_kv(KVS[BLOCKS[0]])),
        (paged_pool, "table_of", lambda: pool.open(cached, 4)),
        (type(MODEL), "forward", lambda: runner.prefill([prompt], [torch.tensor([1, 2])])),
    ):
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(part, name, full)
            call()
    assert pool.free == free and prompt.written == 0
    runner.prefill([prompt], [torch.tensor([1, 2])])
    assert prompt.written == 2


def test_a_batch_that_runs_out_of_memory_gives_all_pages_back(monkeypatch):
    model, prompts = model_of(), [prompt_of(20, 8, seed=i) for i in range(3)]
    before = generate(model, Letters(), prompts, "block", engine="paged", max_new_tokens=4)
    for what in ("prefill", "decode"):
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(Runner, what, full)
            generate(model, Letters(), prompts, "block", engine="paged", max_new_tokens=4)
    assert generate(model, Letters(), prompts, "block", engine="paged", max_new_tokens=4) == before


def test_a_model_that_cannot_be_captured_says_why_and_runs_as_it_is(monkeypatch, caplog):
    pool = Pool(MODEL, 14, SIZE, kernels=False)
    runner, cached = Runner(MODEL, pool), pool.encode(MODEL, BLOCKS[:1])
    expected = runner.prefill([pool.open(cached, 4)], [torch.tensor([1, 2])])
    other = Runner(MODEL, pool)
    other.graphs = True  # as on a GPU

    def refuse(batch, memory):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture", refuse)
    got = other.prefill([pool.open(cached, 4)], [torch.tensor([1, 2])])
    torch.testing.assert_close(got, expected)
    assert not other.graphs and "not permitted" in other.why_uncaptured
    assert encoding.PACK > 0


class FakeStream:
    """A CUDA stream that does its work whenever `step` is called; an event is a list, [True] once it has come."""

    def __init__(self):
        self.queue = []

    def wait_event(self, event):
        self.queue.append(lambda: bool(event))

    def record_event(self):
        event = []
        self.queue.append(lambda: event.append(True) or True)
        return event

    def step(self):
        """Do the next piece of work, unless it waits."""
        if self.queue and self.queue[0]():
            self.queue.pop(0)


@pytest.mark.parametrize("seed", range(20))
def test_work_on_pages_runs_in_the_order_in_which_they_change_hands_whatever_stream_it_is_queued_on(seed):
    random, streams = Random(seed), [FakeStream() for _ in range(3)]
    now, pages, seen, expected = [None], [0] * 6, [], []
    order = StreamOrder(lambda: now[0])
    free, active, last = set(range(6)), {}, [0] * 6
    for number in range(1, 120):
        stream = random.choice(streams)
        if stream in active:  # its thread has pages: it reads and writes them, or ends
            context, page = active[stream]
            expected.append((number, last[page]))
            stream.queue.append(lambda n=number, p=page: seen.append((n, pages[p])) or True)
            last[page] = number
            stream.queue.append(lambda n=number, p=page: pages.__setitem__(p, n) or True)
            if random.random() < 0.5:
                context.__exit__(None, None, None)
                free.add(active.pop(stream)[1])
        elif free:
            now[0] = stream
            active[stream] = order(), free.pop()
            active[stream][0].__enter__()
        for _ in range(random.randrange(3)):
            random.choice(streams).step()
    while any(stream.queue for stream in streams):
        random.choice(streams).step()
    assert sorted(seen) == expected


class Watched(TorchDispatchMode):
    """Counts operations that read or write pages of any pool; `loose` are those outside of `Pool.in_order`."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.pages, self.depth, self.inside, self.loose = set(), 0, 0, []
        made = page_storage.PageStorage.__init__

        def init(pool, *given, **named):
            made(pool, *given, **named)
            self.pages |= {x.untyped_storage().data_ptr() for x in (*pool.keys, *pool.values)}

        @contextmanager
        def in_order(_order):
            self.depth += 1
            yield
            self.depth -= 1

        monkeypatch.setattr(page_storage.PageStorage, "__init__", init)
        monkeypatch.setattr(StreamOrder, "__call__", in_order)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not func.is_view and any(x.untyped_storage().data_ptr() in self.pages for x in tensors):
            self.inside += bool(self.depth)
            self.loose += [] if self.depth else [func]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "method",
    [
        Reuse(),
        Reuse(select=QueryGuided(), ratio=0.3),
        Reuse(select=KvDeviation(), ratio=0.3),
        Full(),
    ],
)
def test_pages_are_read_and_written_in_order_only(method, monkeypatch):
    model, prompts = model_of(), [prompt_of(20, 8, seed=i) for i in range(2)]
    with Watched(monkeypatch) as watched:
        generate(model, Letters(), prompts, method, engine="paged", max_new_tokens=3)
    assert watched.inside and not watched.loose
