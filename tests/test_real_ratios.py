"""Ratios of a real model's selectors in sentences, on made-up losses and with their signs reversed."""

import pandas as pd
import pytest
from test_plots_real import LOSSES, SYSTEM, TEN, caption, cells, config, real

from workbench.plots import real_ratios as ratios
from workbench.plots.real_beside_lab import Lab
from workbench.plots.real_results import Real

PAIRS = ((SYSTEM, "kv_deviation"), (SYSTEM, "query_guided"), (TEN, "query_guided"), (SYSTEM, "random"))


def at_ratios(losses, at_main=LOSSES, **of_rows):
    """Results at 15% and, as `losses` has them by preparation, selector and ratio, at others."""
    named = {f"{p}, {s} {at:.0%}": (config(p, s, at), loss) for (p, s, at), loss in losses.items()}
    return real(at_main, more=named, **of_rows)


def several(fusion=0.05, guided=0.2, blend=0.3):
    """Four methods at 5%."""
    of = dict(zip(PAIRS, (blend, guided, fusion, 0.38), strict=True))
    return at_ratios({(*pair, 0.05): loss for pair, loss in of.items()})


def lab_at(ours, theirs, ratio=0.15):
    """A lab model whose question-guided trial is right as `ours` says, and CacheBlend's as `theirs`."""
    rows = [
        {"trial": select, "mode": "block", "prepare": SYSTEM, "select": select, "kind": "all", "ratio": ratio}
        for select in ("query_guided", "kv_deviation")
    ]
    swept = pd.DataFrame(rows).assign(model="lab-full", n=4, seed=1, passages=10)
    return Lab(swept, pd.DataFrame({"em query_guided": ours, "em kv_deviation": theirs}))


def test_both_preparations_are_drawn_by_ratio_with_the_claims():
    figure = ratios.prepared_by_ratio(several(), lab_at([1] * 4, [0] * 4))
    assert "10 neighbours + question-guided (FusionRAG)" in {trace.name for trace in figure.data}
    (fusion,) = (t for t in figure.data if t.name and t.name.endswith("(FusionRAG)") and t.xaxis == "x")
    assert list(fusion.x) == [0, 0.05, 0.15] and fusion.y[1] == pytest.approx(0.0525)
    assert "Open marks" in caption(figure)


@pytest.mark.parametrize(("minilm", "said"), [(0.05, "better in 1"), (0.5, "worse in 1"), (0.2, "not told apart in 1")])
def test_neighbours_by_meaning_stand_beside_those_by_words(minilm, said):
    name = "with_neighbours(n=10, search=exact, embedder=minilm)"
    both = real(more={name: (config(name, "none"), minilm)})
    assert ratios.with_embedders([both, real()]) == [both]
    assert f"by KL {said} of 1; by likelihood lost {said} of 1" in ratios.embedders_sentence([both])
    assert "10" in cells(ratios.embedders_table([both])) and "Differences: MiniLM less TF-IDF" in caption(
        ratios.embedders_table([both])
    )


def test_what_ships_has_every_ratio_and_both_embedders():
    shipped = Real.read()
    assert set(shipped.by_ratio(SYSTEM, "kv_deviation")) >= {0.02, 0.05, 0.1, 0.15, 0.2, 0.3}
    sets = ratios.with_embedders([shipped.on(name) for name in shipped.data_sets])
    assert {each.data for each in sets} >= {"nq", "hotpotqa", "manuals"}
