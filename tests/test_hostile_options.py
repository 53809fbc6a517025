"""Every option of every policy is what its annotation says, or one sentence names it."""

import json
import os
import subprocess
import sys
from concurrent.futures import CancelledError
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.commands import refused_command, told
from tests.refusals import refused
from tests.scheduler_cases import simulated
from workbench import fetch, models
from workbench.app.cli import app
from workbench.app.console.options import parse
from workbench.app.notebooks import notebook
from workbench.app.notebooks.parameters import check
from workbench.core import masks
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput, printable
from workbench.core.plan import Site
from workbench.core.utils import annotations
from workbench.core.utils.runner import check_jobs
from workbench.data import layouts
from workbench.methods import attend, correct, modes, prepare, registry, select, sparse
from workbench.methods.config import MethodConfig
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.preprocessing.precompute import Preparation
from workbench.models import random_init
from workbench.store import MemoryStore

BAD: list[Any] = [1.5, "a", None, [1], (1,), True, {}, -1, 0, float("nan"), float("inf"), 10**30, object(), b"x", ""]


def policies(package):
    for name in registry.names(package.__name__):
        yield registry.find_policy(package.__name__, name)[0]


def options():
    for package in (modes, prepare, select, correct, attend, sparse):
        for policy in policies(package):
            needed = [field.name for field in fields(policy) if field.name == "corpus"]
            for field in (field for field in fields(policy) if field.init) if not needed else ():
                yield pytest.param(policy, field.name, id=f"{policy.__module__.split('.', 2)[2]}.{field.name}")


@pytest.mark.parametrize(("policy", "name"), list(options()))
def test_an_option_is_what_its_annotation_says_or_is_refused_by_name(policy, name):
    hint = get_type_hints(policy)[name]
    for value in BAD:
        try:
            policy(**{name: value})
        except BadInput as refused:
            assert len(str(refused)) < 400
        else:
            assert annotations.fits_annotation(value, hint), f"{name}={value!r} is accepted for {hint}"


