"""Writes notes.md, the notes on kernels: every number in it comes out of a committed report of this folder.

    python data/benchmarks/notes.py         writes data/benchmarks/notes.md, and the tables of the README

Bars and goals are set in BARS; predictions are the rows of experiment "prediction": lines of predictions.md that were
committed before the time they are about.
"""

from dataclasses import dataclass
from functools import cache

import headline
import pandas as pd
from headline import markdown

from workbench.core.utils.files import write_text
from workbench.experiments import bench_reports
from workbench.metrics.latency import STAGES
from workbench.results import expanded, read
from workbench.results.reader import FOLDER

NOTES = FOLDER / "notes.md"
OURS = "ours"
TEXT = (FOLDER / "notes.text.md").read_text()

SANITIZER = {
    "memcheck": "memcheck found errors: {}.",
    "racecheck": "racecheck names hazards in {}: it does not follow the memory barriers by which warps hand tiles on, "
    "and in the compiled kernels for Hopper each arrival at one stands behind a barrier of the warps that wrote.",
}


@dataclass(frozen=True)
class Bar:
    """What a kernel or a model is held to: so many times as fast as a baseline on one workload."""

    report: str
    work: str
    against: str  # how the name of the baseline begins
    bar: float
    goal: float
    who: str = OURS

    @property
    def name(self) -> str:
        return f"`{self.report}`: {self.work}" + (f" ({self.who})" if self.who != OURS else "")


FULL_PREFILL, PREFIX = "transformers, full prefill", "transformers, ready prefix cache"
BARS = (
    Bar("q_sparse_attention", "15% of 32K rows + 50", "flex", 1.15, 1.4),
    Bar("q_sparse_attention", "15% of 32K rows + 50", "flashinfer", 4.5, 5.5),
    Bar("question_attention", "50 rows of 1 over 32K, moved", "flash", 2.5, 3.5),
    Bar("question_attention", "50 rows of 1 over 128K, moved", "flash", 2.5, 3.5),
    Bar("tile_attention", "dense, 32K", "flex", 1.05, 1.3),
    Bar("tile_attention", "dense, 32K", "flashinfer", 0.98, 1.03),
    Bar("choose_bfla", "choice and attention, 128K, tiles of 128", "flashinfer", 4.5, 6),
    Bar("tile_attention", "15% of tiles, 128K", "flex", 1.1, 1.4),
    Bar("choose_flash_prefill", "choice and attention, chunk of 1024, 25% of 128K pages", "cudnn", 2.8, 3.3),
    Bar("choose_flash_prefill", "choice and attention, chunk of 1024, 10% of 128K pages", "cudnn", 7.5, 8.5),
    Bar("choose_xattention", "32K, stride 16", bench_reports.FEEDS, 5, 8.3, "ours, float8"),
    Bar("choose_xattention", "128K, stride 16", bench_reports.FEEDS, 5, 8.3, "ours, float8"),
    Bar("question", "50-token question over 32K cached", FULL_PREFILL, 115, 175),
    Bar("question", "50-token question over 32K cached", PREFIX, 5, 8),
    Bar("recompute", "15% of 27K computed again", FULL_PREFILL, 4.5, 6),
    Bar("prefill", "128K at once, BFLA at 15%", "transformers, dense", 3.0, 3.3),
    Bar("prefill", "128K at once, BFLA at 15%", "ours, dense", 2.6, 2.8),
    Bar("encode", "32K encoded as 64 blocks", FULL_PREFILL, 1.8, 2.0),
    Bar("decode", "a token of each of 8 over 32K", "transformers", 3, 6),
)


def measured(rows: pd.DataFrame, bar: Bar) -> str:
    """Return how many times as fast ours is as the fastest baseline of a bar; why not, where it was not measured.

    Recomputed rows are held to their bar with the choice of them in the time.
    """
    timed = rows[(rows.report == bar.report) & (rows.work == bar.work) & rows.ms.notna()]
    ours, others = timed[timed.who == bar.who], timed[timed.who.str.startswith(bar.against)]
    if ours.empty or others.empty:
        return "not measured"
    ratio = float(others.ms.min() / ours.ms.iloc[0])
    if bar.report == "recompute" and "choice" not in ours["shape"].iloc[0]:
        return f"not measured with the choice; random rows, no choice: {ratio:.3g}"
    return f"{ratio:.3g}" if ratio >= bar.bar else f"**{ratio:.3g}**"


def bars(rows: pd.DataFrame) -> str:
    """Tabulate BARS; what is below its bar is set in bold."""
    cells = [[bar.name, bar.against, f"{bar.bar:g}", f"{bar.goal:g}", measured(rows, bar)] for bar in BARS]
    return markdown(["work", "baseline", "bar", "goal", "measured"], cells)


