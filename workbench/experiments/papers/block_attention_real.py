"""Block fine-tuning of a real model without labels, as findings: losses in nats a token, on questions it has not seen.

Likelihood lost is beside full attention of the model before fine-tuning. Signs decide; shares and what no paper prints
in nats are shown.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.experiments.papers.evidence import LEAST, real_questions, shipped
from workbench.experiments.papers.verdicts import Finding, Findings, Side
from workbench.metrics.paired import bits_explained, difference

BASE, TUNED = "smollm2", "smollm2-block"
FULL, BLOCK = "full", "independent"
Losses = Mapping[tuple[str, str], list[float]]  # (model, method) → losses, a question each


def quality(printed: float) -> Findings:
    """Compare block mode before and after fine-tuning with full attention.

    `printed`: the share of the loss that the paper's fine-tuning wins back, which is shown.
    """
    found: Findings = []
    for data, nll in _losses("nll"):
        plain, healed, full = nll[BASE, BLOCK], nll[TUNED, BLOCK], nll[BASE, FULL]
        lost = "likelihood lost to full attention"
        found += [
            _gap(f"not fine-tuned, {lost} ({BASE} on {data})", plain, full, "above"),
            _gap(f"fine-tuned against not, likelihood lost ({TUNED} on {data})", healed, plain, "below"),
            replace(_gap(f"fine-tuned, {lost} ({TUNED} on {data})", healed, full, "below"), decides=False),
        ]
        share = bits_explained(healed, plain, full)
        if share.share is not None and share.low is not None and share.high is not None:
            ends = share.share, share.low, share.high, share.n
            what = f"likelihood won back by fine-tuning ({TUNED} on {data})"
            found.append(Finding(what, *ends, "real", "above", printed, ".0%", decides=False))
    return found


def both_modes() -> Findings:
    """Compare full attention after fine-tuning with before: likelihood lost, shown beside the lab's points."""
    found = []
    for data, nll in _losses("nll"):
        what = f"full mode of the fine-tuned model, likelihood lost ({TUNED} on {data})"
        found.append(replace(_gap(what, nll[TUNED, FULL], nll[BASE, FULL], "below"), decides=False))
    return found


def positions() -> Findings:
    """Compare fine-tuning without position re-encoding with it, at the end of both runs: KL from full attention."""
    runs = {name: _run(name) for name in ("naive", "block")}
    if not all(runs.values()):
        return []
    ours, theirs = (runs[name][-1]["block"] | {"n": runs[name][-1]["n"]} for name in ("naive", "block"))
    return [_apart(f"without position re-encoding against with it (KL, {BASE})", ours, theirs, "kl", "above")]


def tuning() -> Findings:
    """Read both modes before and after fine-tuning from the held-out questions of the run."""
    scores = _run("block")
    if not scores:
        return []
    found = []
    ends: list[tuple[dict[str, Any], Side]] = [(scores[0], "above"), (scores[-1], "below")]
    for row, side in ends:
        what = f"block mode at step {row['step']:,}, likelihood lost ({BASE})"
        middle, low, high = (row["block"][f"nll_gap{end}"] for end in ("", "_low", "_high"))
        found.append(Finding(what, middle, low, high, row["n"], "real", side, 0.0, "+.3f"))
    return found


def _run(name: str) -> list[dict[str, Any]]:
    """Return {step, n, full, block} of every evaluation of a run, both modes with {kl, nll_gap} and their ends."""
    rows = shipped("counts", "training")
    positions = "naive" if name == "naive" else "re-encoded"
    own = rows[(rows.model == BASE) & (rows.positions == positions) & rows.measure.isin(["kl", "nll_extra"])]
    found = []
    for step, at in own.groupby("at"):
        modes = {
            mode: {
                f"{ {'kl': 'kl', 'nll_extra': 'nll_gap'}[row['measure']] }{end}": row[column]
                for row in part.to_dict("records")
                for end, column in (("", "value"), ("_low", "low"), ("_high", "high"))
            }
            for mode, part in at.groupby("kind")
        }
        found.append({"step": int(step), "n": int(at.n.max()), **modes})
    return found


def _gap(what: str, one: list[float], other: list[float], side: Side) -> Finding:
    got = difference(one, other)
    return Finding(what, got.mean, got.low, got.high, got.n, "real", side, 0.0, "+.3f")


def _apart(what: str, one: Mapping[str, Any], other: Mapping[str, Any], loss: str, side: Side) -> Finding:
    """Compare two means with intervals of their own, unpaired."""
    middle = one[loss] - other[loss]
    below = np.hypot(one[loss] - one[f"{loss}_low"], other[f"{loss}_high"] - other[loss])
    above = np.hypot(one[f"{loss}_high"] - one[loss], other[loss] - other[f"{loss}_low"])
    n = min(one["n"], other["n"])
    return Finding(what, middle, float(middle - below), float(middle + above), n, "real", side, 0.0, "+.3f")


def _losses(loss: str) -> list[tuple[str, Losses]]:
    """Return the data sets that both models were measured on, with both modes' losses on the same questions."""
    rows = real_questions()
    wanted = [(model, trial) for model in (BASE, TUNED) for trial in (FULL, BLOCK)]
    chosen = rows[rows.model.isin([BASE, TUNED]) & rows.trial.isin([FULL, BLOCK]) & (rows.passages == 10)]
    found: list[tuple[str, Losses]] = []
    for data, of_data in chosen.groupby("data", observed=True, sort=True):
        columns = of_data.pivot_table(index="id", columns=["model", "trial"], values=loss, observed=True)
        if set(wanted) <= set(columns.columns) and len(both := columns[wanted].dropna()) >= LEAST:
            found.append((str(data), {key: both[key].astype(float).tolist() for key in wanted}))
    return found
