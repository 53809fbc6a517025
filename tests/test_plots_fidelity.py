"""The table of how near full attention the predictions of trials stay."""

from types import SimpleNamespace

from workbench.plots.fidelity import beside_full


def record(em: float, kl: float | None) -> SimpleNamespace:
    """A trial's record, as far as the table reads it; intervals reach 0.1 to each side."""
    scores = {}
    for name, value in {"em": em, "kl": kl, "nll_extra": kl, "agree": 0.5}.items():
        ends = (None, None) if value is None else (value - 0.1, value + 0.1)
        scores |= {name: value, f"{name}_low": ends[0], f"{name}_high": ends[1]}
    return SimpleNamespace(**scores, device="CPU")


def test_every_method_but_full_attention_has_a_row_and_the_nearest_is_named():
    records = {"full": record(0.25, 0.0), "naive": record(0.0, 0.9), "block": record(0.0, 0.3)}
    fig = beside_full(records, about="a model on lab, n = 4")
    columns = fig.data[0].cells["values"]
    assert list(columns[0]) == ["block attention, naive positions", "block attention, re-encoded"]
    assert list(columns[1]) == ["0.90 [0.80, 1.00]", "0.30 [0.20, 0.40]"]
    texts = " ".join(note.text for note in fig.layout.annotations).replace("<br>", " ")
    assert "Full attention answers 25% exactly" in texts and "block attention, re-encoded stays nearest" in texts


def test_what_was_not_compared_is_a_dash():
    fig = beside_full({"full": record(0.0, None), "block": record(0.0, None)}, about="no gold answers")
    assert list(fig.data[0].cells["values"][1]) == ["–"]
