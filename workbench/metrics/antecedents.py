"""Whether preparation can give a passage what it lacks: is the passage that it goes on from among its neighbours?"""

from collections.abc import Callable, Iterable, Sequence

from workbench.core.blocks import Block, Prompt
from workbench.data.lab_words import CONTINUED
from workbench.data.sample import Sample


def antecedents(
    samples: Iterable[Sample], prompts: Iterable[Prompt], neighbours: Callable[[Block], Sequence[Block]]
) -> tuple[int, int]:
    """(found, all): of all continued passages of a lab corpus, each once, those whose first part is a neighbour.

    A continued passage says "She …" of somebody whom only the passage before it names, its antecedent.
    """
    parts: dict[Block, Block] = {}
    for sample, prompt in zip(samples, prompts, strict=True):
        documents = prompt.context[len(prompt.context) - len(sample.ctxs) :]
        for i, passage in enumerate(sample.ctxs):
            if i and passage.title.startswith(CONTINUED):
                parts.setdefault(documents[i], documents[i - 1])
    return sum(first in neighbours(block) for block, first in parts.items()), len(parts)
