"""Draw command lines from the CLI's own option types, and calls from public signatures; report every fault.

python -m tests.stress.fuzz --seconds 600 --seed 0     the weekly test does the same (`pytest -m weekly -k fuzz`)

Each case runs in a process forked from one that has imported the workbench, in a folder of its own. Faults are
    traceback    a command that ends with another code than 0 and 2, or an error of more than one line; a call
                 that raises anything but BadInput
    hang         a case that takes longer than `LONGEST` seconds
    outside      a command that leaves files elsewhere than where its options say, or any behind a refusal
    late         a command that refuses what it was given after its model has computed
    accepted     a command or call that takes what has to be refused
    silent       a command that ends well and says nothing
    escapes      control characters of a file or name on the terminal
    processes    a command that starts more than `MOST` of them
    wrong        an answer that is not that of a fresh process: behind hostile calls, read step by step while others
                 close and encode, in threads, or from a store behind a change of the model
"""

import argparse
import contextlib
import inspect
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, get_type_hints

import torch
import typer

import workbench
from tests import tiny
from workbench import data, models
from workbench.app import cli
from workbench.app.console.option_checks import OUTPUTS
from workbench.core.errors import BadInput
from workbench.core.utils import annotations

LONGEST = 60.0  # seconds of a case
CALLS = 12  # hostile calls before an answer
MOST = 64  # processes of a command
MEASURED = 30  # products of layers of the tiny model as it is loaded: one pass tells its rotation
SLOW = ("lab train", "bench", "claims", "report", "models get", "sparse distill", "tune")  # begun only to be refused
TEXTS = ["", " ", "a", "-1", "0", "1", "2", "1.5", "nan", "inf", "1e400", "9" * 400, "é", "\u202e", "x" * 5000, "a,b"]
TEXTS += ["[1]", "{}", "None", "full(", "()", "a=b", "lab", "lab-full", "independent", "query_guided", "bfla", "block"]
NOWHERE = ["", "/", "/dev/full", "loop", "file.json/below", "loop/below"]  # where nothing can be written
FILES = ["deep.json", "digits.json", "hostile.json", "huge.json", "prepared", "damaged", "\udcff.json", "\udcff"]
PATHS = [*NOWHERE, *FILES, ".", "file.json", "folder", "missing", "missing/below"]
REFUSED = {"workers": ("100000", "-1"), "jobs": ("100000", "-1"), "seed": ("-1",), "store": ("",), "prepared": ("",)}
REFUSED |= dict.fromkeys((*OUTPUTS, "to", "figure"), NOWHERE)  # by option
COLUMNS = ["80", "80", "0", "1", "-1", "x", ""]
VALUES: list[Any] = [None, "", "x", b"x", 1, 0, -1, 1.5, True, 10**30, float("nan"), [], [None], ["a"], {}, ()]
VALUES += [object(), [1.5], torch.zeros(2, 2), torch.zeros(2, dtype=torch.long), torch.zeros(2, device="meta")]
VALUES += [torch.tensor(1.0), torch.tensor([1.5])]


@dataclass(frozen=True)
class Fault:
    """What went wrong, of which case, and what was seen."""

    kind: str
    case: str
    seen: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.case}\n    " + self.seen.strip().replace("\n", "\n    ")[-1500:]


def command_lines(draw: random.Random, model: Path) -> tuple[list[str], bool]:
    """Return the arguments of one command, by the types of its options, and whether it has to be refused.

    Most lines are as they should be but for one value, so that no other is refused before it.
    """
    words = [draw.choice(list(cli.COMMANDS))]
    command: Any = typer.main.get_command(import_module(cli.COMMANDS[words[0]][0], "workbench.app.commands").app)
    while inner := getattr(command, "commands", None):
        words.append(draw.choice(list(inner)))
        command = inner[words[-1]]
    given = [each for each in command.params if each.name != "help"]
    hostile = draw.sample(given, min(len(given), draw.choice((0, 1, 1, 1, 1, 2, 4))))
    hostile += [each for each in given if each.name in REFUSED and draw.random() < 0.2]
    line, refused = list(words), False
    for param in dict.fromkeys((*given, *hostile)):
        flag = getattr(param, "is_flag", False)
        if param not in hostile and not (param.required or (param.name in GOOD and draw.random() < 0.8)):
            continue
        value = hostile_value(draw, param) if param in hostile else good_value(draw, param, model)
        line += [draw.choice(param.opts)] if param.opts[0].startswith("-") else []
        line += [] if flag else [value]
        refused |= not flag and value in REFUSED.get(param.name, ()) and param.metavar != "LIST"
    slow = " ".join(words) in SLOW or words[0] in SLOW
    if slow and not refused:
        line.append("--no-such-option")
    return line, refused or slow


