"""`workbench bench`: kernels and their baselines."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from workbench.app.console.text import plain, progress
from workbench.core.errors import BadInput, did_you_mean
from workbench.core.utils.stages import NOTHING, keeps
from workbench.experiments import bench

app = typer.Typer(add_completion=False)
CHECK = typer.Option("--check", help="Check the kernel against its reference instead of timing it")
OUT, AGAINST = Path("data/benchmarks"), "flash,cudnn,flex"
CHUNKS, MODELS = ", ".join(bench.CHUNKS), ", ".join(bench.MODELS)
KERNEL = f"Kernel name or `all`; chunked prefill: {CHUNKS}; whole models: {MODELS}, or `models`"


@app.command(epilog="Example: workbench bench question_attention --against flash,cudnn,flex")
def bench_command(
    kernel: Annotated[str, typer.Argument(help=KERNEL)],
    against: Annotated[str, typer.Option(help="Baselines: flash, cudnn, flex, flashinfer, or `all`")] = AGAINST,
    check: Annotated[bool, CHECK] = False,
    variants: Annotated[
        bool,
        typer.Option(
            "--variants", help="Also time other launch configurations (whole models: other variants, no baselines)"
        ),
    ] = False,
    only: Annotated[str, typer.Option(help="Only workloads whose name contains this text")] = "",
    runs: Annotated[
        int, typer.Option(min=0, help="Minimum timed runs for whole models; 0: the workload's default")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Results folder; workloads already measured on this GPU are kept")] = OUT,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout")] = False,
) -> None:
    """Time the kernels and their baselines on this GPU, or check their results."""
    chosen = {"all": bench.names(), "models": list(bench.MODELS)}.get(kernel, [kernel])
    known = [*bench.names(), *bench.CHUNKS, *bench.MODELS]
    if not set(chosen) <= set(known):
        raise BadInput(
            f"there is no kernel {kernel!r}: it is one of {', '.join((*bench.names(), *bench.CHUNKS))}, or all; "
            f"of whole models {MODELS}, or models are measured{did_you_mean(kernel, known)}"
        )
    if check and not set(chosen) <= set(bench.names()):
        raise BadInput(f"--check holds kernels to their references, and {kernel!r} is none")
    if check and only:
        raise BadInput(f"only {only!r} names workloads that are timed: --check goes through every case")

    import torch  # not for `--help`

    if not torch.cuda.is_available():
        if not check:
            raise BadInput("kernels are timed on a GPU, and there is none here: --check works on a CPU")
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported
    if check:
        right = [_check(name, as_json) for name in chosen]
        raise typer.Exit(0 if all(right) else 1)
    timed: list[str] = []
    with keeps(lambda: f"{len(timed)} workloads are kept in {out}: --only times others" if timed else NOTHING):
        _time(chosen, against, variants, only, runs, out, as_json, timed)


def _check(name: str, as_json: bool) -> bool:
    import torch

    from workbench.experiments.bench.kernels.check import check as verdicts

    gpu = torch.cuda.is_available()
    dtypes = [torch.bfloat16, torch.float16, torch.float32] if gpu else [torch.float32]
    count = wrong = 0
    worst = 0.0
    with progress(f"cases of {name}"):
        for verdict in verdicts(bench.workload_module(name), "cuda" if gpu else "cpu", dtypes, stretch=gpu):
            count += 1
            wrong += not verdict.right
            worst = max(worst, verdict.error / verdict.allowed if verdict.allowed else 0.0)
            if as_json:
                print(json.dumps(vars(verdict) | {"right": verdict.right}), flush=True)
            elif not verdict.right:
                words = verdict.problem or f"error {verdict.error:.2e}, allowed {verdict.allowed:.2e}"
                print(f"{name}, case {verdict.case}, {verdict.dtype}: {words}", flush=True)
    if not as_json:
        right = f"{count - wrong} of {count} cases right"
        print(f"{name}: {right}, largest error {worst:.0%} of what is allowed", flush=True)
    return not wrong


def _time(
    chosen: list[str], against: str, variants: bool, only: str, runs: int, out: Path, as_json: bool, timed: list[str]
) -> None:
    """Time workloads, write each to `out` and add it to `timed`."""
    from workbench.experiments import bench_reports
    from workbench.experiments.bench import baselines  # loads Triton, which reads TRITON_INTERPRET then
    from workbench.experiments.bench.models import operations
    from workbench.experiments.bench.run import WORKLOADS, run
    from workbench.results import this_run
    from workbench.results.writer import prepare  # imports pandas: not for `--help`

    prepare(out)
    names = baselines.select_names(against)
    for name in chosen if len(chosen) == 1 else [name for name in chosen if name in {*WORKLOADS, *bench.MODELS}]:
        head: dict[str, Any] = {}
        works: dict[str, Any] = {}
        seen: set[str] = set()
        parts = (
            operations.run(name, names, only, variants, runs)
            if name in bench.MODELS
            else run(name, names, variants, only)
        )
        for part in parts:  # facts of the GPU, then one workload after another
            if as_json:
                print(json.dumps(part), flush=True)
            if "contestants" not in part:
                head = part | this_run() | {"command": command_of(name, against, variants, only, runs)}
                works = bench_reports.earlier_workloads(out, name, part["card"])
                continue
            seen.add(work := part["name"])
            works[work] = bench_reports.merge_measured(part, head, works.get(work, ((), ())))
            bench_reports.write(out, head, works)
            timed.append(work)
            if not as_json:
                Console(highlight=False).print(table(part))
        if seen and not only:  # workloads of an earlier version that no longer exist
            bench_reports.write(out, head, {work: rows for work, rows in works.items() if work in seen})


def command_of(name: str, against: str, variants: bool, only: str, runs: int = 0) -> str:
    """Return the command that repeats this measurement, without this machine's paths."""
    options = [
        *["--variants"] * variants,
        *(["--only", only] if only else []),
        *(["--runs", f"{runs}"] if runs else []),
    ]
    return shlex.join(["workbench", "bench", name, "--against", against, *options])


def table(entry: dict[str, Any]) -> Table:
    """Return one workload as a table for the terminal."""
    shown = Table(title=plain(f"{entry['name']}: floor {entry['floor_ms']:.3f} ms"), title_justify="left")
    for heading in ("", "ms", "p5", "p95", "TF/s", "TB/s", "of roofline", "speedup of ours"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for row in entry["contestants"]:
        if "problem" in row:
            shown.add_row(plain(row["who"]), plain(row["problem"][:60]))
            continue
        times = (f"{row[name]:.4f}" for name in ("ms", "p5", "p95"))
        rates = (f"{row['tflops']:.0f}", f"{row['tbps']:.2f}", f"{row['share']:.0%}")
        shown.add_row(plain(row["who"]), *times, *rates, "" if row["ratio"] is None else f"{row['ratio']:.2f}×")
    return shown
