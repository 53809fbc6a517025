"""The settings of a block fine-tuning."""

from dataclasses import dataclass

from workbench.core.errors import BadInput

MODES = ("mixed", "block", "full")
POSITIONS = ("re-encoded", "naive")
OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("auto", "bf16", "fp32")


@dataclass(frozen=True)
class TuneConfig:
    """Everything but model and data that decides what comes out. Raises BadInput for a value that is not allowed.

    mode        "mixed": every sample in both modes (the paper's recipe); "block" or "full": in that mode only
    positions   of context blocks in block mode: "re-encoded" for where they stand, or "naive", every block from 0 (the
                paper's ablation without position re-encoding)
    batch       samples that are packed into one forward pass, of each process
    accumulate  forward passes a step
    warmup      steps on which the learning rate rises; behind them it falls linearly to 0
    max_length  most tokens of a prompt and its answer
    lora_rank   0: all weights are trained
    precision   "bf16" autocast or "fp32"; "auto" is bf16 on a GPU
    """

    mode: str = "mixed"
    positions: str = "re-encoded"
    steps: int = 500
    batch: int = 8
    accumulate: int = 1
    lr: float = 2e-5
    warmup: int = 20
    max_length: int = 4096
    seed: int = 0
    lora_rank: int = 0
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    precision: str = "auto"
    gradient_checkpointing: bool = False  # recompute activations in the backward pass: less memory, more time

    def __post_init__(self) -> None:
        for name, allowed in (
            ("mode", MODES), ("positions", POSITIONS), ("optimizer", OPTIMIZERS), ("precision", PRECISIONS)
        ):  # fmt: skip
            if (value := getattr(self, name)) not in allowed:
                raise BadInput(f"unknown {name} {value!r}: allowed are {', '.join(allowed)}")
        for name, least in (
            ("steps", 1), ("batch", 1), ("accumulate", 1), ("max_length", 2), ("warmup", 0), ("seed", 0),
            ("lora_rank", 0),
        ):  # fmt: skip
            if (value := getattr(self, name)) < least:
                raise BadInput(f"{name} is {value}: at least {least} is needed")
        if not 0 < self.lr < 1:
            raise BadInput(f"lr is {self.lr}: more than 0 and less than 1 is needed")
        if not 0 <= self.weight_decay < 1:
            raise BadInput(f"weight_decay is {self.weight_decay}: from 0 to less than 1 is allowed")
        if not self.clip > 0:
            raise BadInput(f"clip is {self.clip}: more than 0 is needed")
        if self.warmup > self.steps:
            raise BadInput(f"warmup is {self.warmup}: at most all {self.steps} steps")
        if self.positions == "naive" and self.mode == "full":
            raise BadInput("positions 'naive' are for modes mixed and block: mode full moves no block")
        if self.optimizer == "muon" and self.lora_rank:
            raise BadInput("optimizer 'muon' is for training all weights: use adamw with lora_rank")

    @property
    def copies(self) -> tuple[str, ...]:
        """The modes in which every sample is trained."""
        return ("full", "block") if self.mode == "mixed" else (self.mode,)

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0: linear warm-up, then linear decay to 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        return self.lr * (self.steps - step) / max(1, self.steps - self.warmup)
