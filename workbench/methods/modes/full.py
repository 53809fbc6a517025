"""Ordinary prefill: every token of the prompt is computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.masks import Sees, causal
from workbench.core.plan import Pass
from workbench.engine.chunked import check_chunk
from workbench.engine.forward import all_rows
from workbench.methods import ReadyRequest
from workbench.methods.registry import check_options
from workbench.methods.sparse import Sparse
from workbench.store import Store


@dataclass(frozen=True)
class Full:
    """Compute every token.

    sees     returns the mask rule of a prompt, as `core.masks.block_attention` does; None: causal
    sparse   selects the key tiles that are attended to
    chunk    query tokens per pass; None: no chunking
    """

    sees: Callable[[Prompt], Sees] | None = None
    sparse: Sparse | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        check_options(self)

    def check(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> None:
        """Do nothing: every model can compute every token."""

    def begin(
        self, model: PreTrainedModel, prompts: Sequence[Prompt], store: Store | None = None, reserve: int = 0
    ) -> list[ReadyRequest]:
        tiles = self.sparse.for_model(model) if self.sparse else None
        return [self._begin(model, prompt, tiles, reserve) for prompt in prompts]

    def _begin(self, model: PreTrainedModel, prompt: Prompt, tiles: Sparse | None, reserve: int) -> ReadyRequest:
        length = len(prompt)
        sees = self.sees(prompt) if self.sees else causal
        request = all_rows(model, prompt.tokens, reserve, sees=sees, sparse=tiles)
        if self.chunk is not None:
            check_chunk(request.plan, self.chunk)
        return ReadyRequest(request, (Pass(range(length), length),), length, 0, self.chunk)