SPECS = [f"superposition(paths={value})" for value in ("1.5", "a", "None", "[1]", "True", "0", "10**9")]
SPECS += ["superposition(prior=2)", "superposition(paths=2, paths=3)", "full(sees=1)", "full(sees=causal)"]
SPECS += ["full(sparse=1)", "full(chunk=1.5)", "full(chunk=a)", "full(x=1)"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_mode_with_a_wrong_option_is_refused_before_any_work(spec):
    refused(".", lambda: MethodConfig(mode=spec).check())


@pytest.mark.parametrize("value", [1, "a", [1], object()])
@pytest.mark.parametrize("name", ["prepare", "select", "sparse"])
def test_choices_of_a_method_are_policies(name, value):
    refused(f"{name} is", Reuse, **{name: value})
    refused("sees is 1: it must be a function or None", Full, sees=1)


@pytest.mark.parametrize("name", sparse.names())
def test_whole_numbers_of_any_size_choose_tiles_or_are_refused(name):
    policy = next(each for each in policies(sparse) if each.__module__.endswith(f".{name}"))
    queries, keys, rows = torch.randn(4, 100, 16), torch.randn(2, 100, 16), torch.arange(100)
    whole = [field.name for field in fields(policy) if get_type_hints(policy)[field.name] is int]
    for option in whole:
        for value in (10**9, (1 << 31) - 1, 1 << 31, 1 << 62):
            try:
                method = policy(**{option: value})
                if not method.needs_fitting:
                    method(queries, keys, rows, Site())
            except BadInput as refused:
                assert option in str(refused)


FITS = [
    (1, float, True),
    (True, float, False),
    (float("nan"), float, False),
    (torch.tensor(1), int, False),
    ("a", list[str], False),
    ([1, "a"], list[int], False),
    ([1, 10**30], list[int], False),
    ([1.5, float("nan")], list[float], False),
    ((1, 2), tuple[int, ...], True),
    ((1, 2), tuple[int, int, int], False),
    ({"a": 1}, dict[str, int], True),
    ({"a": "b"}, dict[str, int], False),
    (None, int | None, True),
    (2, Literal[1, 2], True),
    (1.0, Literal[1, 2], False),
    (partial(int), int, False),
]


@pytest.mark.parametrize(("value", "annotation", "fits"), FITS)
def test_values_are_looked_at_in_full(value, annotation, fits):
    assert annotations.fits_annotation(value, annotation) is fits


# --- Parameters of notebooks that name something are checked before the first cell runs and before a file is writte
NOTEBOOKS = sorted(Path(__file__).parents[1].glob("notebooks/[0-9]*.ipynb"))
WRONG = {
    "layer": [99, -1, 1.5, "a", 10**30],
    "head": [99, -1, 10**30],
    "sample": [999_999, -1, "a", 10**30],
    "device": ["x", "", "cuda:99", "mps", 5],
    "model": ["nope", "", "x" * 5000, "a\0b", 5],
    "data": ["nope", "", "x" * 5000, "lab(", "lab(nope=1)", "nope.json", 5],
    "seed": [-1, 10**30, "a"],
    "passages": [10**30, "a"],
    "select": ["nope", "", "query_guided(", "query_guided(nope=1)", "../x", 5],
    "selectors": [["nope"], ["query_guided(layers=x)"], ["random", ""], "random", [5]],
    "others": [["nope"], ["first_k(-1)"]],
    "prepare": ["nope", "", "with_neighbours(n=-1)", 5],
    "sparse": ["nope", "bfla(mass=7)", "a\0b", "x" * 5000],
    "methods": [["nope"], ["bfla", "window(1=2)"]],
    "joined": ["nope", "flash_prefill("],
}


def declared(path: Path) -> str:
    cells = json.loads(path.read_text())["cells"]
    return next("".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", []))


CASES = [
    pytest.param(path, name, value, id=f"{path.stem[:2]} {name}={str(value)[:12]!r}")
    for path in NOTEBOOKS
    for name, values in WRONG.items()
    if f"\n{name}: " in declared(path)
    for value in values
]


@pytest.mark.parametrize(("path", "name", "value"), CASES)
def test_a_notebook_refuses_a_value_before_its_first_cell(path, name, value):
    assert len(refused(".", check, path, {name: value})) < 900


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_values_that_a_notebook_comes_with_are_allowed(path):
    check(path, {})


def values(**given: Any) -> dict[str, Any]:
    kinds = {name: type(value) for name, value in given.items()}
    return {"__annotations__": kinds, **given}


def test_limits_are_those_of_the_model_and_of_the_file(tmp_path):
    record = {"question": "q", "answers": ["a"], "ctxs": ["x"]}
    (tmp_path / "two.jsonl").write_text(2 * (json.dumps(record) + "\n"))
    notebook.validate(values(data=str(tmp_path / "two.jsonl"), sample=1, model="lab-full", layer=7, head=7))
    for wrong, why in (
        ({"data": str(tmp_path / "two.jsonl"), "sample": 2}, "parameter sample is 2: data .* has 0 to 1"),
        ({"model": "lab-full", "layer": 8}, "parameter layer is 8: model 'lab-full' has 0 to 7"),
        ({"model": "lab-full", "head": 8}, "parameter head is 8: model 'lab-full' has 0 to 7"),
    ):
        refused(why, notebook.validate, values(**wrong))
    with pytest.raises(BadInput, match="parameter head is 4: model 'lab-full' has 0 to 3"):
        notebook.validate(values(model="lab-full", head=4), head=notebook.KV_HEAD)


def test_an_output_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused("parameter output", notebook.validate, values(output=str(tmp_path / "file" / "below")))


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000, '"\\ud800"'])
def test_a_value_that_no_file_holds_is_refused(text):
    refused("parameter a cannot be read", parse, [f"a={text}"])


SENTENCES = ["row < " + "9" * 5000, f"row < {10**30}", "row * 2147483647 * 2147483647 * 2147483647 > col", "a\0b"]
SENTENCES += [
    "2147483647 * 2147483647 * 2147483647 > row",
    "window(2147483648)",
    "(" * 10_000,
    "not " * 10_000 + "causal",
]
SENTENCES += ["window(2147483647 * 2147483647 * 2147483647)", "\ud800", "row.__class__", "__import__('os')", ""]
SENTENCES += ["1", "row", "~row", "True", "'a'", "window(0)", "window(row)", "window(3", "row & col", "row < 9**9**9"]
SENTENCES += ["foo", "row.real", "(lambda: 1)()", "col // 0 < 1", "[row]", "(" * 300 + "1" + ")" * 300]


@pytest.mark.parametrize("sentence", SENTENCES, ids=[repr(sentence[:20]) for sentence in SENTENCES])
def test_a_mask_rule_of_huge_numbers_or_none_is_one_sentence(sentence):
    refused("mask rule", masks.check, sentence)


def test_a_rule_whose_products_outgrow_a_tensor_is_refused_where_they_do():
    rule = masks.parse("row * 2147483647 * 1000000 > col", Prompt((Block((0,) * 3000), Block((0,)))))
    rows = torch.arange(3000)
    refused("its numbers grow beyond", rule, rows[:, None], rows[None])


def test_notebooks_are_run_and_what_ships_is_checked_without_a_model_library():
    given = "model='lab-full', data='lab', device='cpu', layer=1, sample=3"
    kinds = "dict(model=str, data=str, device=str, layer=int, sample=int)"
    code = "import sys; from workbench.app.notebooks import notebook, run\n"
    code += f"notebook.validate(dict({given}, __annotations__={kinds})); "
    subprocess.run(
        [sys.executable, "-c", f"{code}assert not {{'torch', 'transformers'}} & set(sys.modules)"], check=True
    )


