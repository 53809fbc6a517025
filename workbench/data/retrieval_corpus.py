"""The distinct passages of a data set, with their nearest neighbours and their order within documents."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256

import numpy as np
from transformers import PreTrainedTokenizerBase

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput, not_allowed
from workbench.data import embedders
from workbench.data.layouts import Layout
from workbench.data.sample import Sample, document_starts

PART = 256  # texts per batch of comparisons with all others
Search = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Corpus:
    """The distinct passages of a data set.

    blocks  passage i as a block of a prompt
    texts   passage i as the text that is embedded
    ahead   indices of the passages before passage i in its document, as far as a sample holds them
            (`sample.document_starts`); (): each passage is a document
    """

    blocks: tuple[Block, ...]
    texts: tuple[str, ...]
    ahead: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, samples: Iterable[Sample], layout: Layout, tokenizer: PreTrainedTokenizerBase) -> "Corpus":
        """Return all passages of `samples`, in the order in which they first occur."""
        listed = list(samples)
        text_of: dict[Block, str] = {}
        ahead: dict[Block, list[Block]] = {}
        for sample, prompt in zip(listed, layout.prompts(listed, tokenizer), strict=True):
            documents = prompt.context[len(prompt.context) - len(sample.ctxs) :]
            for passage, block in zip(sample.ctxs, documents, strict=True):
                text_of.setdefault(block, f"{passage.title}\n{passage.text}")
            for i, first in enumerate(document_starts(sample.ctxs)):
                ahead.setdefault(documents[i], [block for block in documents[first:i] if block != documents[i]])
        place = {block: i for i, block in enumerate(text_of)}
        numbers = (tuple(place[before] for before in ahead[block]) for block in text_of)
        return cls(tuple(text_of), tuple(text_of.values()), tuple(numbers))

    @classmethod
    def of_prompts(cls, prompts: Iterable[Prompt], tokenizer: PreTrainedTokenizerBase, system: int = 1) -> "Corpus":
        """Return the passages of prompts, whose first `system` blocks are none, in the order in which they occur."""
        blocks = tuple(dict.fromkeys(block for prompt in prompts for block in prompt.context[system:]))
        return cls(blocks, tuple(str(tokenizer.decode(list(block.tokens))) for block in blocks))

    @cached_property
    def key(self) -> str:
        """Content hash of the passages in their order."""
        return sha256("".join(block.key for block in self.blocks).encode()).hexdigest()[:32]

    @cached_property
    def place(self) -> dict[Block, int]:
        """{block: its index}."""
        return {block: i for i, block in enumerate(self.blocks)}

    def ahead_of(self, block: Block) -> tuple[Block, ...]:
        """Return the passages before `block` in its document, in reading order."""
        return tuple(self.blocks[i] for i in self.ahead[self.place[block]]) if self.ahead else ()

    def __len__(self) -> int:
        return len(self.blocks)


@lru_cache(maxsize=16)  # methods of one comparison share a corpus
def nearest_texts(texts: tuple[str, ...], n: int, embedder: str = "tfidf", search: str = "faiss") -> np.ndarray:
    """Return the indices [N, n] of the texts most similar to each text, itself excluded, the most similar first.

    n       at most; of n texts or fewer all others are returned
    search  "faiss": FAISS's exact inner-product index; "exact": the same by numpy, for small corpora without FAISS

    Raises BadInput for an unknown search, and where faiss or the embedder is not installed.
    """
    check_search("search", search)
    n = min(n, len(texts) - 1)
    if n < 1:
        return np.zeros((len(texts), 0), dtype=np.int64)
    numbers = SEARCHES[search](embedders.embed(texts, embedder), n + 1)
    return np.stack([row[row != i][:n] for i, row in enumerate(numbers)])


def _faiss(vectors: np.ndarray, k: int) -> np.ndarray:
    try:
        import faiss  # slow to import, and only needed here
    except ImportError:
        remedy = "pip install faiss-cpu, or choose search 'exact'"
        raise BadInput(f"search 'faiss' needs the package faiss-cpu: {remedy}") from None
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search(vectors, k)[1]


def _exact(vectors: np.ndarray, k: int) -> np.ndarray:
    parts = (vectors[i : i + PART] @ vectors.T for i in range(0, len(vectors), PART))
    return np.concatenate([np.argsort(-part, axis=1, kind="stable")[:, :k] for part in parts])


SEARCHES: dict[str, Search] = {"faiss": _faiss, "exact": _exact}


def check_search(name: str, search: object) -> None:
    """Raise BadInput for any search but "faiss" and "exact"."""
    if search not in tuple(SEARCHES):
        raise not_allowed(name, search, SEARCHES)