GOOD = {"data": ("lab", "file.json"), "samples": ("1",), "max_new_tokens": ("2",), "timed": ("1",), "passages": ("2",)}
GOOD |= {"model": (), "name": ("lab", "file.json"), "steps": ("1",), "batch": ("1",), "device": ("cpu",)}
GOOD |= {"out": ("made",), "to": ("made",), "html": ("made.html",), "markdown": ("made.md",), "file": ("file.json",)}
GOOD |= {"folder": ("made",), "budgets": ("0.5",), "methods": ("full",), "rounds": ("1",), "requests": ("2",)}


def good_value(draw: random.Random, param: Any, model: Path) -> str:
    """Return a value that a parameter may have, as far as its name says."""
    return draw.choice(GOOD.get(param.name) or (str(model),))


def hostile_value(draw: random.Random, param: Any) -> str:
    """Return a value that a parameter may have or not, by its name and type."""
    described = getattr(param, "type_descriptor", None) or getattr(param, "type", None)  # by the version of typer
    kind, choices = repr(described).lower(), list(getattr(described, "choices", ()) or ())
    if param.name in REFUSED and draw.random() < 0.7:
        return draw.choice(REFUSED[param.name])
    if "path" in kind or param.name in (*OUTPUTS, "store", "prepared", "data", "name", "corpus", "model"):
        return draw.choice(PATHS)
    if choices and draw.random() < 0.7:
        return str(draw.choice(choices))
    if ("int" in kind or "float" in kind) and draw.random() < 0.6:
        return draw.choice(["1", "2", "0", "-1", "100000000000"])
    return draw.choice(TEXTS)


def run_command(line: list[str], refused: bool, columns: str) -> str:
    """Run a command in this process and folder; returns what is wrong, "" for nothing."""
    raw, err, computed = io.BytesIO(), io.StringIO(), watched()
    out = io.TextIOWrapper(raw, "utf-8", write_through=True)
    os.environ["COLUMNS"] = columns
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = ["workbench", *line]
        try:
            cli.run()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            err.write(traceback.format_exc())
            code = 1
    text, whole = err.getvalue(), raw.getvalue().decode("utf-8", "replace") + err.getvalue()
    if code not in (0, 2) or "Traceback" in text:
        return f"traceback\nexit {code}\n{text}"
    if code == 2 and "error: " in text and text[text.index("error: ") :].count("\n") > 1:
        return f"traceback\nmore than one line\n{text}"
    if code == 2 and len(computed) > MEASURED:
        return f"late\n{text}"
    if code == 0 and refused:
        return f"accepted\n{whole}"
    if code == 0 and not whole.strip():
        return f"silent\nCOLUMNS={columns}"
    if odd := {character for character in whole if not (character.isprintable() or character in "\n\t\xad\ufeff")}:
        return f"escapes\n{sorted(odd)} in {whole!r}"
    named = {place.split("/")[0] for word, place in pairwise(line) if word[:2] == "--" and word[2:] in PLACES}
    named |= {line[-1].split("/")[0]} if line[0] == "models" else set()  # `ordinary` names its folder last
    if "." in named:
        return ""
    named = {"made", "runs", *(name.partition(".")[0] for name in named)} if not code else set()  # runs: by default
    left = {path.name for path in Path().iterdir() if path.name.partition(".")[0] not in named} - GIVEN
    return f"outside\n{sorted(left)}" if left else ""


PLACES = (*OUTPUTS, "to", "figure", "store")


def watched() -> list[int]:
    """Return a list of the products that layers compute from now on; too many processes end this one."""
    computed, started = list[int](), list[int]()
    linear, start = torch.nn.functional.linear, BaseProcess.start

    def counted(*given: Any, **named: Any) -> torch.Tensor:
        computed.append(1)
        return linear(*given, **named)

    def limited(process: BaseProcess) -> None:
        started.append(1)
        if len(started) > MOST:
            os.killpg(0, signal.SIGXCPU)
        start(process)

    torch.nn.functional.linear, BaseProcess.start = counted, limited
    return computed


PASSAGE = {"question": "a", "answers": ["b"], "ctxs": [{"title": "t", "text": "u"}]}
ESCAPES = "\x1b[2J\x1b]0;title\x07\u202eabc\u2066\x9b1m\r"


