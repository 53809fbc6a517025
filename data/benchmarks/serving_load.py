"""What is asked of a store of cached blocks in a benchmark of serving: how many blocks, questions and threads."""

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from workbench.core.errors import BadInput

State = Literal["cold", "warm", "hot"]
STATES: tuple[State, ...] = get_args(State)
SIZE = 64  # tokens of a page


@dataclass(frozen=True)
class Load:
    """What is asked.

    blocks, block      blocks of the corpus, and tokens of each
    questions          asked at once; at most `baseline` of them by full prefill and by prefix caching, as many as
                       there is time for, `chosen` of them with `ratio` of the tokens recomputed, `cold` of them over
                       blocks on disk
    share              of the corpus that the tier above the one where blocks lie may hold
    loaders, readers   threads that load requests, and that read blocks from the disk for them
    """

    blocks: int = 40
    block: int = 64
    per_question: int = 8
    question: int = 16
    answer: int = 4
    questions: int = 24
    baseline: int = 8
    chosen: int = 8
    cold: int = 24
    ratio: float = 0.15
    zipf: float = 1.0
    share: float = 0.5
    batch: int = 8
    loaders: int = 2
    readers: int = 2
    loading: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "seed" and not value > 0:
                raise BadInput(f"{name} is {value}: a positive number is needed")
        if self.per_question > self.blocks:
            raise BadInput(f"per_question is {self.per_question}, and the corpus has {self.blocks} blocks")

    @property
    def tokens(self) -> int:
        """Tokens of a prompt."""
        return self.per_question * self.block + self.question


GPU = Load(
    blocks=2000,
    block=128,
    per_question=256,
    question=50,
    answer=8,
    questions=200,
    baseline=200,
    chosen=12,
    cold=200,
    share=0.75,  # of two batches' blocks: one is loaded while the other is computed
    loaders=4,
    readers=16,
)
