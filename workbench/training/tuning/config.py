"""Settings of block fine-tuning."""

from dataclasses import dataclass
from typing import Annotated

from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_fields

ALLOWED = {
    "mode": ("mixed", "block", "full"),
    "positions": ("re-encoded", "naive"),
    "optimizer": ("adamw", "muon"),
    "precision": ("auto", "bf16", "fp32"),
    "teacher": ("gold", "self"),
    "own_answers": ("missing", "all"),
    "lora_targets": ("auto", "attention", "all"),
}
LEAST = {"steps": 1, "batch": 1, "accumulate": 1, "max_length": 2, "warmup": 0, "seed": 0, "lora_rank": 0}
LEAST |= {"own_tokens": 1, "header": 0, "trailer": 0, "links": 0}
MOST_BATCH = 1 << 16  # maximum number of samples per forward pass


@dataclass(frozen=True)
class TuneConfig:
    """Settings of block fine-tuning, except model and data. Raises BadInput for a value that is not allowed.

    Mode "mixed" is the recipe of Block-Attention; positions "naive" are its ablation without position re-encoding.
    Teacher "self" needs no labels: the loss is the divergence from the base model's own full attention on each token of
    questions and answers.
    """

    mode: Annotated[str, "mixed: every sample in both modes; block, full: in one mode"] = "mixed"
    positions: Annotated[str, "Block positions in block mode: re-encoded, or naive (each starting at 0)"] = "re-encoded"
    steps: Annotated[int, "Optimizer steps"] = 500
    batch: Annotated[int, "Samples packed into one forward pass, per process"] = 8
    accumulate: Annotated[int, "Gradient accumulation: forward passes per step"] = 1
    lr: Annotated[float, "Peak learning rate"] = 2e-5
    warmup: Annotated[int, "Linear warmup steps; then the rate decays to 0"] = 20
    max_length: Annotated[int, "Maximum tokens of prompt plus answer"] = 4096
    seed: Annotated[int, "Seed for data order and new weights"] = 0
    lora_rank: Annotated[int, "Train LoRA of this rank (needs peft); 0: all weights"] = 0
    lora_targets: Annotated[str, "attention: q, k, v, o; all: every layer; auto: attention with teacher self"] = "auto"
    teacher: Annotated[str, "gold: answers from the data; self: the model's own full attention (no labels)"] = "gold"
    question_weight: Annotated[float, "Weight of a question token relative to an answer token"] = 0.2
    own_answers: Annotated[str, "Use the model's greedy answers: missing (if there is no gold answer) or all"] = (
        "missing"
    )
    own_tokens: Annotated[int, "Maximum tokens of such an answer"] = 24
    budget: Annotated[float | None, "Minutes for the whole run: the rate decays to 0 by then, with fewer steps"] = None
    header: Annotated[int, "Soft tokens before each passage; if any are set, only they and LoRA are trained"] = 0
    trailer: Annotated[int, "Soft tokens after each passage (KV Packet: 8 and 8)"] = 0
    links: Annotated[
        int, "Link tokens at the end of each passage: attend to everything before, recomputed (KVLink: 5)"
    ] = 0
    optimizer: Annotated[str, "adamw, or muon for the weight matrices of the layers"] = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    precision: Annotated[str, "bf16, fp32, or auto: bf16 on a GPU"] = "auto"
    gradient_checkpointing: Annotated[bool, "Less memory, more time"] = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name, allowed in ALLOWED.items():
            if (value := getattr(self, name)) not in allowed:
                raise BadInput(f"unknown {name} {value!r}: allowed are {', '.join(allowed)}")
        for name, least in LEAST.items():
            if (value := getattr(self, name)) < least:
                raise BadInput(f"{name} is {value}: at least {least} is needed")
        if self.batch > MOST_BATCH:
            raise BadInput(f"batch is {self.batch}: at most {MOST_BATCH:,} samples are packed into one forward pass")
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
        if self.teacher == "self" and self.mode == "full":
            raise BadInput("teacher 'self' teaches nothing in mode full, which is the teacher: use mixed or block")
        if not 0 <= self.question_weight <= 1:
            raise BadInput(f"question_weight is {self.question_weight}: from 0 to 1 is allowed")
        if self.budget is not None and not self.budget > 0:
            raise BadInput(f"budget is {self.budget}: more than 0 minutes are needed")
        if self.optimizer == "muon" and self.lora_rank:
            raise BadInput("optimizer 'muon' is for training all weights: use adamw with lora_rank")

        if any(self.soft) and (self.mode == "full" or self.optimizer == "muon"):
            odd = "mode 'full' has none" if self.mode == "full" else "optimizer 'muon' is for matrices"
            raise BadInput(f"header, trailer and links are soft tokens of block mode, trained by adamw: {odd}")

    @property
    def soft(self) -> tuple[int, int, int]:
        """Numbers of soft tokens around a passage: header, trailer and links."""
        return self.header, self.trailer, self.links

    @property
    def adapts(self) -> bool:
        """Whether the result is an adapter that leaves the base model's weights unchanged."""
        return bool(self.lora_rank or any(self.soft))

    @property
    def copies(self) -> tuple[str, ...]:
        """The modes in which each sample is trained."""
        return ("full", "block") if self.mode == "mixed" else (self.mode,)

    @property
    def attention_only(self) -> bool:
        """Whether LoRA changes attention projections only."""
        return self.lora_targets == "attention" or (self.lora_targets == "auto" and self.teacher == "self")

    def rate(self, step: int, seconds: float = 0.0) -> float:
        """Return the learning rate of a step, counted from 0: linear warmup, then linear decay to 0.

        It decays with the steps or with the `seconds` of the budget, whichever is further along.
        """
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        left = (self.steps - step) / max(1, self.steps - self.warmup)
        if self.budget is not None:
            left = max(0.0, min(left, 1 - seconds / (60 * self.budget)))
        return self.lr * left

    def finished(self, step: int, seconds: float = 0.0) -> bool:
        """Return whether all steps are done, or the budget is spent."""
        return step >= self.steps or (self.budget is not None and seconds >= 60 * self.budget)
