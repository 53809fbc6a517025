"""What makes preparation lift: the sentence turns with what each intervention gives."""

from workbench.plots import preparation_causes as figures
from workbench.plots import preparation_lift

NAMES = {spec: name for name, spec in (("10 neighbours by TF-IDF", "t"), ("10 neighbours by MiniLM", "m"))}
NAMES |= {"d": "its own document"}


def kept(gains, found=10, model="lab-hard-small", seeds=3):
    """Results whose preparation `spec` gives `gains[corpus, spec]`, with an interval of 3 points to either side."""
    listed = []
    for (corpus, spec), gain in gains.items():
        line = {"kind": "all", "score": "em", "n": 1000, "mean": 0.6, "gain": gain}
        line |= {"gain_low": gain - 0.03, "gain_high": gain + 0.03}
        listed.append({"data": corpus, "prepare": spec, "name": NAMES[spec], "found": [found, 100], "of": [line]})
    about = {"model": model, "samples": 1000, "seed": 1, "passages": 10, "training_seeds": seeds}
    return {**about, "rows": listed}


def hard(similar, titles, meaning, document):
    plain, named = figures.FAMILIES["lab-hard"]
    gains = {(plain, "t"): similar, (named, "t"): titles, (plain, "m"): meaning, (plain, "d"): document}
    return kept(gains)


def test_every_family_has_a_panel_and_every_model_a_mark():
    plain, named = figures.FAMILIES["lab"]
    other = kept({(plain, "t"): 0.0, (named, "t"): 0.1}, model="lab-full", seeds=1)
    fig = figures.interventions([hard(0.0, 0.0, 0.0, 0.1), other])
    texts = [note.text for note in fig.layout.annotations]
    assert {"lab", "lab-hard"} <= set(texts) and {trace.name for trace in fig.data} == {"lab-hard-small", "lab-full"}
    assert "lab-hard-small over 3 training seeds, n = 1,000 and lab-full n = 1,000" in " ".join(texts).replace(
        "<br>", " "
    )


def test_without_results_nothing_is_drawn(monkeypatch):
    monkeypatch.setattr(preparation_lift, "kept", list)
    assert figures.interventions() is None and figures.interventions([]) is None
    assert "not measured" in figures.why([]) and figures.MISSING.count("\n") == 0
