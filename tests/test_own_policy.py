"""A selector from its text is one like any other, and text that is none is refused in a sentence."""

import re

import pytest
import torch
from documented import ROOT, blocks

from workbench.app.notebooks import own_policy
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.methods.select import choose

PAGE = next(block.body for block in blocks(ROOT / "docs" / "extend" / "method.md") if "class LastTokens" in block.body)
PROMPT = Prompt(tuple(Block((n, n + 1, n + 2)) for n in range(4)))


def test_the_selector_of_the_documentation_chooses_the_last_tokens_of_every_block():
    found = own_policy.selector(PAGE, "last_tokens")
    assert choose(found.score(PROMPT), PROMPT, tokens=3).tolist() == [2, 5, 8]
    assert found == own_policy.selector(PAGE, "last_tokens") or found.system == 1


def test_the_notebook_holds_the_selector_of_the_documentation():
    notebook = (ROOT / "notebooks" / "15_add_a_method.ipynb").read_text()
    assert all(line.strip() in notebook for line in re.findall(r"^ {8}(.+)$", PAGE, re.M))


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("class", "mine", r"mine\.py, line 1: invalid syntax"),
        ("x = 1", "mine", "mine.py holds no dataclass Mine"),
        ("x = 1", "../mine", "no name of a file"),
        ("from dataclasses import dataclass\n\n@dataclass\nclass Mine:\n    k: int = 1", "mine", "Mine is no selector"),
    ],
)
def test_text_that_is_no_selector_is_refused(source, name, message):
    with pytest.raises(BadInput, match=message):
        own_policy.selector(source, name)


def test_scores_of_a_selector_are_one_a_token():
    assert own_policy.selector(PAGE, "last_tokens").score(PROMPT).shape == torch.Size([9])
