"""What preparing a chunk takes stands beside what is printed."""

import json

import pytest

from workbench.experiments import results
from workbench.plots import preparation_cost


@pytest.mark.parametrize(("similar", "words"), [(0.02, "10.9 times less than is printed"), (0.436, "2.0 times more")])
def test_seconds_a_chunk_are_compared_with_the_printed_ones(tmp_path, monkeypatch, similar, words):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert preparation_cost.seconds_a_chunk() is None
    rows = [{"name": name, "seconds": s, "least": s, "most": s} for name, s in (("system", 0.01), ("similar", similar))]
    about = {"shape": "Llama-3.1-8B", "chunks": 200, "tokens": 130, "batch": 10, "runs": 3, "device": "H200"}
    (tmp_path / "prepare-cost.json").write_text(json.dumps({**about, "rows": rows}))
    fig = preparation_cost.seconds_a_chunk()
    assert words in " ".join(note.text for note in fig.layout.annotations).replace("<br>", " ")
    assert "275" in fig.data[0].cells.values[3]
