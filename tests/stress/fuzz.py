"""Draw command lines from the CLI's own option types, and calls from public signatures; report every fault.

python -m tests.stress.fuzz --seconds 600 --seed 0     the weekly test does the same (`pytest -m weekly -k fuzz`)

Each case runs in a process forked from one that has imported the workbench, in a folder of its own. Faults are
    traceback    a command that ends with another code than 0 and 2, or an error of more than one line; a call
                 that raises anything but BadInput
    hang         a case that takes longer than `LONGEST` seconds
    outside      a command that leaves files elsewhere than where its options say
    wrong        an answer, computed behind hostile calls in the same process, that is not that of a fresh one
"""

import argparse
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import typer

import workbench
from tests import tiny
from workbench import data, models
from workbench.app import cli
from workbench.app.cli import OUTPUTS
from workbench.core.errors import BadInput

LONGEST = 60.0  # seconds of a case
CALLS = 12  # hostile calls before an answer
SLOW = {
    "lab train",
    "bench",
    "claims",
    "report",
    "models get",
    "sparse distill",
    "tune",
}  # begun only with an option too much
TEXTS = ["", " ", "a", "-1", "0", "1", "2", "1.5", "nan", "inf", "1e400", "9" * 400, "é", "\u202e", "x" * 5000, "a,b"]
TEXTS += ["[1]", "{}", "None", "full(", "()", "a=b", "lab", "lab-full", "independent", "query_guided", "bfla", "block"]
PATHS = [
    "",
    ".",
    "/",
    "file.json",
    "folder",
    "missing",
    "missing/below",
    "file.json/below",
    "/dev/full",
    "loop",
    "\udcff",
]
VALUES: list[Any] = [
    None,
    "",
    "x",
    b"x",
    1,
    0,
    -1,
    1.5,
    True,
    10**30,
    float("nan"),
    [],
    [None],
    ["a"],
    {},
    (),
    object(),
]
VALUES += [torch.zeros(2, 2), torch.zeros(2, dtype=torch.long), torch.zeros(2, device="meta"), torch.tensor(1.0)]


@dataclass(frozen=True)
class Fault:
    """What went wrong, of which case, and what was seen."""

    kind: str
    case: str
    seen: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.case}\n    " + self.seen.strip().replace("\n", "\n    ")[-1500:]


def command_lines(draw: random.Random, model: Path) -> list[str]:
    """Return the arguments of one command, valid in part, by the types of its options."""
    words = [draw.choice(list(cli.COMMANDS))]
    command: Any = typer.main.get_command(import_module(cli.COMMANDS[words[0]][0], "workbench.app.commands").app)
    while inner := getattr(command, "commands", None):
        words.append(draw.choice(list(inner)))
        command = inner[words[-1]]
    options = [each for each in command.params if each.opts[0].startswith("--") and each.name != "help"]
    line = list(words)
    for argument in command.params:
        if argument.param_type_name == "argument" and draw.random() < 0.9:
            line.append(value_of(draw, argument, model))
    chosen = draw.sample(options, min(len(options), draw.randint(0, 4)))
    if small := [each for each in options if each.name in ("model", "samples", "max_new_tokens", "timed")]:
        chosen += [each for each in small if each not in chosen]
    for option in chosen:
        line.append(draw.choice(option.opts))
        if not getattr(option, "is_flag", False):
            line.append(value_of(draw, option, model))
    if " ".join(words) in SLOW or words[0] in SLOW:
        line.append("--no-such-option")
    return line


def value_of(draw: random.Random, param: Any, model: Path) -> str:
    """Return a value of an option, as it should be more often than not."""
    good = {"model": str(model), "data": "lab", "samples": "1", "max_new_tokens": "2", "timed": "1", "passages": "2"}
    if param.name in good and draw.random() < 0.8:
        return good[param.name]
    described = getattr(param, "type_descriptor", None) or getattr(param, "type", None)  # by the version of typer
    kind, choices = repr(described).lower(), list(getattr(described, "choices", ()) or ())
    if "path" in kind or param.name in (*OUTPUTS, "store", "prepared", "data"):
        return draw.choice(PATHS)
    if choices and draw.random() < 0.7:
        return str(draw.choice(choices))
    if ("int" in kind or "float" in kind) and draw.random() < 0.6:
        return draw.choice(["1", "2", "0", "-1", "100000000000"])
    return draw.choice(TEXTS)


