"""Sparse prefill of real text: what is kept and lost, and BFLA beside random tiles, on made-up numbers."""

import pandas as pd
import pytest

from tests.figure_views import texts
from workbench.plots import real_sparse as figures
from workbench.plots.real_results import Real

BFLA, DRAWN = "bfla(block=64, flat=16, mass=0.9)", "random(block=64, share=0.2, local=8)"
COMPACT = "compact(over=flash_prefill(alpha=0.1)) in chunks of 256"
ORACLE = "oracle(mass=0.95)"
ABOUT = {"note": "4-bit.", "n": 8, "seed": 5, "passages": 40, "device": "some GPU", "kind": "all", "data": "nq"}


def real(bfla=0.1, drawn=0.2, density=0.22, kept=True):
    """Results of four settings; BFLA keeps a fifth of the pairs, random tiles `density`."""
    losses = {BFLA: (0.2, bfla), DRAWN: (density, drawn), COMPACT: (0.1, 0.05), ORACLE: (0.05, 0.01)}
    records = [
        {"trial": name, "sparse": name.partition(" in chunks")[0], "kl": kl, "kl_low": kl, "kl_high": kl}
        | {"agree": 0.9, "agree_low": 0.8, "agree_high": 1.0, "kept_density": at, "kept_union": 2 * at}
        | ({"kept_mass": 0.9, "kept_recall": 0.5, "kept_error": 0.2, "kept_prompts": 8} if kept else {})
        for name, (at, kl) in losses.items()
    ]
    table = pd.DataFrame(records).assign(**ABOUT, model="tiny", group="sparse")
    questions = [
        {"model": "tiny", "data": "nq", "passages": 40, "trial": name, "id": f"q{i}", "kl": kl * (1 + i % 2 / 10)}
        for name, (_, kl) in losses.items()
        for i in range(8)
    ]
    return Real.of(table, pd.DataFrame(questions), "tiny")


def test_without_sparse_results_nothing_is_drawn():
    none = Real("tiny", "nq", real().table.assign(sparse="none"), real().questions)
    assert figures.what_is_kept(none) is None is figures.what_is_lost(none)
    assert figures.bfla_table(none) is None
    unknown = Real("tiny", "nq", real().table.drop(columns="kept_density"), real().questions)
    assert figures.what_is_lost(unknown) is None
    assert figures.what_is_kept(real(kept=False)) is None


def test_every_measure_has_a_panel_and_compactattention_is_drawn_at_its_union():
    words = texts(figures.what_is_kept(real()))
    assert all(title in words for title in figures.KEPT.values())
    assert "Bars" not in words and "over layers and heads of 8 prompts" in words
    assert all(title in texts(figures.what_is_lost(real())) for title in ("agree",))
    at = figures.settings(real()).set_index("trial").density
    assert at[COMPACT] == pytest.approx(0.2) and at[BFLA] == pytest.approx(0.2)
    lines = {trace.name for trace in figures.what_is_lost(real()).data}
    assert "BFLA, blocks of 64" in lines and "CompactAttention over FlashPrefill, chunks of 256" in lines


def test_lines_of_one_family_have_dashes_of_their_own():
    rows = figures.settings(real())
    more = rows[rows.trial == BFLA].assign(line="BFLA, blocks of 128")
    looks = figures.line_looks_of(pd.concat([rows, more]))
    one, other = looks["BFLA, blocks of 64"], looks["BFLA, blocks of 128"]
    assert one.colour == other.colour and one.dash != other.dash
