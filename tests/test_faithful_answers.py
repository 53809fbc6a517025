"""Faithful answers and the level of a smaller model: figures of whatever was measured, worded by their numbers."""

import json

import pytest

from tests.figure_views import texts
from workbench.core.errors import BadInput
from workbench.experiments import faithful_results, results
from workbench.experiments.papers import fusion_rag_answers
from workbench.experiments.papers.verdicts import CONFIRMED, CONTRADICTED, judge
from workbench.metrics.seeds import crossed_share
from workbench.plots import faithful_answers as figures
from workbench.plots import fusion_components

METHODS = ("full attention", "Full Reuse", "CacheBlend", "Cache-Craft", "FusionRAG")
PREPARED = ("CacheBlend, prepared", "FusionRAG, unprepared", "Full Reuse, prepared")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def write(folder, model, **right):
    names = METHODS + tuple(name for name in PREPARED if name in right)
    methods = {name: "1" * right.get(name, 50) + "0" * (100 - right.get(name, 50)) for name in names}
    about = {"model": model, "data": "lab", "seed": 1, "passages": 10, "ratio": 0.15, "samples": 100}
    content = about | {"methods": {name: {"right": each, "faithful": each} for name, each in methods.items()}}
    (folder / f"faithful-{model.replace('-', '_')}.json").write_text(json.dumps(content))


def test_without_results_nothing_is_drawn(folder):
    assert figures.faithfulness() is None is figures.smaller_model()
    assert faithful_results.kept() == {} and figures.NO_FILE.count("\n") == 0


def test_a_model_of_which_methods_are_missing_is_left_out(folder):
    write(folder, "lab-full")
    (path,) = folder.iterdir()
    content = json.loads(path.read_text())
    del content["methods"]["FusionRAG"]
    path.write_text(json.dumps(content))
    assert faithful_results.kept() == {} and figures.faithfulness() is None


def test_the_level_of_a_smaller_model_needs_the_baselines_alone(folder):
    write(folder, "lab-hard-small-1", **{"full attention": 80})
    write(folder, "lab-hard-large-1", CacheBlend=60)
    path = folder / "faithful-lab_hard_large_1.json"
    content = json.loads(path.read_text())
    del content["methods"]["FusionRAG"]
    path.write_text(json.dumps(content))
    assert faithful_results.sizes() == ["lab-hard-small"], "what lacks a method is not ranked"
    (drawn,) = figures.smaller_model().data
    assert list(drawn.y) == ["full attention", "Full Reuse", "CacheBlend", "Cache-Craft"] and drawn.x[
        2
    ] == pytest.approx(-20)


def test_two_sizes_are_paired_by_their_seed_and_their_questions(folder):
    write(folder, "lab-hard-small-1", **{"full attention": 60})
    write(folder, "lab-hard-large-2", CacheBlend=60)
    assert figures.smaller_model() is None, "seeds differ"
    write(folder, "lab-hard-large-1", CacheBlend=60, FusionRAG=90)
    assert "CacheBlend +0.0" in texts(figures.smaller_model()) and "FusionRAG +30.0" in texts(figures.smaller_model())


@pytest.mark.parametrize(("ours", "words"), [(90, "confirmed here"), (20, "contradicted here"), (50, "left open here")])
def test_methods_are_ranked_over_training_seeds_of_every_size(folder, ours, words):
    assert figures.ranked_over_seeds() is None
    write(folder, "lab-full", FusionRAG=99)
    assert figures.ranked_over_seeds() is None, "one training seed is none over which to rank"
    for size, seed in (("small", 1), ("small", 3), ("large", 2)):
        write(folder, f"lab-hard-{size}-{seed}", FusionRAG=ours)
    fig = figures.ranked_over_seeds()
    assert texts(fig).count(words) == 2 and "lab-hard-small 2 and lab-hard-large 1" in texts(fig)
    assert {trace.name for trace in fig.data} == {"lab-hard-small", "lab-hard-large"}