# --- What a passage, a file's name or an option holds reaches neither the terminal nor a tokenizer as it is
ODD = "\x1b[31mred\x1b]0;title\x07 \u202eright\u2066 \x9b2J\x00"


def test_text_that_moves_the_cursor_or_turns_writing_around_is_escaped():
    assert printable(ODD).isprintable() and "\\u202e" in printable(ODD) and "\\x1b" in printable(ODD)
    assert printable("naïve 漢字 \u0644\u200c, two\nlines") == "naïve 漢字 \u0644\u200c, two\nlines"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_passage_that_is_shown_is_printable(tmp_path, as_json):
    sample = {"id": ODD, "kind": ODD, "question": ODD, "answers": [ODD], "ctxs": [{"title": ODD, "text": ODD}]}
    (tmp_path / "odd.jsonl").write_text(json.dumps(sample) + "\n")
    shown = told("data", tmp_path / "odd.jsonl", *["--json"] * as_json)
    assert all(line.isprintable() for line in shown.splitlines())
    assert not as_json or json.loads(shown)["question"] == ODD


def test_the_name_of_a_file_that_is_refused_is_printable():
    assert refused_command("data", f"{ODD[:-1]}.jsonl").isprintable()


REFUSED = [
    ["data", "lab", "--seed", "-1"],
    ["data", "lab", "--seed", "-1", "--out", "x"],
    ["trial", "--model", "lab-full", "--store", ""],
    ["trial", "--model", "lab-full", "--prepared", ""],
    ["report", "--jobs", "100000", "--out", "x"],
    ["sweep", "--model", "lab-full", "--jobs", "100000", "--out", "x"],
    ["sweep", "--model", "lab-full", "--keep-gib", "-1", "--out", "x"],
    ["tune", "--model", "lab-full", "--workers", "100000", "--out", "x"],
    ["prepare", "--model", "lab-full", "--data", "lab", "--workers", "100000", "--out", "x"],
    ["sweep", "--model", "lab-full", "--out", "/"],
]


@pytest.mark.parametrize("line", REFUSED, ids=" ".join)
def test_an_option_out_of_bounds_is_refused_by_name(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, line)
    option = line[-4] if line[-2] == "--out" and line[-1] == "x" else line[-2]
    named = option.lstrip("-").replace("-", "_")
    assert ended.exit_code == 2 and named in ended.output.replace("-", "_") and not any(tmp_path.iterdir())


def test_processes_are_a_small_multiple_of_the_cores_of_this_machine_alone():
    check_jobs(8 * (os.cpu_count() or 1), 0)
    check_jobs(100_000, 0, "slurm")
    refused("jobs is 100000: allowed are 1 to", check_jobs, 100_000, 0, "local")
    refused("workers", Preparation, "lab-full", "lab", "x", workers=10**6)


def test_a_text_far_over_the_context_is_refused_before_it_is_tokenised():
    loaded = models.load("lab-full")
    refused("40,000,000 characters is over", layouts.encode, ["a " * 20_000_000], loaded.tokenizer)


def test_a_block_that_somebody_wrote_to_is_a_miss_and_is_made_again(loaded):
    store, blocks = MemoryStore(), [Block((5, 6, 7)), Block((8, 9))]
    first = [kv.clone() for kv in fetch(loaded.model, blocks, store)]
    for of in ("keys", "values"):
        with torch.no_grad():
            getattr(fetch(loaded.model, blocks, store)[0], of)[0].zero_()
        again = fetch(loaded.model, blocks, store)
        for one, other in zip(first, again, strict=True):
            torch.testing.assert_close(list(other.tensors()), list(one.tensors()))  # encoded alone: other roundings
    assert store.stats.reasons == {"never seen": 2, "damaged": 2}


def test_a_request_that_is_too_late_can_be_given_up():
    scheduler, (ticket,), _ = simulated("request", [50.0])
    with pytest.raises(TimeoutError, match="has not ended after 0 seconds"):
        ticket.result(0)
    ticket.cancel()
    scheduler.run()
    with pytest.raises(CancelledError):
        ticket.result(0)


def test_weights_in_two_files_of_another_format_or_zero_are_refused_or_told(tmp_path):
    folder = random_init.write(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    refused("fp8", models.load, folder)
    (folder / "config.json").write_text(json.dumps(config))
    zeros = {name: torch.zeros_like(x) for name, x in weights.items()}
    save_file(zeros, folder / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match="weights are zero"):
        models.load(folder)
    (folder / "model.safetensors").unlink()
    name = sorted(weights)[0]
    save_file(weights, folder / "a.safetensors", {"format": "pt"})
    save_file({name: weights[name]}, folder / "b.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "a.safetensors") | {name: "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused("stands in two files", models.load, folder)
