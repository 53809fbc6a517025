"""Settings for training a lab model."""

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from workbench.core.errors import BadInput, not_allowed
from workbench.core.utils.annotations import check_fields

if TYPE_CHECKING:
    from transformers import LlamaConfig

OPTIMIZERS = ("muon", "adamw")
MOST_PARAMETERS = 10**9
INT8 = "int8"
STORAGES = ("bfloat16", "float16", INT8)  # of shipped weights: 2, 2 and 1 bytes per number


@dataclass(frozen=True)
class PretrainConfig:
    """Settings that determine a lab model. Raises BadInput for a value that is not allowed."""

    seed: int = 0
    hidden: int = 256
    intermediate: int = 704
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    context: int = 4096
    rope_theta: float = 10_000.0
    lr: float = 3e-3
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    warmup: int = 200
    rest_weight: float = 0.3  #: weight of the loss on tokens that are not answers
    optimizer: str = "muon"  #: "muon" for the layers' matrices and AdamW for the rest, or "adamw" for everything
    last: int = 4_000  #: steps on the last stage
    decay: float = 0.5  #: share of the `last` steps over which the learning rate decays to 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "context", "warmup", "last"):
            if (value := getattr(self, name)) < 1:
                raise BadInput(f"recipe setting {name} is {value}: at least 1 is needed")
        for name in ("lr", "rope_theta", "clip", "decay"):
            if not 0 < (value := getattr(self, name)) < inf:
                raise BadInput(f"recipe setting {name} is {value}: a number above 0 is needed")
        for name in ("weight_decay", "rest_weight"):
            if not 0 <= (value := getattr(self, name)) < inf:
                raise BadInput(f"recipe setting {name} is {value}: a number of at least 0 is needed")
        if self.decay > 1:
            raise BadInput(f"recipe setting decay is {self.decay}: a share of at most 1 is needed")
        for name, divisor in (("hidden", self.heads), ("heads", self.kv_heads)):
            if (value := getattr(self, name)) % divisor:
                raise BadInput(f"recipe setting {name} is {value}: a multiple of {divisor} is needed, one part a head")
        if self.head_dim % 2:
            raise BadInput(f"recipe setting head_dim is {self.head_dim}: an even number is needed, whose halves rotate")
        if self.parameters > MOST_PARAMETERS:
            raise BadInput(
                f"a model of {self.parameters:.3g} parameters is no lab model: at most {MOST_PARAMETERS:.0e}"
            )
        if self.optimizer not in OPTIMIZERS:
            raise not_allowed("optimizer", self.optimizer, OPTIMIZERS)

    @property
    def parameters(self) -> int:
        """Number of parameters of the layers."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    def model_config(self, vocab_size: int) -> "LlamaConfig":
        """Return the model's configuration in Hugging Face format."""
        from transformers import LlamaConfig  # slow to import, and not needed for settings

        return LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