@pytest.mark.parametrize(("ours", "verdict"), [(90, CONFIRMED), (20, CONTRADICTED)])
def test_the_harder_lab_decides_on_faithfulness_where_it_was_measured(folder, ours, verdict):
    write(folder, "lab-full", FusionRAG=50)
    assert [one.decides for one in fusion_rag_answers.faithfulness()] == [True, True]
    for size in ("small", "large"):
        for seed in (1, 2):
            write(folder, f"lab-hard-{size}-{seed}", FusionRAG=ours)
    found = fusion_rag_answers.faithfulness()
    assert judge(found) == verdict and [one.decides for one in found] == [True] * 4 + [False] * 2
    assert "(lab-hard-small), 2 training seeds" in found[0].what
    assert len(fusion_rag_answers.smaller_model()) == 2


@pytest.mark.parametrize(("ours", "verdict"), [(98, CONFIRMED), (62, CONTRADICTED)])
def test_what_preparation_gives_is_held_to_what_is_printed(folder, ours, verdict):
    for seed in (1, 2):
        write(folder, f"lab-hard-small-{seed}", CacheBlend=60, **{"CacheBlend, prepared": ours})
    (found,) = fusion_rag_answers.lifted_on_harder_lab("lift", "CacheBlend, prepared", "CacheBlend", 0.212)
    assert found.value == pytest.approx((ours - 60) / 60) and found.verdict == verdict


def test_components_of_committed_trials_stand_beside_what_is_printed():
    swept = results.table("fusion")
    fig = fusion_components.components(swept, results.table("fusion-answers"), "with_neighbours(n=10, search=exact)")
    cells = fig.data[0].cells.values
    assert list(cells[0])[:5] == list(fusion_components.COMPONENTS) and "0.722" in cells[4]


def three_seeds(folder, size, **right):
    for seed in (1, 2, 3):
        write(folder, f"{size}-{seed}", **{name: value + seed for name, value in right.items()})


@pytest.mark.parametrize(("ours", "verdict"), [(80, CONFIRMED), (30, CONTRADICTED)])
def test_preparation_of_selectors_is_judged_over_three_training_seeds(folder, ours, verdict):
    three_seeds(folder, "lab-hard-small", **{"CacheBlend": 50, "CacheBlend, prepared": ours})
    write(folder, "lab-hard-large-1", CacheBlend=50)
    found = fusion_rag_answers.compared_on_harder_lab("lifted", "CacheBlend, prepared", "CacheBlend")
    assert [one.verdict for one in found] == [verdict], "the large size lacks one of the two"
    assert "lifted (lab-hard-small), 3 training seeds" in found[0].what
    assert "CacheBlend, prepared" in set(figures.ranked_over_seeds().layout.yaxis.ticktext)


@pytest.mark.parametrize(("ours", "share", "verdict"), [(80, 0.75, CONFIRMED), (50, 0.0, CONTRADICTED)])
def test_what_is_won_back_is_a_share_of_what_reuse_loses(folder, ours, share, verdict):
    three_seeds(folder, "lab-hard-small", **{"full attention": 90, "Full Reuse": 50, "FusionRAG": ours})
    (found,) = fusion_rag_answers.won_back_on_harder_lab("won back", "FusionRAG", 0.3)
    assert found.value == pytest.approx(share) and found.verdict == verdict and found.form == ".0%"


def test_nothing_is_won_back_where_reuse_loses_nothing(folder):
    three_seeds(folder, "lab-hard-small", **{"full attention": 50, "Full Reuse": 50})
    assert fusion_rag_answers.won_back_on_harder_lab("won back", "FusionRAG", 0.3) == []
    with pytest.raises(BadInput, match="same seeds and questions"):
        crossed_share([[1.0]], [[1.0, 2.0]])


def test_preparation_alone_is_shown_of_models_of_several_seeds(folder):
    line = {"kind": "all", "score": "em", "n": 100, "mean": 0.6, "gain": 0.1, "gain_low": 0.05, "gain_high": 0.15}
    rows = [
        {"data": "lab-hard", "prepare": "behind_document", "name": "its own document", "found": [1, 1], "of": [line]}
    ]
    for model in ("lab-full", "lab-hard-small-1", "lab-hard-small-2"):
        about = {"model": model, "samples": 100, "seed": 1, "passages": 10, "rows": rows}
        (folder / f"preparations-{model.replace('-', '_')}.json").write_text(json.dumps(about))
    (found,) = fusion_rag_answers.preparation_alone()
    assert found.verdict == CONFIRMED and "its own document (lab-hard-small), 2 training seeds" in found.what
