"""Serving: requests, loaders and engine in parallel; FusionRAG's asynchronous scheduler (section 4.2) and baselines.

    store → loaders (threads) → engine (one thread) → answers
              ↑                     ↑
              scheduler: which request is loaded, which is computed

    sync      the engine loads the blocks of the requests of its next batch itself, one after the other, and computes
              nothing meanwhile (the paper's baseline, figure 11a)
    request   a request enters the run queue when all its blocks have arrived (the paper's, figure 11b)
    layer     where the engine has nothing else to do, a request may enter it when the first layer of its blocks has
              arrived; its prefill waits for each layer. Where there is work anyway, as by request: layer by layer, a
              load is slower

Times are on the clock of the events that are recorded (`workbench.store.events`).
"""

from workbench.methods.serving.scheduler import MODES, Scheduler
from workbench.methods.serving.tickets import Engine, NoRoom, Ticket

__all__ = ["MODES", "Engine", "NoRoom", "Scheduler", "Ticket"]
