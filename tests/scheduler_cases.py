"""Prompts, engines and clocks that tests of the scheduler share."""

from tests.random_models import Letters, block_of, model_of
from workbench.core.blocks import Block, Prompt
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.paged_pool import Pool
from workbench.methods.generation import generate
from workbench.methods.modes.reuse import Reuse
from workbench.methods.serving import Scheduler
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.methods.serving.paged import PagedEngine
from workbench.methods.serving.simulated import SimulatedClock, SimulatedEngine, SimulatedLoaders
from workbench.store import HostTier, MemoryStore, TieredStore
from workbench.store.events import Events
from workbench.store.tiering.pages import PageTier

MODEL = model_of()


BLOCKS = [Block(block_of(n, n).tokens, f"passage {n}") for n in (6, 4, 9, 5)]


ORDERS = [(0, 1, 2), (2, 0), (3, 3, 1), (1,), (0, 1, 2), (2, 3)]


PROMPTS = [Prompt((*(BLOCKS[i] for i in order), block_of(3 + n, 60 + n))) for n, order in enumerate(ORDERS)]


def one_by_one(method, count=5, **options):
    store = MemoryStore()
    return [
        generate(MODEL, Letters(), [prompt], method, store, max_new_tokens=count, **options)[0] for prompt in PROMPTS
    ]


def ran(engine, mode, count, prompts=PROMPTS, **options):
    """Serve prompts to their end; the tickets, and the scheduler that was closed."""
    scheduler = Scheduler(engine, mode, **options)
    tickets = scheduler.run(prompts, count)
    scheduler.close()
    return tickets, scheduler


def served(mode, method="block", store=None, count=5, batch=3, **options):
    engine = ContiguousEngine(MODEL, Letters(), MemoryStore() if store is None else store, method, **options)
    return ran(engine, mode, count, batch=batch)


def simulated(mode, loads, prefill=2.0, count=1, loaders=2, batch=8, layers=4, kind=SimulatedEngine, **options):
    """Serve one request for each of `loads`, the seconds that its blocks take to load, by an engine of a kind."""
    clock = SimulatedClock()
    events = Events(clock)
    by_name = {f"{i}": seconds for i, seconds in enumerate(loads)}
    held = SimulatedLoaders(loaders, lambda ticket: by_name[ticket.name], clock, events, layers)
    engine = kind(clock, lambda ticket: prefill, 0.5, layers)
    scheduler = Scheduler(engine, mode, held, batch, events=events, **options)
    tickets = [scheduler.submit(PROMPTS[i % len(PROMPTS)], count) for i in range(len(loads))]
    return scheduler, tickets, engine


def finished(mode, loads, **options):
    scheduler, tickets, _ = simulated(mode, loads, **options)
    scheduler.run()
    return [ticket.ended for ticket in tickets], list(scheduler.events)


def paged(pages=60, size=8, method=None, store=None, kind=PagedEngine, **options):
    pool = Pool(MODEL, pages, size, kernels=False)
    behind = TieredStore([HostTier(1 << 20)]) if store is None else store
    return kind(Runner(MODEL, pool), PageTier(pool, behind), Letters(), method or Reuse(), **options)
