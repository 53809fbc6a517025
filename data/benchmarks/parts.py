"""The paired contribution of each part of a published composition: PSR is Link0, CacheBlend's selection and APE.

    workbench sweep --plan data/benchmarks/plans/psr-parts.toml --out runs/psr-parts
    python data/benchmarks/parts.py --results runs/psr-parts

writes counts of experiment "parts" into a results folder: scores of every step, and `MEASURE_added`, the mean paired
difference from the step before. The page of all methods shows them.
"""

from functools import partial

import pandas as pd
from script import options, writer

from workbench import results

MEASURES = ("em", "f1", "kl")
CHOICE = ["prepare", "select", "attend"]
STEPS = {
    ("independent", "none", "none"): "blocks cached independently",
    ("link0", "none", "none"): "Link0: behind four dummies",
    ("link0", "kv_deviation(part=k)", "none"): "CacheBlend's choice by keys",
    ("link0", "kv_deviation(part=k)", "ape"): "APE's attention",
}


def of_step(name: str, rows: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows of a step."""
    return rows.step == name


def main() -> None:
    """Compare each step with the previous one, and write the differences."""
    given = options(__doc__, results="runs/psr-parts")
    answered = results.read(given.results).answers("trial")
    answered = answered.assign(step=answered[CHOICE].agg(tuple, axis=1).map(STEPS))[answered["mode"] == "block"]
    about = answered.iloc[0][["model", "weights", "data", "passages", "mode", "seed", "dtype"]]
    before = ""
    with writer(given, "parts@psr", **about.to_dict()) as out:
        for number, (chosen, name) in enumerate(STEPS.items()):
            rows = answered[answered.step.isin([name, before])]
            found = results.means(rows, MEASURES, ["step"]).to_dict("records")
            for measure in MEASURES if before else ():
                gaps = results.paired_differences(rows, partial(of_step, before), measure, ["step"])
                found += gaps.assign(measure=f"{measure}_added").to_dict("records")
            known = {**dict(zip(CHOICE, chosen, strict=True)), "method": name, "at": number}
            known |= {} if chosen[1] == "none" else {"ratio": rows.ratio.iloc[0]}
            own = [row for row in found if row.pop("step") == name]
            out.counts([known | row for row in own])
            print(name, *(f"{row['measure']} {row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" for row in own))
            before = name


if __name__ == "__main__":
    main()
