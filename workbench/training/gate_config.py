"""Settings for training SeerAttention's gate. Has no slow imports."""

from dataclasses import dataclass
from typing import Annotated

from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_fields

MOST_WIDTH, MOST_BATCH = 8192, 4096  # maximum channels, prompts per step


@dataclass(frozen=True)
class GateConfig:
    """Settings of AdamW: linear warmup over `warmup` steps, then cosine decay to 0; `seed` draws the prompts."""

    steps: Annotated[int, "Optimizer steps"] = 400
    batch: Annotated[int, "Prompts per step"] = 2
    lr: Annotated[float, "Peak learning rate"] = 1e-3
    warmup: Annotated[int, "Linear warmup steps; then the rate decays to 0"] = 20
    block: Annotated[int, "Tokens per block"] = 64
    width: Annotated[int, "Channels of the gate"] = 128
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("steps", "batch", "block"):
            if (value := getattr(self, name)) < 1:
                raise BadInput(f"{name} is {value}: at least 1 is needed")
        if self.batch > MOST_BATCH:
            raise BadInput(f"batch is {self.batch}: at most {MOST_BATCH:,} prompts a step")
        if not 1 <= self.width <= MOST_WIDTH:
            raise BadInput(f"width is {self.width}: from 1 to {MOST_WIDTH:,} is allowed")
        if not self.lr > 0 or self.warmup < 0:
            raise BadInput(f"lr {self.lr} and warmup {self.warmup}: a rate above 0 and a number of steps")