def floors(rows: pd.DataFrame) -> str:
    """Tabulate what every workload cannot do without, and the floor that its report's ceilings set."""
    cells = []
    for (report, work), of_work in rows.groupby(["report", "work"], sort=False):
        r = of_work.iloc[0]
        counts = [f"{r.bytes / 1e9:.3f}", f"{r.flops / 1e12:,.4g}", f"{r.intensity:,.0f}", f"{r.floor_ms:,.4g}"]
        cells.append([f"`{report}`: {work}", *counts])
    return markdown(["work", "GB", "TFLOP", "FLOP/B", "floor, ms"], cells)


def times(rows: pd.DataFrame) -> str:
    """Tabulate the median of every candidate on every workload, its share of the roof, and what was predicted."""
    cells = []
    for r in rows.dropna(subset=["ms"]).itertuples():
        share = f"{r.share:.0%}" if r.who.startswith(OURS) and not pd.isna(r.share) else ""
        cells.append([f"`{r.report}`: {r.work}", r.who, predicted(r.report, r.work, r.who), f"{r.ms:,.4g}", share])
    return markdown(["work", "who", "predicted, ms", "median, ms", "of the roof"], cells)


def choices(rows: pd.DataFrame) -> str:
    """Tabulate what a choice takes of the attention that it feeds."""
    cells = []
    for (report, work), of_work in rows.dropna(subset=["ms"]).groupby(["report", "work"], sort=False):
        by = of_work.set_index("who").ms
        if OURS in by and bench_reports.FEEDS in by:
            cells.append([f"`{report}`: {work}", f"{by[OURS] / by[bench_reports.FEEDS]:.0%}"])
    return markdown(["choice", "of the attention it feeds"], cells)


def stages() -> str:
    """Tabulate where the time of a prefill goes: stages.json, in milliseconds."""
    counts = expanded(read().counts("stages"), "length")
    cells = []
    for method, rows in counts.groupby("method", sort=False):
        row, value = rows.iloc[0], rows.set_index("measure").value
        way = str(method).removesuffix(f", {value['density']:.0%} kept")
        cells.append([way, f"{value['density']:.0%}", *(f"{value[name] * 1e3:,.1f}" for name in STAGES)])
    about = f"{row.model}, {row.length:,.0f} tokens, {row.device}, medians of {row.n:.0f}, milliseconds."
    return f"{about}\n\n{markdown(['method', 'of the pairs', *STAGES.values()], cells)}"


def memory(checks: pd.DataFrame) -> str:
    """Say what compute-sanitizer's tools found: counts of experiment "sanitizer"; no value: it did not end."""
    said = []
    for tool, wrong_words in SANITIZER.items():
        rows = checks[checks.method == tool]
        ended = rows[rows.value.notna()]
        wrong = ended[ended.value > 0]
        odd = [f"`{r.kind}`" + f" ({r.value:,.0f})" * (tool == "memcheck") for r in wrong.itertuples()]
        late = [f"`{name}`" for name in rows[rows.value.isna()].kind]
        if clean := ", ".join(f"`{name}`" for name in ended[ended.value == 0].kind):
            said.append(f"{tool} found no error over the cases of {clean}.")
        said.append(wrong_words.format(", ".join(odd)) if odd else "")
        said.append(f"{tool} did not come to its end: {', '.join(late)}." if late else "")
    return " ".join([f"compute-sanitizer on one {checks.device.iloc[0]}:", *filter(None, said)])


@cache
def predictions() -> dict[tuple[str, str, str], str]:
    """Return what was predicted of (report, workload, candidate) before it was measured."""
    rows = expanded(read().counts("prediction"), "report", "work", "who", "text")
    return {(r.report, r.work, r.who): r.text for r in rows.itertuples()}


def predicted(report: str, work: str, who: str) -> str:
    """Return what was predicted of a candidate before it was measured; else a dash."""
    return predictions().get((report, work, who), "–")


def notes() -> str:
    """Return the notes: the text of notes.text.md with its tables in their places."""
    reports = bench_reports.of_first_gpu(bench_reports.reports())
    roof, rows = reports.roof(), reports.rows
    parts = {
        "gpu": f"{reports.gpu}; medians of what its reports measured: a matrix product {roof.product / 1e12:.0f} "
        f"TFLOP/s, a device copy {roof.copy / 1e12:.2f} TB/s.",
        "bars": bars(rows),
        "floors": floors(rows),
        "times": times(rows),
        "choices": choices(rows),
        "stages": stages(),
        "memory": memory(read().counts("sanitizer")),
    }
    text = TEXT
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


if __name__ == "__main__":
    write_text(NOTES, notes())
    headline.write()
