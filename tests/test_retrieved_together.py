"""Figure 7a of FusionRAG: shares stand beside the printed ones, and the sentence turns with them."""

import json

import pytest
import together

from workbench.data.sample import Passage, Sample
from workbench.experiments import results
from workbench.plots import retrieved_together as figures


def row(at, mean):
    about = {"data": "hotpotqa", "embedder": "tfidf", "passages": 10.0, "n": 100}
    return {**about, "at": at, "mean": mean, "low": mean - 0.04, "high": mean + 0.04}


@pytest.mark.parametrize(
    ("two", "ten", "words"), [(0.8, 0.9, "confirmed"), (0.3, 0.9, "contradicted"), (0.51, 0.9, "left open")]
)
def test_the_sentence_turns_with_the_shares(tmp_path, monkeypatch, two, ten, words):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert figures.together() is None and figures.NO_FILE.count("\n") == 0
    (tmp_path / "together.json").write_text(json.dumps({"rows": [row(2, two), row(10, ten)]}))
    fig = figures.together()
    assert words in figures.said(figures.kept()) and fig.data[-1].y == (0.5, 0.8)


def test_a_share_counts_passages_with_another_of_their_question():
    words = (("red apple pie", "red apple cake"), ("green sea wave", "blue sky cloud"))
    samples = [
        Sample(str(i), "?", ("A",), tuple(Passage(f"p{i}{j}", text) for j, text in enumerate(texts)))
        for i, texts in enumerate(words)
    ]
    assert together.shares(samples, "tfidf", 3) == [1.0, 1.0]
    assert together.shares(samples, "tfidf", 1)[0] == 1.0