def given_files(huge: Path) -> None:
    """Write what is in the folder of every case."""
    Path("file.json").write_text(json.dumps([PASSAGE]))
    Path("deep.json").write_text("[" * 100_000)
    Path("digits.json").write_text('[{"question": "a", "answers": ["b"], "ctxs": [], "id": ' + "9" * 5000 + "}]")
    hostile = {"question": ESCAPES, "answers": [ESCAPES], "ctxs": [{"title": ESCAPES, "text": ESCAPES}]}
    Path("hostile.json").write_text(json.dumps([hostile]))
    Path("\udcff.json").write_text(json.dumps([PASSAGE]))
    os.symlink(huge, "huge.json")
    os.symlink("loop", "loop")
    for name in ("folder", "prepared", "damaged"):
        Path(name).mkdir()
    Path("prepared", "prepared.json").write_text("{}")
    Path("damaged", "manifest.json").write_text('{"model": "' + ESCAPES.encode("unicode_escape").decode() + '"}')
    os.symlink("damaged", "damaged/damaged")
    GIVEN.update(path.name for path in Path().iterdir())


GIVEN = set[str]()


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
            self.pool.free_pages(block)
        return tokens

    def odd_values(self, name: str, argument: str) -> list[Any]:
        """Return values of an argument that have to be refused, though their types may fit."""
        model, size = self.loaded.model, self.loaded.model.config.vocab_size
        (kv,) = workbench.encode_many(model, self.blocks[:1])
        half = workbench.KV([x.half() for x in kv.keys], [x.half() for x in kv.values], 0)
        logits = [torch.full((1, size), x) for x in (torch.nan, torch.inf)]
        return {
            "logits": [*logits, torch.zeros(1, size).long(), torch.zeros(1, size + 1), torch.tensor([1.5])],
            "tokens": [-5, [1.5], [torch.tensor([1.5])], [-1] if name == "Block" else [torch.tensor([size])]],
            "recompute": [[1.5], torch.tensor([1.5]), [10**6]],
            "reserve": [1.5, -5],
            "start": [-1, 1.5],
            "keys": [[], [x.half() for x in kv.keys]],
            "kv": [half],
            "kvs": [[half]],
            "cached": [[half] * len(self.blocks)],
            "count": [0, -1, 1.5],
        }.get("" if name == "store.put" else argument, [])  # a store keeps blocks of any model

    def disturbed(self, draw: random.Random, expected: list[int | None]) -> str:
        """Read an answer step by step, while somebody else closes, gives back and encodes."""
        cached = self.pool.encode(self.loaded.model, self.blocks)
        request = self.pool.open(cached, len(self.question) + 8)
        steps = self.runner.decode([request], self.runner.prefill([request], [self.question]), 4)
        read, what = [next(steps)[0]], draw.choice(("close", "give back", "nothing"))
        if what == "close":
            self.pool.close(request)
        if what == "give back":
            self.pool.free_pages(cached[0])
        self.pool.encode(self.loaded.model, [workbench.Block((5,) * len(block)) for block in self.blocks])
        try:
            read += [step[0] for step in steps]
        except BadInput as problem:
            return f"wrong\n{problem}" if what == "nothing" else ""
        if what != "nothing":
            return f"wrong\nno step was refused behind {what}"
        return "" if read == expected else f"wrong\n{read} instead of {expected} while others encoded"

    def in_threads(self, expected: list[int | None]) -> str:
        """Answer in several threads that share the runner."""
        torch.set_num_threads(1)  # torch makes its own pool anew behind a fork: here, not in several threads at once
        self.pool = workbench.Pool(self.loaded.model, 256, 16)
        self.runner, found = workbench.Runner(self.loaded.model, self.pool), list[Any]()

        def answer() -> None:
            try:
                found.append(self.answer())
            except Exception as problem:
                found.append(problem)

        threads = [Thread(target=answer) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return "" if found == [expected] * len(threads) else f"wrong\n{found} instead of {expected} in threads"

    def stale(self, draw: random.Random) -> str:
        """Fetch blocks behind a change of the model, or of what was fetched: as from an empty store, or refused."""
        model, store = self.loaded.model, workbench.MemoryStore()
        decoder, (first, *_) = model.model, workbench.fetch(model, self.blocks, store)
        changes: dict[str, Callable[[], Any]] = {
            "a buffer": lambda: decoder.rotary_emb.inv_freq.mul_(2),
            "an epsilon": lambda: setattr(decoder.layers[0].input_layernorm, "variance_epsilon", 0.5),
            "a hook": lambda: decoder.layers[0].mlp.register_forward_hook(lambda module, given, out: out * 2),
            "a weight": lambda: decoder.embed_tokens.weight.mul_(2),
            "keys": lambda: first.keys[0].zero_(),
            "values": lambda: first.values[0].zero_(),
        }
        what = draw.choice(list(changes))
        with contextlib.suppress(BadInput, RuntimeError), torch.no_grad():
            changes[what]()
        try:
            found, fresh = (workbench.fetch(model, self.blocks, each) for each in (store, workbench.MemoryStore()))
        except BadInput:
            return ""
        pairs = [
            (a, b) for x, y in zip(found, fresh, strict=True) for a, b in zip(x.tensors(), y.tensors(), strict=True)
        ]
        return "" if all(torch.equal(a, b) for a, b in pairs) else f"wrong\nstale blocks behind a change of {what}"

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
            "Pool.give": (self.pool.free_pages, {"pages": cached[0]}),
            "Pool.encode": (self.pool.encode, {"model": model, "blocks": self.blocks[:1]}),
            "Pool.put": (self.pool.write_kv, {"kv": kv}),
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
                self.runner.decode,
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
    """Make hostile calls, and then ask questions; returns what is wrong."""
    made, trail = Calls(folder), list[str]()
    expected = made.answer()
    for _ in range(CALLS):
        calls = made.calls()
        name = draw.choice(list(calls))
        function, given = calls[name]
        argument = draw.choice(list(given))
        odd = made.odd_values(name, argument) if draw.random() < 0.5 else []
        value = draw.choice(odd or VALUES)
        trail.append(f"{name}({argument}={type(value).__name__} {repr(value)[:40]})")
        try:
            result = function(**given | {argument: value})
            if isinstance(result, Iterator):
                list(result)
            if odd or not fits(function, argument, value):
                return f"accepted\n{trail[-1]}"
        except BadInput:
            pass
        except Exception:
            return f"traceback\n{trail[-1]}\n{traceback.format_exc()}"
        made.pool = workbench.Pool(made.loaded.model, 64, 16) if made.pool.free < 40 else made.pool
        made.runner = workbench.Runner(made.loaded.model, made.pool)
    if (found := made.answer()) != expected:
        return f"wrong\n{found} instead of {expected} behind {trail}"
    return ""


def run_use(draw: random.Random, folder: Path) -> str:
    """Use the pages, a runner or a store as nobody should; returns what is wrong."""
    made = Calls(folder)
    expected = made.answer()
    uses = (partial(made.disturbed, draw, expected), partial(made.in_threads, expected), partial(made.stale, draw))
    return draw.choice(uses)()


def fits(function: Any, argument: str, value: Any) -> bool:
    """Whether a value is what the annotation of an argument says; a list or a row of numbers may be made a tuple."""
    whole = inspect.unwrap(function)
    try:
        hints = get_type_hints(whole.__init__ if isinstance(whole, type) and not is_dataclass(whole) else whole)
    except NameError:  # of names that only a type checker imports
        return True
    row = isinstance(value, torch.Tensor) and value.ndim == 1 and not value.is_meta
    made = tuple(value.tolist() if row else value) if row or isinstance(value, list) else value
    return argument not in hints or any(annotations.fits_annotation(each, hints[argument]) for each in (value, made))


def forked(run: Callable[[], str], huge: Path) -> str:
    """Return what `run` finds in a process of its own, in a folder of its own; "hang" where it does not end."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if not child:
            code = 1
            try:
                torch.set_num_threads(1)  # a fork has no threads of torch's pool, and would wait for them
                os.chdir(folder)
                os.setsid()
                given_files(huge)
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
                many = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
                ended = "processes\n" if many else f"traceback\nthe process ended with status {status}"
                return ended if status else told.read()
            time.sleep(0.01)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hang\n"


def faults(seconds: float, seed: int, folder: Path) -> Iterator[Fault | None]:
    """Yield what every case found, None for nothing, until so many seconds are over; cases depend on the seed alone."""
    model, huge, number = tiny.checkpoint(folder / "model"), folder / "huge.json", 0
    text = [{"title": "t", "text": "word " * 8_000_000}]
    huge.write_text(json.dumps([PASSAGE | {"ctxs": text}]))
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        draw = random.Random(f"{seed} {number}")
        number += 1
        made = run_use if number % 4 else run_calls
        run, case = partial(made, draw, model), made.__name__
        if number % 2:
            (line, refused), columns = command_lines(draw, model), draw.choice(COLUMNS)
            run = partial(run_command, line, refused, columns)
            case = f"COLUMNS={columns} workbench {' '.join(map(repr, line))}"
        kind, _, seen = forked(run, huge).partition("\n")
        case = f"{seed} {number - 1}: {case}"
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
