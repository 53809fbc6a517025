"""Tasks run side by side: outcomes, retries, refusals, processes that die; Dask's side is in test_sweep_cluster."""

import os
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from tests.random_models import block_of, model_of
from tests.refusals import refused
from workbench.core.errors import BadInput
from workbench.core.utils import runner
from workbench.core.utils.runner import Outcome, Workers
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.graphs.graph_step import Captured
from workbench.engine.pages import page_storage
from workbench.engine.pages.paged_pool import Pool


class Work:
    """Halves even numbers, refuses 3, and fails at 5 until it was asked three times; counts what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, task):
        self.asked.append(task)
        if task == 3:
            raise BadInput("3 is refused")
        if task == 5 and self.asked.count(5) < 3:
            raise MemoryError("no room")
        return task / 2


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("retries", "fifth"), [(0, "MemoryError: no room"), (1, "MemoryError: no room"), (2, "")])
def test_every_task_has_an_outcome_and_only_what_may_change_is_tried_again(jobs, retries, fifth, monkeypatch):
    monkeypatch.setattr(runner, "pool", lambda processes, shared: ThreadPoolExecutor(1))
    work = Work()
    with Workers(jobs) as workers:
        outcomes = dict(workers.run(work, [2, 3, 5, 4], retries))
    assert (outcomes[2], outcomes[4]) == (Outcome(1.0), Outcome(2.0))
    assert outcomes[3] == Outcome(problem="3 is refused", refused=True) and work.asked.count(3) == 1
    assert outcomes[5].problem == fifth and work.asked.count(5) == retries + 1
    assert ("in __call__" in outcomes[5].trace) == bool(fifth)


def test_an_outcome_gives_its_value_or_raises_its_problem():
    assert Outcome(4).value() == 4
    refused("not this", lambda: Outcome(problem="not this", refused=True).value())
    with pytest.raises(RuntimeError, match="no room\nwhere"):
        Outcome(problem="no room", trace="where").value()


def number_of(shared, task):
    if task == "dies":
        os._exit(3)
    return shared, runner.worker_number(), os.getpid()


def test_a_process_that_dies_takes_its_own_task_only(forked_pool):
    with Workers(2, shared=("given",)) as workers:
        outcomes = dict(workers.run(number_of, ["a", "dies", "b"]))
    assert outcomes["dies"] == Outcome(problem=runner.DIED, died=True)
    for task in "ab":
        shared, number, process = outcomes[task].value()
        assert shared == "given" and number in (0, 1) and process != os.getpid()


def test_leaving_early_cancels_what_has_not_begun(monkeypatch):
    class Slow(ThreadPoolExecutor):
        def submit(self, work, task, *given):
            return super().submit(work, task, *given) if task == 2 else self.submit_never()

        def submit_never(self):
            futures.append(super().submit(lambda: None).__class__())
            return futures[-1]

    futures = []
    monkeypatch.setattr(runner, "pool", lambda processes, shared: Slow(1))
    with Workers(2) as workers:
        running = workers.run(Work(), [2, 4, 6])
        assert next(running)[0] == 2
        running.close()
    assert len(futures) == 2 and all(future.cancelled() for future in futures)


def test_tasks_that_were_over_when_a_process_died_are_not_run_again(monkeypatch):
    class Breaks(ThreadPoolExecutor):
        def submit(self, work, task, *given):
            return super().submit(self.broken if task == 4 else work, task, *given)

        def broken(self, *given):
            raise BrokenProcessPool

    monkeypatch.setattr(runner, "pool", lambda processes, shared: Breaks(1))
    work = Work()
    with Workers(2) as workers:
        outcomes = dict(workers.run(work, [2, 4, 6]))
    assert outcomes[4].died and outcomes[2].value() == 1 and outcomes[6].value() == 3
    assert work.asked.count(2) == 1


def test_processes_are_told_where_they_outnumber_the_gpus(monkeypatch):
    monkeypatch.delenv(runner.SHARED_GPU, raising=False)
    for gpus, told in ((2, None), (1, "1")):
        monkeypatch.setattr(runner.torch.cuda, "device_count", lambda gpus=gpus: gpus)
        with runner.pool(2) as processes:
            assert processes.submit(os.getenv, runner.SHARED_GPU).result() == told


def test_a_gpu_is_dealt_by_the_number_of_the_worker(monkeypatch):
    monkeypatch.setattr(runner, "worker_number", lambda: 5)
    assert (
        runner.device_of_process("cuda", lambda: 4) == "cuda:1"
        and runner.device_of_process("cuda", lambda: 1) == "cuda"
    )
    assert (
        runner.device_of_process("cpu", lambda: 4) == "cpu"
        and runner.device_of_process("cuda:2", lambda: 4) == "cuda:2"
    )


# --- A `Runner` reads and writes pages that its prompts hold, step by step; bad input is refused before any work
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODEL = model_of(head_dim=32).to(DEVICE)
BLOCKS = [block_of(n, seed=n) for n in (19, 7, 33)]
QUESTION = torch.tensor(block_of(5, 50).tokens)
VOCABULARY = MODEL.config.vocab_size


CAPTURED = pytest.mark.skipif(DEVICE == "cpu", reason="steps are captured on a GPU")


@pytest.fixture(params=["as it is", pytest.param("captured", marks=CAPTURED)])
def pool(request):
    """A pool whose steps run as they are, and one whose steps are replays of CUDA graphs."""
    return Pool(MODEL, 40, 16, kernels=request.param == "captured")


def begun(pool, question=QUESTION):
    """A runner, the blocks of a prompt, the prompt, and the logits of its question."""
    runner, cached = Runner(MODEL, pool), pool.encode(MODEL, BLOCKS)
    prompt = pool.open(cached, len(question) + 12)
    logits = runner.prefill([prompt], [question])
    assert runner.graphs == pool.kernels, runner.why_uncaptured
    return runner, cached, prompt, logits


def give_back_a_block(pool, runner, cached, prompt):
    pool.free_pages(cached[0])
    pool.encode(MODEL, [block_of(18, seed=9)])


def close(pool, runner, cached, prompt):
    pool.close(prompt)
    pool.encode(MODEL, [block_of(16, seed=9)])


def exchange_weights(pool, runner, cached, prompt):
    weight = MODEL.get_input_embeddings().weight
    MODEL.get_input_embeddings().weight = torch.nn.Parameter(weight.detach().clone())


def answer_otherwise(pool, runner, cached, prompt):
    list(runner.decode([prompt], torch.tensor([1], device=DEVICE), 4))


def compute_more(pool, runner, cached, prompt):
    runner.prefill([prompt], [torch.tensor([1, 2])])


@pytest.mark.parametrize("change", [give_back_a_block, close, exchange_weights, answer_otherwise, compute_more])
@pytest.mark.parametrize(("read", "ahead"), [(0, 1), (1, 1), (4, 1), (2, 3)])
def test_the_next_step_is_refused_once_what_it_reads_is_not_its_own(pool, change, read, ahead):
    runner, cached, prompt, logits = begun(pool)
    steps = runner.decode([prompt], logits, 10, ahead=ahead)
    for _ in range(read):
        next(steps)
    change(pool, runner, cached, prompt)
    taken = pool.free
    before = [x.clone() for x in pool.keys]
    refused(".", list, steps)
    assert pool.free == taken and all(torch.equal(a, b) for a, b in zip(before, pool.keys, strict=True))


def test_answers_of_one_shape_are_read_side_by_side(pool):
    runner, _, one, logits = begun(pool)
    alone = [step[0] for step in runner.decode([one], logits, 8)]
    cached = pool.encode(MODEL, BLOCKS)
    prompts = [pool.open(cached, len(QUESTION) + 12) for _ in range(3)]
    streams = [runner.decode([p], runner.prefill([p], [QUESTION]), 8) for p in prompts]
    assert [[step[0] for step in turn] for turn in zip(*streams, strict=True)] == [[token] * 3 for token in alone]
    for stream in streams:
        stream.close()
    made = len(next(iter(runner._spare.values())))
    again = pool.open(cached, len(QUESTION) + 12)
    assert [step[0] for step in runner.decode([again], runner.prefill([again], [QUESTION]), 8)] == alone
    assert len(next(iter(runner._spare.values()))) == made, "a batch is used again behind the end of its answers"


def test_threads_share_a_runner(pool):
    runner, cached, first, logits = begun(pool)
    expected = [step[0] for step in runner.decode([first], logits, 8)]

    def answer():
        prompt = pool.open(cached, len(QUESTION) + 8, wait=10)
        logits = runner.prefill([prompt], [QUESTION])
        said = [step[0] for step in runner.decode([prompt], logits, 8)]
        pool.close(prompt)
        return said

    def encode():  # beside them, where they do not read
        for seed in range(6):
            pool.free_pages(pool.encode(MODEL, [block_of(16, seed)])[0])

    with ThreadPoolExecutor(7) as threads:
        beside, *asked = threads.submit(encode), *(threads.submit(answer) for _ in range(18))
    assert beside.result() is None and [one.result() for one in asked] == [expected] * 18


LOGITS = {
    "nan": torch.full((1, VOCABULARY), torch.nan),
    "inf": torch.full((1, VOCABULARY), torch.inf),
    "integers": torch.zeros(1, VOCABULARY, dtype=torch.long),
    "another vocabulary": torch.zeros(1, VOCABULARY + 1),
    "two rows": torch.zeros(2, VOCABULARY),
    "float ids": torch.tensor([1.5]),
    "an id behind the vocabulary": torch.tensor([VOCABULARY]),
    "a negative id": torch.tensor([-1]),
    "a list": [1],
}


@pytest.mark.parametrize("name", LOGITS)
def test_logits_that_are_none_are_refused_and_leave_the_prompt_as_it_was(pool, name):
    runner, _, prompt, logits = begun(pool)
    written = prompt.written
    refused(".", lambda: list(runner.decode([prompt], LOGITS[name], 4)))
    assert prompt.written == written
    assert len(list(runner.decode([prompt], logits, 4))) == 4


def test_masked_logits_are_taken(pool):
    runner, _, prompt, logits = begun(pool)
    masked = torch.full_like(logits, -torch.inf)
    masked[0, 7] = logits[0, 7]
    assert next(runner.decode([prompt], masked, 4)) == [7]


@pytest.mark.parametrize("recompute", [(), (2, 3)], ids=["reuse", "recomputed"])
def test_decode_before_the_question_is_computed_is_refused(pool, recompute):
    runner, cached = Runner(MODEL, pool), pool.encode(MODEL, BLOCKS)
    prompt = pool.open(cached, 16, recompute)
    if recompute:
        runner.prefill([prompt], [torch.tensor([1, 2])])
    refused(".", lambda: runner.decode([prompt], torch.zeros(1, VOCABULARY), 4))


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, cached: pool.open(cached, 16, [1.5]),
        lambda pool, cached: pool.open(cached, 16, torch.tensor([[1, 2]])),
        lambda pool, cached: pool.open(cached, 16, torch.tensor([True])),
        lambda pool, cached: pool.open(cached, 16, "12"),
        lambda pool, cached: pool.open(cached, 1.5),
        lambda pool, cached: pool.blank(1.5),
        lambda pool, cached: pool.blank("4"),
        lambda pool, cached: Runner(MODEL, pool).prefill([pool.open(cached, 8)], [torch.tensor([1.5, 2.0])]),
        lambda pool, cached: Runner(MODEL, pool).prefill([pool.open(cached, 8)], [torch.tensor([[1, 2]])]),
        lambda pool, cached: Runner(MODEL, pool).prefill([pool.open(cached, 8)], [[1, 2]]),
        lambda pool, cached: Runner(MODEL, pool).prefill([None], [torch.tensor([1])]),
        lambda pool, cached: Runner(MODEL, pool).decode([None], torch.zeros(1, VOCABULARY), 2),
    ],
)
def test_wrong_kinds_are_refused_before_any_page_is_written(pool, call):
    cached = pool.encode(MODEL, BLOCKS)
    before = [x.clone() for x in pool.keys]
    refused(".", call, pool, cached)
    assert all(torch.equal(a, b) for a, b in zip(before, pool.keys, strict=True))


def test_a_prompt_computed_elsewhere_answers_at_once(pool):
    whole, runner = block_of(40, seed=3), Runner(MODEL, pool)
    blank = pool.blank(48)
    logits = runner.prefill([blank], [torch.tensor(whole.tokens)])
    expected = [step[0] for step in runner.decode([blank], logits, 6)]
    prompt = pool.open(pool.encode(MODEL, [whole]), 8)
    refused(".", lambda: list(runner.decode([prompt], logits, 6)))
    prompt.complete = True
    assert [step[0] for step in runner.decode([prompt], logits, 6)] == expected


# --- Threads on CUDA streams of their own: what is late on one of them is waited for on the device (`Pool.in_order`)
CYCLES = 1 << 28  # some 150 ms of a GPU


def on(stream, work):
    """What `work` returns in a thread that queues on this stream."""

    def queue():
        with torch.cuda.stream(stream):
            return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(queue).result()


def late(work):
    """`work` behind a sleep of the device."""

    def called(*given):
        torch.cuda._sleep(CYCLES)
        return work(*given)

    return called


def answered(pool):
    """What `begun` returns, its answer read: all its steps are captured; two streams, and an answer to expect."""
    runner, cached, prompt, logits = begun(pool)
    answer = [step[0] for step in runner.decode([prompt], logits, 8)]
    torch.cuda.synchronize()
    return runner, cached, logits, answer, torch.cuda.Stream(), torch.cuda.Stream()


@CAPTURED
def test_blocks_that_another_stream_writes_are_waited_for_by_the_device_and_not_by_the_host(pool, monkeypatch):
    runner, _, _, expected, mine, theirs = answered(pool)
    for tensor in (*pool.keys, *pool.values):
        tensor.zero_()
    torch.cuda.synchronize()
    with monkeypatch.context() as patch:
        patch.setattr(page_storage, "index_copy", late(page_storage.index_copy))
        cached = on(theirs, lambda: pool.encode(MODEL, BLOCKS))
    prompt = pool.open(cached, len(QUESTION) + 12)
    logits = on(mine, lambda: runner.prefill([prompt], [QUESTION]))
    assert not (pool.kernels and theirs.query()), "the host has waited"
    steps = on(torch.cuda.Stream(), lambda: list(runner.decode([prompt], logits, 8)))
    assert [step[0] for step in steps] == expected


@CAPTURED
def test_pages_given_back_are_not_written_before_another_stream_has_read_them(pool):
    runner, cached, expected, _, mine, theirs = answered(pool)
    prompt = pool.open(cached, len(QUESTION) + 12)
    logits = on(mine, late(lambda: runner.prefill([prompt], [QUESTION])))
    pool.close(prompt)
    for block in cached:
        pool.free_pages(block)
    again = on(theirs, lambda: pool.encode(MODEL, [block_of(len(block), seed=90 + len(block)) for block in BLOCKS]))
    assert {page for block in again for page in block.pages.tolist()} & set(cached[0].pages.tolist())
    mine.synchronize()
    torch.testing.assert_close(logits, expected)


@CAPTURED
def test_steps_of_one_runner_take_turns_on_the_device(pool, monkeypatch):
    runner, cached, expected, _, mine, theirs = answered(pool)
    one, two = (pool.open(cached, len(QUESTION) + 12) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(Captured, "run", late(Captured.run))  # its inputs are sent before
        logits = on(mine, lambda: runner.prefill([one], [QUESTION]))
    on(theirs, lambda: runner.prefill([two], [QUESTION.flip(0)]))
    mine.synchronize()
    torch.testing.assert_close(logits, expected)
