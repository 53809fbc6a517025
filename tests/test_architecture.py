"""ARCHITECTURE.md says what is there: its line of folders, and the way of a prompt from text to token."""

import ast
import re
import sys
from pathlib import Path

import tiny
from test_floors import FOLDERS

from workbench import data, generate, models

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
WALK = re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", TEXT, re.M)


def path_of(file: str) -> Path:
    return ROOT / file if file.startswith("kernels/") else ROOT / "workbench" / file


def test_it_shows_the_folders_in_their_order():
    assert "    " + "  ".join(FOLDERS) in TEXT.splitlines()
    assert re.findall(r"^\| `(\w+)/` \|", TEXT, re.M) == FOLDERS
    assert len(TEXT.splitlines()) <= 130


def test_every_step_of_the_walk_is_defined_where_it_says():
    assert len(WALK) >= 10
    for file, name in WALK:
        body = ast.parse(path_of(file).read_text()).body
        for part in name.split("."):
            node = next(x for x in body if getattr(x, "name", None) == part)
            body = node.body


def test_the_walk_from_generate_to_the_kernel_is_short():
    files = [file for file, _ in WALK]
    begin, end = files.index("methods/generation.py"), files.index("kernels/tile_attention.py")
    assert len(set(files[begin : end + 1])) <= 16
    assert max(map(files.count, files)) <= 2


def test_a_prompt_takes_the_steps_in_this_order(tmp_path):
    """Followed on a CPU, where torch stands in for the kernels."""
    loaded = models.load(tiny.checkpoint(tmp_path / "model"))
    model, tokenizer, layout = loaded
    assert loaded.spec.layers  # measured once, by a forward pass of its own
    prompts = layout.prompts(data.load("lab", samples=1, passages=2), tokenizer)
    entered: list[tuple[str, str]] = []

    def follow(frame, event, argument):
        if event == "call":
            entered.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(follow)
    try:
        generate(model, tokenizer, prompts, mode="block", max_new_tokens=2)
    finally:
        sys.setprofile(None)
    at = -1
    for file, name in WALK[WALK.index(("methods/generation.py", "generate")) :]:
        if not file.startswith("kernels/"):
            here = (str(path_of(file)), name)
            at = next(
                (i for i, (path, called) in enumerate(entered) if i > at and (path, called[: len(name)]) == here), -1
            )
            assert at >= 0, f"{file} {name} is not entered behind the step before it"
