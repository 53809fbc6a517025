"""Encode every passage after the system prompt and the preceding passages of its document.

The pronoun in "She moved to …" then has its antecedent, whatever else is retrieved. FusionRAG's preprocessing
(section 3.1) relies on finding it among similar passages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.data.retrieval_corpus import Corpus
from workbench.methods import registry
from workbench.methods.prepare import KV, Block, Prompt, contexts, split_by_prompt
from workbench.models.spec import attach
from workbench.store import Store, fetch


@dataclass(frozen=True)
class BehindDocument:
    r"""Each passage is encoded after the system prompt and the preceding passages of its own document.

    These are the first `system` blocks of its prompt and the last `n` passages before it, which attend to one another
    as in a prompt. `corpus` gives the order of passages (`Corpus.ahead`); the first passage of a document is cached as
    by `after_system`. Raises BadInput for a passage that is not in the corpus, and for a document that exceeds the
    model's context.

    With $\mathrm{KV}(x \mid y)$ the keys and values of block $x$ after $y$, and $D_{i-n} \ldots D_{i-1}$ the passages
    before it in its document:

    $$\mathrm{cached}_i = \mathrm{KV}(D_i \mid S, D_{i-n}, \ldots, D_{i-1})$$
    """

    corpus: Corpus = field(repr=False)
    n: int = registry.integer_option(10, "how many passages of its document a passage is prepared behind, 0 or more")
    system: int = registry.system_blocks()

    def __post_init__(self) -> None:
        registry.check_options(self)

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store) -> list[list[KV]]:
        after = [past for prompt in prompts for past in self._before(prompt)]
        blocks = contexts(prompts)
        longest = max((sum(map(len, (*past, block))) for past, block in zip(after, blocks, strict=True)), default=0)
        context = attach(model).context
        if context and longest > context:
            raise BadInput(
                f"a passage behind {self.n} passages of its document has {longest} tokens, the model's context is "
                f"{context}: choose a smaller n"
            )
        return split_by_prompt(prompts, fetch(model, blocks, store, after))

    def neighbours(self, block: Block) -> tuple[Block, ...]:
        """Return the passages that precede a passage when it is encoded, in the order of its document."""
        if block not in self.corpus.place:
            raise BadInput(
                f"passage {block.label!r} is not in the corpus of {len(self.corpus)} passages: "
                "its document is only known for prompts over passages of the corpus"
            )
        ahead = self.corpus.ahead_of(block)
        return ahead[max(0, len(ahead) - self.n) :]

    def _before(self, prompt: Prompt) -> list[tuple[Block, ...]]:
        """Return the blocks that precede each context block of a prompt when it is encoded."""
        system = prompt.context[: self.system]
        before = [system[:i] for i in range(len(system))]
        return before + [(*system, *self.neighbours(block)) for block in prompt.context[self.system :]]
