"""One name, one thing: Full Reuse is FusionRAG's, passages cached behind the system prompt."""

import json
import re
from pathlib import Path

import pytest

from workbench.methods.presets import METHODS
from workbench.plots.styles import reuse_name

ROOT = Path(__file__).parents[1]
PLACES = ("workbench/**/*.py", "notebooks/*.ipynb", "*.md", "data/models/*/README.md", "data/benchmarks/*.*")
FILES = sorted(p for place in PLACES for p in ROOT.glob(place) if p.suffix in (".py", ".ipynb", ".md", ".sh", ".json"))
ALONE = re.compile(r"independent|alone|by itself|isolated|block[- ]attention|same shape", re.IGNORECASE)


def test_nothing_that_is_cached_independently_is_called_full_reuse():
    sentences = re.compile(r"[^.|\n]*full.reuse[^.|\n]*", re.IGNORECASE)
    found = {str(p.relative_to(ROOT)): sentences.findall(p.read_text()) for p in FILES}
    wrong = [(name, text) for name, texts in found.items() for text in texts if ALONE.search(text)]
    both = "(Block-Attention, Full Reuse)"  # of positions, which both re-encode
    assert [(name, text) for name, text in wrong if both not in text] == []
    assert any(found.values()), "it is named somewhere"


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "scores.json" or p.name.startswith("lab-seed-")])
def test_scores_of_independent_blocks_are_called_so(path):
    assert "independent blocks, 10 passages" in json.loads(path.read_text())


def test_reuse_is_named_by_its_preparation():
    by_name = {name: METHODS[name].fields.get("prepare", "independent") for name in ("block", "full-reuse")}
    assert {name: reuse_name(prepare) for name, prepare in by_name.items()} == {
        "block": "independent blocks",
        "full-reuse": "Full Reuse",
    }
    assert reuse_name("with_neighbours(n=4)") == "blocks behind neighbours"