def run_command(line: list[str]) -> str:
    """Run a command in this process and folder; returns what is wrong, "" for nothing."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = ["workbench", *line]
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            err.write(traceback.format_exc())
            code = 1
    text = err.getvalue()
    if code not in (0, 2) or "Traceback" in text:
        return f"traceback\nexit {code}\n{text}"
    if code == 2 and "error: " in text and text[text.index("error: ") :].count("\n") > 1:
        return f"traceback\nmore than one line\n{text}"
    outputs = {f"--{name}" for name in OUTPUTS}
    named = {place.split("/")[0] for word, place in pairwise(line) if word in outputs}
    left = {path.name for path in Path().iterdir()} - set(GIVEN) - named
    if left and named:
        return f"outside\n{sorted(left)}"
    return ""


GIVEN = ("file.json", "folder", "loop")


def given_files() -> None:
    """Write what stands in the folder of every case."""
    Path("file.json").write_text('[{"question": "a", "answers": ["b"], "ctxs": [{"title": "t", "text": "u"}]}]')
    Path("folder").mkdir()
    os.symlink("loop", "loop")


class Calls:
    """Public calls on one model, each as it should be; the fuzzer exchanges one of their arguments."""

    def __init__(self, folder: Path):
        self.loaded = models.load(folder)
        model, tokenizer, layout = self.loaded
        self.samples = data.load("lab", samples=1, passages=2)
        (self.prompt,) = layout.prompts(self.samples, tokenizer)
        self.pool = workbench.Pool(model, 64, 16)
        self.runner = workbench.Runner(model, self.pool)
        self.blocks = list(self.prompt.context)
        self.question = torch.tensor(self.prompt.blocks[-1].tokens)

    def answer(self) -> list[int | None]:
        """Return what the runner answers, from blocks that are encoded now."""
        cached = self.pool.encode(self.loaded.model, self.blocks)
        request = self.pool.open(cached, len(self.question) + 8)
        logits = self.runner.prefill([request], [self.question])
        tokens = [step[0] for step in self.runner.decode([request], logits, 4)]
        self.pool.close(request)
        for block in cached:
            self.pool.give(block)
        return tokens

    def calls(self) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
        """Return calls by name, with good arguments."""
        model, tokenizer, layout = self.loaded
        cached = self.pool.encode(model, self.blocks)
        request = self.pool.open(cached, len(self.question) + 8)
        (kv, *rest) = workbench.encode_many(model, self.blocks)
        kvs, store = [kv, *rest], workbench.MemoryStore()
        logits = torch.zeros(1, model.config.vocab_size)
        return {
            "Block": (workbench.Block, {"tokens": [1, 2]}),
            "Prompt": (workbench.Prompt, {"blocks": tuple(self.prompt.blocks)}),
            "KV": (workbench.KV, {"keys": kv.keys, "values": kv.values, "start": 0}),
            "KV.slice": (kv.slice, {"begin": 0, "end": 1}),
            "KV.clone": (kv.clone, {"reserve": 1}),
            "Plan": (workbench.Plan, {"rows": [0, 1]}),
            "Pool": (workbench.Pool, {"model": model, "pages": 4, "size": 16}),
            "Pool.take": (self.pool.take, {"tokens": 1, "wait": 0.0}),
            "Pool.give": (self.pool.give, {"pages": cached[0]}),
            "Pool.encode": (self.pool.encode, {"model": model, "blocks": self.blocks[:1]}),
            "Pool.put": (self.pool.put, {"kv": kv}),
            "Pool.put_many": (self.pool.put_many, {"kvs": kvs}),
            "Pool.open": (
                self.pool.open,
                {"context": cached[1:], "reserve": 4, "recompute": [0, 1], "positions": "naive"},
            ),
            "Pool.blank": (self.pool.blank, {"reserve": 4}),
            "Pool.close": (self.pool.close, {"prompt": request}),
            "Pool.gather": (self.pool.gather, {"context": cached[1:], "reserve": 4, "positions": "naive"}),
            "Runner": (workbench.Runner, {"model": model, "pool": self.pool, "graphs": None, "layers": None}),
            "Runner.prefill": (self.runner.prefill, {"prompts": [request], "tokens": [self.question]}),
            "Runner.decode": (
                lambda **given: list(self.runner.decode(**given)),
                {"prompts": [request], "logits": logits, "count": 2, "ahead": 1},
            ),
            "assemble": (
                workbench.assemble,
                {"model": model, "prompt": self.prompt, "cached": kvs, "positions": "naive", "reserve": 1},
            ),
            "encode": (workbench.encode, {"model": model, "block": self.blocks[0], "after": ()}),
            "encode_many": (workbench.encode_many, {"model": model, "blocks": self.blocks, "after": ()}),
            "fetch": (workbench.fetch, {"model": model, "blocks": self.blocks, "store": store, "after": ()}),
            "revise": (workbench.revise, {"model": model, "prompt": self.prompt, "store": store, "reserve": 1}),
            "store.get": (store.get, {"key": "a"}),
            "store.put": (store.put, {"key": "a", "kv": kv}),
            "generate": (
                workbench.generate,
                {"model": model, "tokenizer": tokenizer, "prompts": [self.prompt], "mode": "block", "max_new_tokens": 1}
                | {"temperature": 0.0, "top_p": 1.0, "seed": 0, "stop": (), "engine": "contiguous", "store": store},
            ),
            "attach": (workbench.attach, {"model": model}),
            "Sample": (workbench.Sample, {"id": "1", "question": "a", "answers": ("b",), "ctxs": ()}),
            "data.load": (data.load, {"name_or_path": "lab", "samples": 1, "seed": 0, "passages": 2}),
            "Layout.prompts": (layout.prompts, {"samples": self.samples, "tokenizer": tokenizer}),
            "Trial": (workbench.Trial, {"model": "lab-full", "data": "lab", "samples": 1, "ratio": 0.1, "timed": 1}),
        }


def run_calls(draw: random.Random, folder: Path) -> str:
    """Make hostile calls, and then ask a question; returns what is wrong."""
    made, trail = Calls(folder), list[str]()
    expected = made.answer()
    for _ in range(CALLS):
        calls = made.calls()
        name = draw.choice(list(calls))
        function, given = calls[name]
        argument, value = draw.choice(list(given)), draw.choice(VALUES)
        trail.append(f"{name}({argument}={type(value).__name__} {repr(value)[:40]})")
        try:
            function(**given | {argument: value})
        except BadInput:
            pass
        except Exception:
            return f"traceback\n{trail[-1]}\n{traceback.format_exc()}"
        made.pool = workbench.Pool(made.loaded.model, 64, 16) if made.pool.free < 40 else made.pool
        made.runner = workbench.Runner(made.loaded.model, made.pool)
    if (found := made.answer()) != expected:
        return f"wrong\n{found} instead of {expected} behind {trail}"
    return ""


def forked(run: Callable[[], str]) -> str:
    """Return what `run` finds in a process of its own, in an empty folder; "hang" where it does not end."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.chdir(folder)
                os.setsid()
                given_files()
                told.write(run())
                told.flush()
                code = 0
            finally:
                os._exit(code)
        ends = time.monotonic() + LONGEST
        while time.monotonic() < ends:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                told.seek(0)
                return told.read() if not status else f"traceback\nthe process ended with status {status}"
            time.sleep(0.01)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hang\n"


def faults(seconds: float, seed: int, folder: Path) -> Iterator[Fault | None]:
    """Yield what every case found, None for nothing, until so many seconds are over; cases depend on the seed alone."""
    model, ends, number = tiny.checkpoint(folder / "model"), time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        draw = random.Random(f"{seed} {number}")
        number += 1
        line = command_lines(draw, model) if number % 3 else []
        found = forked(partial(run_command, line) if line else partial(run_calls, draw, model))
        kind, _, seen = found.partition("\n")
        case = f"{seed} {number - 1}: " + (f"workbench {' '.join(map(repr, line))}" if line else "calls")
        yield Fault(kind, case, seen) if kind else None


def main() -> None:
    """Print faults as they are found; ends with code 1 where there are any."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=float, default=600)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for fault in faults(given.seconds, given.seed, Path(folder)):
            found.append(fault)
            if fault:
                print(fault, flush=True)
    print(f"{len(found)} cases, {sum(map(bool, found))} faults")
    sys.exit(any(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
