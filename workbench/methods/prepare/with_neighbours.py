"""Similarity-guided preprocessing: cache a passage as computed after its most similar passages.

FusionRAG, section 3.1, equation 10, assumes that similar passages are retrieved together, and lets a passage attend to
them offline.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Literal

import numpy as np
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.data import embedders
from workbench.data.retrieval_corpus import Corpus, nearest_texts
from workbench.methods import registry
from workbench.methods.prepare import KV, Block, Prompt, contexts, preceding_blocks, split_by_prompt
from workbench.methods.prepare._behind import behind_system
from workbench.models.spec import attach
from workbench.store import Store, collect, fetch, fingerprint, key_of


def _check_embedder(_: str, embedder: object) -> None:
    if isinstance(embedder, str):
        embedders.check(embedder)


@dataclass(frozen=True)
class WithNeighbours:
    r"""Each passage is computed over the `n` most similar passages of `corpus`, and its own KV is cached.

    *Follows the paper.* The public code of its name was consulted for the token selection only (see `query_guided`).

    The system blocks and these neighbours, each cached as by `after_system`, are concatenated, the most similar first.

    The passage's KV is cached at its position after them (`KV.start`), and rerotated once, when a prompt is assembled.
    Neighbours come from the whole corpus, not only from the passages of the current question, and exclude the passage
    itself. There are fewer than `n` in a small corpus, or if more do not fit into the model's context;
    `few_neighbours` reports these passages.

    With $\mathrm{KV}(x \mid y)$ the keys and values of block $x$ after $y$, and $N_1 \ldots N_n$ its nearest passages:

    $$\mathrm{cached}_i = \mathrm{KV}(B_i \mid S, N_1, \ldots, N_n)$$
    """

    corpus: Corpus = field(repr=False)
    n: int = registry.integer_option(10, "how many neighbours a passage is prepared with, 0 or more")
    embedder: str = registry.option("tfidf", _check_embedder)
    search: Literal["faiss", "exact"] = "faiss"
    system: int = registry.system_blocks()
    table: np.ndarray = field(init=False, repr=False, compare=False)  #: [N, n] indices of every passage's neighbours

    def __post_init__(self) -> None:
        registry.check_options(self)
        object.__setattr__(self, "table", nearest_texts(self.corpus.texts, self.n, self.embedder, self.search))

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        spec = attach(model)
        if not self.n:
            return split_by_prompt(
                prompts, fetch(model, contexts(prompts), store, preceding_blocks(prompts, self.system))
            )
        model_key = fingerprint(model)
        system = [block for prompt in prompts for block in prompt.context[: self.system]]
        ahead = [past for prompt in prompts for past in preceding_blocks([prompt], self.system)[: self.system]]
        front = iter(fetch(model, system, store, ahead))
        chunks = self._chunks(spec.context, prompts)
        cuts = [(chunk.blocks[-1], chunk.blocks[: self.system], chunk.context[self.system :]) for chunk in chunks]
        keys = [key_of(model_key, model.dtype, *cut) for cut in cuts]
        made = partial(behind_system, model, store=store, system=self.system)
        rest = iter(collect(store, keys, lambda missing: made([chunks[i] for i in missing])))
        places = (i for prompt in prompts for i in range(len(prompt.context)))
        return split_by_prompt(prompts, [next(front if i < self.system else rest) for i in places])

    def neighbours(self, block: Block) -> tuple[Block, ...]:
        """Return the passages over which a passage is computed, the most similar first."""
        if block not in self.corpus.place:
            raise BadInput(
                f"passage {block.label!r} is not in the corpus of {len(self.corpus)} passages: "
                "its neighbours are only known for prompts over passages of the corpus"
            )
        return tuple(self.corpus.blocks[i] for i in self.table[self.corpus.place[block]])

    def _chunks(self, context: int | None, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return every passage after the system blocks and as many of its neighbours as fit into the context."""
        chunks = []
        for system, block in ((p.blocks[: self.system], block) for p in prompts for block in p.context[self.system :]):
            found, fixed = self.neighbours(block), sum(map(len, (*system, block)))
            lengths = list(accumulate(map(len, found), initial=fixed))[1:]
            fits = sum(not context or length <= context for length in lengths)
            chunks.append(Prompt((*system, *found[:fits], block)))
        return chunks

    def few_neighbours(self, context: int | None, prompts: Sequence[Prompt]) -> str:
        """Return a sentence about passages with fewer than n neighbours, and the reason; "" if there are none."""
        counts = {each.blocks[-1]: len(each.context) - self.system for each in self._chunks(context, prompts)}
        short, found = [count for count in counts.values() if count < self.n], self.table.shape[1]
        if not short:
            return ""
        if min(short) == found:
            passages = f"{len(self.corpus)} passage{'s' * (len(self.corpus) != 1)}"
            return f"the corpus has {passages}: each is prepared behind {found} other{'s' * (found != 1)}, not {self.n}"
        some = f"{min(short)} to {max(short)}" if min(short) < max(short) else f"{min(short)}"
        return (
            f"{len(short)} of {len(counts)} passages are prepared behind {some} of {self.n} neighbours: "
            f"the model's context of {context} tokens holds no more"
        )
