"""`workbench sparse`: what sparse methods have fitted to a model."""

import json
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from torch import Tensor
from transformers import PreTrainedModel

from workbench import data, models
from workbench.app.commands.options import AsJson, of_fields, taking
from workbench.app.commands.text import plain, progress, show
from workbench.core.errors import BadInput
from workbench.methods import sparse
from workbench.methods.sparse import xattention
from workbench.methods.sparse.xattention import Xattention
from workbench.training.distill import GateConfig, distill, losses_of

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Fit sparse attention to a model: a learned gate, thresholds of heads.",
)

Model = Annotated[str, typer.Option(help="Checkpoint folder or name (see `workbench models`)")]
Out = Annotated[Path, typer.Option(help="File to write")]
Data = Annotated[str, typer.Option(help="`lab`, a shipped name or a file of questions")]
Samples = Annotated[int, typer.Option(help="Prompts to draw")]
Passages = Annotated[int | None, typer.Option(help="Passages of a prompt")]
Seed = Annotated[int, typer.Option(help="Of the prompts and of new weights")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N")]
HELD_OUT = 8  # prompts, after those that train


@app.command("names")
def names() -> None:
    """List the sparse methods."""
    for name in sparse.names():
        print(name)


@app.command(
    "distill", epilog="Example: workbench sparse distill --model lab-full --out gate.safetensors --device cuda"
)
@taking(of_fields(GateConfig, {}))
def distill_command(
    out: Out,
    model: Model = "lab-full",
    data: Data = "lab",
    samples: Samples = 200,
    passages: Passages = 40,
    *,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Train SeerAttention's gate from a model's own attention; used by `seer_attention(gate=FILE)`."""
    config = GateConfig(**given, seed=seed)
    loaded, prompts = _prompts(model, device, data, samples + HELD_OUT, passages, seed, out)
    began = perf_counter()
    with progress("distilling") as bar:
        gate, losses = distill(loaded, prompts[:-HELD_OUT], config, lambda step, _: bar and bar(step, config.steps))
    held_out = sum(losses_of(loaded, gate, [tokens]).mean().item() for tokens in prompts[-HELD_OUT:]) / HELD_OUT
    record = {"out": str(out), "model": model, "data": data, **vars(config), "first_loss": losses[0]}
    record |= {"last_loss": losses[-1], "held_out_loss": held_out, "seconds": perf_counter() - began}
    gate.save(out, record)
    show(
        as_json,
        json.dumps(record),
        f"[bold]{plain(str(out))}[/]: KL {losses[0]:.3f} → {held_out:.3f} nats on held-out prompts, "
        f"{config.steps} steps in {record['seconds']:.0f} s",
    )


@app.command("profile", epilog="Example: workbench sparse profile --model lab-full --out thresholds.json --samples 20")
def profile_command(
    out: Out,
    model: Model = "lab-full",
    data: Data = "lab",
    samples: Samples = 20,
    passages: Passages = None,
    block: Annotated[int, typer.Option(help="Tokens of a block")] = Xattention.block,
    stride: Annotated[
        int, typer.Option(help="Side of a square of which the antidiagonal is summed")
    ] = Xattention.stride,
    cover: Annotated[float, typer.Option(help="Share of the true attention that has to be kept")] = 0.9,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Profile XAttention's threshold of every layer and head on prompts; used by `xattention(threshold=FILE)`."""
    method = Xattention(block, stride)
    sparse.check_share("cover", cover)
    loaded, prompts = _prompts(model, device, data, samples, passages, seed, out)
    thresholds = xattention.profile(loaded, prompts, method, cover)
    xattention.save(out, loaded, method, thresholds)
    values = sorted(value for layer in thresholds for value in layer)
    middle = values[len(values) // 2]
    show(
        as_json,
        json.dumps({"out": str(out), "low": values[0], "median": middle, "high": values[-1], "prompts": samples}),
        f"[bold]{plain(str(out))}[/]: thresholds of {len(values)} heads from {values[0]:.3f} to {values[-1]:.3f}, "
        f"median {middle:.3f}",
    )


def _prompts(
    name: str, device: str, source: str, samples: int, passages: int | None, seed: int, out: Path
) -> tuple[PreTrainedModel, list[Tensor]]:
    """The model, and token ids of prompts in its layout. BadInput for a place that cannot be written."""
    if not out.parent.is_dir():
        raise BadInput(f"{out} cannot be written: there is no folder {out.parent}")
    drawn = data.load(source, samples, seed, passages)
    if len(drawn) < samples:
        raise BadInput(f"{source} has {len(drawn)} samples, {samples} are needed: ask for fewer")
    model, tokenizer, layout = models.load(name, device)
    return model, [prompt.tokens for prompt in layout.prompts(drawn, tokenizer)]
