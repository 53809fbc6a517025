"""Interventions on preparation: what is said of them turns with what they give and with what similarity finds."""

import json

import pytest

from workbench.experiments import results
from workbench.plots import preparation_lift as figures

DOCUMENT, SIMILAR = "behind_document", "with_neighbours(n=10, search=exact)"


def row(prepare, gain, hits, data="lab"):
    names = {DOCUMENT: "its own document", SIMILAR: "10 neighbours by TF-IDF", "after_system": "the system prompt"}
    line = {"score": "em", "n": 300, "mean": 0.8, "gain": gain, "gain_low": gain - 0.03, "gain_high": gain + 0.03}
    found = None if prepare == "after_system" else [hits, 100]
    kinds = [{**line, "kind": kind} for kind in ("all", "continuation")]
    return {"data": data, "prepare": prepare, "name": names[prepare], "found": found, "of": kinds}


def kept(similar, hits, document):
    rows = [row("after_system", 0.0, 0), row(SIMILAR, similar, hits), row(DOCUMENT, document, 100)]
    about = {"model": "lab-full", "samples": 300, "seed": 1, "passages": 10}
    return {**about, "rows": [*rows, row(SIMILAR, similar, hits, "lab-hard"), row(DOCUMENT, document, 100, "lab-hard")]}


def test_every_corpus_has_a_panel_and_every_preparation_its_number():
    fig = figures.lift(kept(0.0, 2, 0.1))
    texts = [note.text for note in fig.layout.annotations]
    assert "lab" in texts and "lab-hard" in texts
    assert {tuple(trace.y) for trace in fig.data} == {("10 neighbours by TF-IDF", "its own document")}


def test_results_of_every_model_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert figures.kept() == []
    (tmp_path / "preparations-lab_full.json").write_text(json.dumps(kept(0.0, 2, 0.1)))
    assert [one["model"] for one in figures.kept()] == ["lab-full"]


def test_training_seeds_of_one_size_are_joined_and_what_has_no_preparation_yet_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    for seed, gain in ((1, 0.1), (2, 0.3), (3, 0.2)):
        content = {**kept(0.0, 2, gain), "model": f"lab-hard-small-{seed}"}
        (tmp_path / f"preparations-lab_hard_small_{seed}.json").write_text(json.dumps(content))
    begun = {**kept(0.0, 2, 0.1), "model": "lab-hard-large-1", "rows": [row("after_system", 0.0, 0)]}
    (tmp_path / "preparations-lab_hard_large_1.json").write_text(json.dumps(begun))
    (one,) = figures.kept()
    line = next(line for line in figures.gains(one) if line["prepare"] == DOCUMENT and line["kind"] == "all")
    assert one["model"] == "lab-hard-small" and line["gain"] == pytest.approx(0.2)
    assert line["gain_low"] < 0.15 < 0.25 < line["gain_high"], "seeds differ by more than their own intervals"
    assert "over 3 training seeds" in " ".join(note.text for note in figures.lift(one).layout.annotations)


def test_a_preparation_that_one_seed_lacks_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    for seed in (1, 2):
        content = {**kept(0.0, 2, 0.1), "model": f"lab-hard-small-{seed}"}
        content["rows"] = content["rows"][: 3 if seed == 2 else None]
        (tmp_path / f"preparations-lab_hard_small_{seed}.json").write_text(json.dumps(content))
    (one,) = figures.kept()
    assert {row["data"] for row in one["rows"]} == {"lab"} and one["training_seeds"] == 2
