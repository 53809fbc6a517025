"""`workbench sparse`: fit sparse methods to a model."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench import data, models
from workbench.app.console.options import AsJson, of_fields, with_options
from workbench.app.console.text import importing, plain, progress, show
from workbench.core.errors import BadInput
from workbench.methods import registry
from workbench.methods.method_fields import LayoutName
from workbench.training.gate_config import GateConfig

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Fit sparse attention to a model: a learned gate or per-head thresholds.",
)

HELD_OUT = 8  # prompts, after those that train


@dataclass(frozen=True)
class Fitting:
    """A model and prompts in its layout, to which a method is fitted; `out` is the file to write."""

    out: Annotated[Path, "Output file"]
    model: Annotated[str, "Checkpoint folder or name (see `workbench models`)"] = "lab-full"
    data: Annotated[str, "`lab`, a shipped name or a file of questions"] = "lab"
    samples: Annotated[int, "Number of prompts"] = 200
    passages: Annotated[int | None, "Passages per prompt"] = 40
    seed: Annotated[int, "Seed for the prompts and new weights"] = 0
    device: Annotated[str, "cpu, cuda or cuda:N"] = "cpu"
    layout: LayoutName = None

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise BadInput(f"samples is {self.samples}: a whole number of at least 1 is needed")
        if not self.out.parent.is_dir():
            raise BadInput(f"{self.out} cannot be written: there is no folder {self.out.parent}")

    def load(self, more: int = 0) -> "tuple[PreTrainedModel, list[Tensor]]":
        """Load the model and token ids of `samples` + `more` prompts."""
        drawn = data.load(self.data, self.samples + more, self.seed, self.passages)
        if len(drawn) < self.samples + more:
            held_out = f", {more} of them held out" if more else ""
            needed = f"{self.samples + more} are needed{held_out}"
            raise BadInput(f"{self.data} has {len(drawn)} samples, {needed}: ask for fewer, or give a longer file")
        model, tokenizer, layout = models.load(self.model, self.device, layout=self.layout)
        return model, [prompt.tokens for prompt in layout.prompts(drawn, tokenizer)]


@app.command("names")
def names() -> None:
    """List the sparse methods."""
    for name in registry.names("workbench.methods.sparse"):
        print(name)


@app.command(
    "distill", epilog="Example: workbench sparse distill --model lab-full --out gate.safetensors --device cuda"
)
@with_options([*of_fields(Fitting, {}), *of_fields(GateConfig, {})])
def distill_command(
    *,
    half: Annotated[
        bool, typer.Option("--half", help="Write weights in fp16 like the shipped gate (half the size)")
    ] = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Train SeerAttention's gate from a model's own attention; used by `seer_attention(gate=FILE)`."""
    fit = Fitting(**{field.name: given.pop(field.name) for field in fields(Fitting)})
    config = GateConfig(**given, seed=fit.seed)

    with progress("distilling"), importing():  # torch and transformers: not for `--help`
        from workbench.experiments.trials.record import device_name
        from workbench.methods import seer_gate
        from workbench.training.distill import distill, losses_of

    with progress("distilling") as bar:
        model, prompts = fit.load(HELD_OUT)
        began = perf_counter()
        gate, losses = distill(model, prompts[:-HELD_OUT], config, lambda step, _: bar(step, config.steps))
    held_out = sum(losses_of(model, gate, [tokens]).mean().item() for tokens in prompts[-HELD_OUT:]) / HELD_OUT
    record = {"out": str(fit.out), "model": fit.model, "data": fit.data, "samples": fit.samples}
    record |= {"passages": fit.passages, **vars(config), "first_loss": losses[0], "last_loss": losses[-1]}
    record |= {"held_out_loss": held_out, "seconds": perf_counter() - began, "device": device_name(model.device)}
    gate.save(fit.out, record | {"prompts": [seer_gate.digest(tokens) for tokens in prompts[:-HELD_OUT]]}, half)
    fall = f"KL {losses[0]:.3f} → {held_out:.3f} nats on held-out prompts"
    line = f"[bold]{plain(str(fit.out))}[/]: {fall}, {config.steps} steps in {record['seconds']:.0f} s"
    show(as_json, json.dumps(record), line)


@app.command("profile", epilog="Example: workbench sparse profile --model lab-full --out thresholds.json --samples 20")
@with_options(of_fields(Fitting, {"samples": 20, "passages": None}))
def profile_command(
    *,
    block: Annotated[int | None, typer.Option(help="Tokens per block. Default: the method's")] = None,
    stride: Annotated[int | None, typer.Option(help="Stride of the antidiagonal sums. Default: the method's")] = None,
    cover: Annotated[float, typer.Option(help="Share of the true attention to keep")] = 0.9,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Profile XAttention's threshold of every layer and head on prompts; used by `xattention(threshold=FILE)`."""
    fit = Fitting(**given)
    with progress("thresholds"), importing():  # torch and transformers: not for `--help`
        from workbench.methods.sparse import check_share, xattention

    given_own = (("block", block), ("stride", stride))
    own: dict[str, Any] = {name: value for name, value in given_own if value is not None}
    method = xattention.Xattention(**own)
    check_share("cover", cover)
    with progress("thresholds") as advance:
        model, prompts = fit.load()
        thresholds = xattention.profile(model, prompts, method, cover, advance)
    xattention.save(fit.out, model, method, thresholds)
    values = sorted(value for layer in thresholds for value in layer)
    low, middle, high = values[0], values[len(values) // 2], values[-1]
    record = {"out": str(fit.out), "low": low, "median": middle, "high": high, "prompts": fit.samples}
    heads = f"thresholds of {len(values)} heads from {low:.3f} to {high:.3f}, median {middle:.3f}"
    show(as_json, json.dumps(record), f"[bold]{plain(str(fit.out))}[/]: {heads}")
