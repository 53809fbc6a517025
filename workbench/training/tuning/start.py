"""Set up a block fine-tuning; all checks run before the first step, and before any file is written.

The model's own greedy answers under full attention are generated once before training and saved with the run.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, set_seed
from transformers import PreTrainedModel

from workbench import models
from workbench.core.errors import BadInput, not_allowed
from workbench.core.utils.files import write_text
from workbench.data.lab_corpus.style import is_lab
from workbench.methods.generation import generate
from workbench.models.families import decoder_config
from workbench.models.loading import Loaded
from workbench.models.weights import soft_tokens
from workbench.models.weights.adapters import digest_of, is_adapter
from workbench.store.keys import fingerprint
from workbench.training.common import Progress, Tally, Training, optimizers, phase
from workbench.training.run_folder import check_run_folder, check_same, saved_record
from workbench.training.tuning.attention import NAME
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.scores import NEVER, Evaluation, examples_of
from workbench.training.tuning.teacher import Teacher
from workbench.training.tuning.text.examples import Data, Example, Files, Limits, OwnAnswers, Source


class Clock:
    """Seconds of a run, including those before an interruption."""

    def __init__(self) -> None:
        self.begin = time.monotonic()

    def set(self, seconds: float) -> None:
        """Set the clock to `seconds`."""
        self.begin = time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin


@dataclass
class TuneProgress(Progress):
    """Progress of a block fine-tuning."""

    seconds: float = 0.0
    # Scores of held-out samples: exact match, or the distance from the teacher.
    scores: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class TuneRun(Training):
    """A block fine-tuning that is ready for its next step."""

    config: TuneConfig
    loaded: Loaded  #: the bare model, its tokenizer and layout
    windows: tuple[int | None, ...]  #: sliding windows of the model's layers
    tally: Tally  #: answers since the last row of the curve, by mode
    teacher: Teacher | None = None  #: in a run with teacher "self"
    held_out: tuple[Example, ...] = ()  #: with a teacher: examples on which to compare both modes with it
    divergences: Tally | None = None  #: with a teacher: divergence by mode, over answer tokens since the last row
    clock: Clock = field(default_factory=Clock)  #: of the steps, and of the evaluations between them
    attention: str = "auto"  #: tiles (FlexAttention) or parts; auto: tiles on a GPU
    say: Callable[[str], None] = lambda text: None  #: called with a line of output for each phase
    stop: Callable[[], bool] = lambda: False  #: returns whether this process should end
    room: dict[str, int] = field(default_factory=lambda: {"tokens": 0})  #: tokens of one copy of a batch; 0: as needed
    compiled: set[int] = field(default_factory=set)  #: lengths with compiled kernels

    def should_end(self) -> bool:
        """Return whether the run should end now; several processes end together, at a row of the curve."""
        return self.accelerator.num_processes == 1 and self.stop()

    @property
    def base(self) -> dict[str, str]:
        """Name and fingerprint of the base model."""
        return self.identity["base"]

    @property
    def bf16(self) -> bool:
        return self.config.precision == "bf16" or (self.config.precision == "auto" and self.on_gpu)

    @property
    def tiles(self) -> bool:
        """Whether kernels are compiled, for each length of a batch."""
        return self.attention == "tiles" or (self.attention == "auto" and self.on_gpu)

    @property
    def mask_kind(self) -> str:
        """The kind of masks, as `masks_of` takes it."""
        return "tiles" if self.tiles else "parts"

    @property
    def on_gpu(self) -> bool:
        return self.accelerator.device.type == "cuda"


CACHE = "own_answers.json"
BATCH = 64  # questions answered together


def draw_own_answers(run: TuneRun, source: Source) -> None:
    """Answer samples with the base model where the source requests it, or read earlier answers from `run.out`."""
    if not isinstance(source, Files) or source.own is None or not source.unanswered():
        return
    path, own = run.out / CACHE, source.own
    settings = {"base": run.base["fingerprint"], "data": source.identity, "which": own.which, "tokens": own.tokens}
    if run.accelerator.is_main_process and _read(path, settings) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with phase(run.say, "own answers") as facts:
            facts.append(f"{len(source.unanswered()):,} of {len(source.samples):,} samples")
            answers = _answers(run, source, own.tokens)
        write_text(path, json.dumps(settings | {"answers": answers}) + "\n")
    run.accelerator.wait_for_everyone()
    generated = _read(path, settings) or {}
    source.set_answers([tuple(generated.get(str(i), ())) for i in range(len(source.samples))])


def _read(path: Path, settings: dict[str, Any]) -> dict[str, list[int]] | None:
    saved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return saved["answers"] if saved and all(saved.get(name) == settings[name] for name in settings) else None


def _answers(run: TuneRun, source: Files, tokens: int) -> dict[str, list[int]]:
    """Return {index of a sample: token ids}."""
    assert run.teacher is not None
    model: Any = run.teacher.model
    waiting, answers, training = source.unanswered(), dict[str, list[int]](), model.training
    prompts = source.layout.prompts([source.sample_alone(i) for i in waiting], source.tokenizer)
    model.eval()
    with run.teacher.as_base_model():
        for begin in range(0, len(waiting), BATCH):
            part = slice(begin, begin + BATCH)
            generated = generate(model, source.tokenizer, prompts[part], max_new_tokens=tokens, stop=source.layout.stop)
            answers |= {str(i): list(each.tokens) for i, each in zip(waiting[part], generated, strict=True)}
    model.train(training)
    run.teacher.attend()
    return answers


ATTENTION = ("auto", "tiles", "parts")


def start(
    config: TuneConfig,
    model: str,
    data: Data,
    out: Path,
    evaluation: Evaluation = NEVER,
    device: str = "cpu",
    layout: str | None = None,
    **more: Any,
) -> tuple[TuneRun, Source]:
    """Return a run that is ready for its first step, or for the step after the state saved in `out`.

    layout   of prompts, a name or a JSON file; None: the model's own
    more     fields of `TuneRun`: attention, say, stop

    Raises BadInput for any setting, model, sample or folder that does not fit. Nothing is written.
    """
    check_run_folder(out)
    if config.lora_rank and not find_spec("peft"):
        raise BadInput("lora_rank needs the package peft: pip install 'cached-block-workbench[lora]'")
    attention = more.get("attention", "auto")
    if attention not in ATTENTION:
        raise not_allowed("attention", attention, ATTENTION)
    accelerator = _accelerator(device, config, evaluation)
    if attention == "tiles" and accelerator.device.type == "cpu":
        raise BadInput("attention 'tiles' (FlexAttention) trains on a GPU only: use auto or parts")
    more["say"] = say = more.get("say", _quiet) if accelerator.is_main_process else _quiet
    set_seed(config.seed)
    with phase(say, "model"):
        loaded = _loaded(model, accelerator, config, layout)
    bare, spec = loaded.model, loaded.spec
    limits = Limits(config.max_length, spec.window if "block" in config.copies else None)
    source, held_out = _sources(config, data, loaded, limits, evaluation, say)
    identity = {
        "recipe": asdict(config),
        "base": {"name": model, "fingerprint": fingerprint(bare)} | _digest(config, model),
        "data": {"name": data.name, "identity": source.identity},
        "processes": accelerator.num_processes,
    }
    if layout is not None:
        identity["layout"] = loaded.layout.to_json()
    if isinstance(source, Files) and source.overlap:
        identity["overlap"] = source.overlap
    _check_resumed(out, identity)
    if evaluation.every and any(config.soft) and config.teacher == "gold":
        raise BadInput("evaluate_every with soft tokens needs teacher 'self': exact match is asked for without them")
    if evaluation.every and config.teacher == "gold":
        evaluation.trials(model, config.positions)
    trained = _trained(bare, config)
    teacher = divergences = None
    if config.teacher == "self":
        teacher = Teacher(bare, trained if config.lora_rank else None, frozen=config.adapts)
        divergences = Tally(("full", "block"), accelerator.device)
    wrapped, *optims = accelerator.prepare(trained, *optimizers(trained, config))
    tally = Tally(("full", "block"), accelerator.device)
    windows = tuple(spec.windows)
    common = (accelerator, wrapped, optims, config, identity, out, loaded, windows, tally)
    return TuneRun(*common, teacher, held_out, divergences, **more), source


def _loaded(model: str, accelerator: Accelerator, config: TuneConfig, layout: str | None) -> Loaded:
    """Load the model on the training device. Raises BadInput if it does not fit the recipe."""
    fsdp = accelerator.distributed_type == DistributedType.FSDP
    low = config.lora_rank and config.precision != "fp32" and accelerator.device.type == "cuda"
    place, number = "cpu" if fsdp else str(accelerator.device), "bfloat16" if low else "float32"
    loaded = models.load(model, place, number, layout)
    bare, spec = loaded.model, loaded.spec
    if spec.context and config.max_length > spec.context:
        raise BadInput(f"max_length is {config.max_length}: the model's context is {spec.context} tokens")
    if dropout := getattr(bare.config, "attention_dropout", 0.0):
        raise BadInput(f"the model has attention_dropout {dropout}: set it to 0 in its config.json")
    width = min(min(heads * channels for heads, channels in spec.shapes), decoder_config(bare.config).hidden_size)
    if config.lora_rank > width:
        raise BadInput(f"lora_rank is {config.lora_rank}: at most {width}, the width of the model's narrowest matrix")
    return loaded


def _quiet(text: str) -> None:
    """Print nothing."""


def _sources(
    config: TuneConfig,
    data: Data,
    loaded: Loaded,
    limits: Limits,
    evaluation: Evaluation,
    say: Callable[[str], None],
) -> tuple[Source, tuple[Example, ...]]:
    """Return the source of training examples and, with a teacher, held-out examples, which share no text with it."""
    place = (loaded.layout, loaded.tokenizer, limits)
    own = OwnAnswers(config.own_answers, config.own_tokens) if config.teacher == "self" else None
    if own and evaluation.every and not is_lab(evaluation.data) and not is_lab(data.name):
        data = replace(data, exclude=(*data.exclude, evaluation.data))
    with phase(say, "samples read, compared with what is scored on, and checked") as facts:
        source = data.source(*place, config.seed, own)
        facts.append(source.identity)
        if isinstance(source, Files) and source.overlap:
            facts.append(f"{source.overlap['left_out']:,} left out")
    if own is None or not evaluation.every:
        return source, ()
    with phase(say, "held-out questions") as facts:
        held_out = tuple(examples_of(evaluation, data, *place))
        facts.append(f"{sum(len(each.questions) for each in held_out):,} over {len(held_out):,} contexts")
    return source, held_out


def _digest(config: TuneConfig, model: str) -> dict[str, str]:
    """Return the digest of the weights that an adapter belongs to."""
    if not config.adapts:
        return {}
    path = models.folder(model)
    if is_adapter(path) and config.lora_rank:
        raise BadInput(f"{model} is an adapter: LoRA of its base model {str(models.base_folder(path))!r} is possible")
    return {"weights": digest_of(models.weights_of(path))}


def _accelerator(device: str, config: TuneConfig, evaluation: Evaluation) -> Accelerator:
    place = models.device_of(device)
    if place.type == "cuda" and place.index is not None:
        torch.cuda.set_device(place)
    accelerator = Accelerator(cpu=place.type == "cpu", mixed_precision="no")
    if config.budget is not None and accelerator.num_processes > 1:
        raise BadInput("budget is for one process, whose clock the learning rate follows: set steps instead")
    if accelerator.distributed_type == DistributedType.FSDP:
        if config.teacher == "self":
            raise BadInput("under FSDP, teacher 'self' has no whole model to copy: launch with --multi_gpu")
        if config.optimizer == "muon":
            raise BadInput("under FSDP, optimizer 'muon' needs whole matrices: use adamw")
        if config.lora_rank:
            raise BadInput("under FSDP, lora_rank cannot be merged from shards: launch with --multi_gpu")
        if evaluation.every:
            raise BadInput("under FSDP, evaluate_every needs the whole model on one device: evaluate afterwards")
    return accelerator


def _check_resumed(out: Path, identity: dict[str, Any]) -> None:
    """Raise BadInput if `out` has a run with a different base model, config, data or number of processes."""
    saved = saved_record(out)
    if saved is None:
        return
    if "base" not in saved or "data" not in saved:
        raise BadInput(f"{out} holds a training of another kind; choose another folder")
    base, now = saved["base"], identity["base"]
    if base["fingerprint"] != now["fingerprint"]:
        names = f"({base['name']}, now {now['name']})"
        raise BadInput(f"{out} holds a run from another base model {names}; choose another folder")
    check_same(out, identity["recipe"])
    if saved.get("layout") != identity.get("layout"):
        raise BadInput(f"{out} holds a run with another layout; choose another folder")
    data, here = saved["data"]["identity"], identity["data"]["identity"]
    if data != here:
        raise BadInput(f"{out} holds a run on other data ({data}, now {here}); choose another folder")
    if saved["processes"] != identity["processes"]:
        raise BadInput(f"{out} holds a run of {saved['processes']} processes, now there are {identity['processes']}")


def _trained(model: PreTrainedModel, config: TuneConfig) -> torch.nn.Module:
    """Set up the model for training: attention, and soft tokens and LoRA if configured."""
    model.set_attn_implementation(NAME)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    soft = any(config.soft)
    if soft:
        soft_tokens.grow(model, soft_tokens.sample_embeddings(model, config.soft))
        model.requires_grad_(False)
    if not config.lora_rank:
        if soft:
            soft_tokens.train_alone(model)
        return model.train()
    from peft import LoraConfig, get_peft_model  # an optional package

    rank, targets = config.lora_rank, _attention_projections(model) if config.attention_only else "all-linear"
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora).train()
    if soft:
        soft_tokens.train_alone(model)
    return adapted


def _attention_projections(model: torch.nn.Module) -> list[str]:
    """Return the names of attention's linear modules (q, k, v and o) in any model family."""
    named = (name.split(".") for name, module in model.named_modules() if isinstance(module, torch.nn.Linear))
    return sorted({path[-1] for path in named if len(path) > 1 and "att" in path[-2]})
