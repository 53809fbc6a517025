"""Serving: requests, loaders and engine in parallel; FusionRAG's asynchronous scheduler (section 4.2) and baselines.

    store → loaders (threads) → engine (one thread) → answers
              ↑                     ↑
              scheduler: which request is loaded, which is computed

    sync      the engine itself loads the blocks of its next batch, one request after the other, and computes nothing
              while it loads (the paper's baseline, figure 11a)
    request   a request enters the run queue when all its blocks have arrived (the paper's method, figure 11b)
    layer     if the engine is idle, a request can start when the first layer of its blocks has arrived; its prefill
              waits for each layer. If the engine is busy, as `request`, because layerwise loads are slower

Times are on the clock of the recorded events (`workbench.store.events`).
"""

from workbench.methods.serving.scheduler import MODES, Scheduler
from workbench.methods.serving.tickets import Engine, NoRoom, Ticket

__all__ = ["MODES", "Engine", "NoRoom", "Scheduler", "Ticket"]
