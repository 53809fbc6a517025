"""Which tokens of a prompt each method computes before a request and at the request, read off its plan and passes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.data.retrieval_corpus import Corpus
from workbench.methods import Method
from workbench.methods.config import MethodConfig
from workbench.methods.modes.reuse import Reuse
from workbench.metrics.cost import rows_charged
from workbench.store import MemoryStore
from workbench.store.views import RecordingStore

SYSTEM = "after_system"
COMPARED = {  # FusionRAG, figures 1 and 4; {n} neighbours
    "Full attention": MethodConfig(),
    "Full Reuse": MethodConfig(mode="block", prepare=SYSTEM),
    "CacheBlend": MethodConfig(mode="block", prepare=SYSTEM, select="kv_deviation"),
    "FusionRAG": MethodConfig(mode="block", prepare="with_neighbours(n={n})", select="query_guided"),
}


@dataclass(frozen=True)
class TokenStages:
    """Tokens of a prompt [T] bool each, and what a request costs."""

    offline: Tensor  # cached before the request
    scored: Tensor  # computed online in some layers, by the selector
    online: Tensor  # computed online in all layers
    encoded: int  # tokens that were encoded to cache them, neighbours included
    rows: float  # tokens online, passes of the selector as a share of the layers


def published(corpus: Corpus, ratio: float = 0.15, n: int = 10) -> dict[str, Method]:
    """Return the methods of FusionRAG's figures 1 and 4; `n` neighbours, fewer in a small corpus."""
    n = min(n, len(corpus) - 1)
    methods = {}
    for name, config in COMPARED.items():
        prepare = config.prepare.format(n=n)
        settings = {**vars(config), "prepare": prepare, "ratio": ratio if config.select != "none" else config.ratio}
        methods[name] = MethodConfig(**settings).method(corpus)
    return methods


def token_stages(model: PreTrainedModel, prompt: Prompt, methods: Mapping[str, Method]) -> dict[str, TokenStages]:
    """Plan one request by every method, over a store of its own that is empty before, without carrying it out."""
    layers, found = model.config.get_text_config(decoder=True).num_hidden_layers, {}
    for name, method in methods.items():
        store = RecordingStore(MemoryStore(1 << 34))
        (ready,) = method.begin(model, [prompt], store)
        offline, scored, online = (torch.zeros(len(prompt), dtype=torch.bool) for _ in range(3))
        online[ready.request.plan.rows.cpu()] = True
        for part in ready.passes[:-1]:
            scored[list(part.rows)] = True
        offline[: prompt.starts[-1]] = isinstance(method, Reuse)
        encoded = sum(len(kv) for key in store.stored if (kv := store.get(key)) is not None)
        found[name] = TokenStages(offline, scored, online, encoded, rows_charged(ready.passes, layers))
    return found
