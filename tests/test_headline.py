"""The measured tables of the README are what their script writes, in favour of whoever was faster."""

import headline
import pandas as pd
import pytest


def test_the_tables_of_the_readme_are_what_their_script_writes():
    text = headline.README.read_text()
    assert headline.renewed(text) == text, "python data/benchmarks/headline.py"


def test_a_readme_without_the_marks_is_refused():
    with pytest.raises(ValueError):
        headline.renewed("# No marks")


@pytest.mark.parametrize(("ours", "ratio"), [(2.0, "2.5×"), (10.0, "0.5×")])
def test_ours_is_set_beside_the_fastest_baseline(ours, ratio):
    times = {"ours": ours, "ours, another": 1.0, "transformers": 9.0, "transformers, cudnn": 5.0}
    work = next(line for line in headline.LINES if line.report == "decode")
    rows = pd.DataFrame([{"report": "decode", "work": work.work, "who": who, "ms": ms} for who, ms in times.items()])
    (line,) = headline.speed(rows).splitlines()[2:]
    assert f"| {ours:.3g} ms | transformers, cudnn: 5 ms | **{ratio}** |" in line
    assert len(headline.speed(rows[rows.who == "ours"]).splitlines()) == 2, "without a baseline there is no ratio"


def test_every_method_of_the_table_was_measured_on_the_questions_that_ship():
    table = headline.quality(headline.trials())
    assert [name for name in (*headline.METHODS, "full attention") if f"| {name}" not in table] == []
