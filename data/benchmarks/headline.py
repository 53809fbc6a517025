"""The measured tables of the README: every number comes from a committed report or table in this folder.

python data/benchmarks/headline.py         writes them into README.md, between BEGIN and END
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from workbench import results as tables
from workbench.core.utils.files import write_text
from workbench.metrics.latency import ratio
from workbench.results.reader import FOLDER
from workbench.results.summary import over_seeds

README = FOLDER.parents[1] / "README.md"
FOLDED = "<details><summary>{says}</summary>\n\n{table}\n\n</details>"
BEGIN, END = "<!-- measured: python data/benchmarks/headline.py -->\n", "<!-- end of what was measured -->"
OURS = "ours"
RATIO = 0.15


@dataclass(frozen=True)
class Line:
    """A workload of a report and its baseline: all candidates whose name begins with `against`.

    `note` says why the ratio is expected from the work itself, or that the two do different work. `mine` is our
    candidate; `first`: the line is also shown above the folded tables.
    """

    says: str
    report: str
    work: str
    against: str | tuple[str, ...]
    note: str = ""
    mine: str = OURS
    first: bool = False


FULL, PREFIX = "transformers, full prefill", "transformers, ready prefix cache"
REUSED, HELD = (
    "first token of a 50-token question over 32K tokens of cached blocks",
    "50-token question over 32K cached",
)
METHODS_TIMED, SHORTER = "methods", "{} tokens at once, BFLA at 15% or its least"
SPARSE = "prefill of 128K over the 15% of key tiles that BFLA keeps"
LINES = (
    Line(REUSED, "question", HELD, FULL, "expected: 50 of 32K tokens are computed"),
    Line(REUSED, "question", HELD, PREFIX, first=True),
    Line(
        "the same over 27K, 15% of it chosen and recomputed",
        "recompute",
        "15% of 27K computed again",
        FULL,
        "expected",
        first=True,
    ),
    Line(
        "the same, chosen by the answer-guided rule, whose KL on Natural Questions is the least of a table below",
        "recompute",
        "15% of 27K computed again",
        FULL,
        "expected",
        "ours, answer-guided",
    ),
    Line(
        "15% of 27K charged, its choice counted, beside our own full prefill",
        METHODS_TIMED,
        "length 27698",
        "ours, full prefill",
        "expected",
        "ours, 15%",
    ),
    Line("full prefill of 32K, nothing reused", "prefill", SHORTER.format("32K"), "transformers", mine="ours, dense"),
    Line(SPARSE, "prefill", "128K at once, BFLA at 15%", "transformers", first=True),
    Line(SPARSE, "prefill", "128K at once, BFLA at 15%", "ours, dense"),
    Line("prefill of 2K over the key tiles that BFLA keeps", "prefill", SHORTER.format("2K"), "ours, dense"),
    Line(
        "a token for each of 8 requests over one shared 32K", "decode", "a token of each of 8 over 32K", "transformers"
    ),
    Line("attention of 15% of 32K rows, scattered", "q_sparse_attention", "15% of 32K rows + 50", "flex"),
    Line("attention of 15% of 32K rows, scattered", "q_sparse_attention", "15% of 32K rows + 50", "flashinfer"),
    Line("dense attention, 32K", "tile_attention", "dense, 32K", ("cudnn", "flashinfer"), first=True),
    Line("dense attention, 128K", "tile_attention", "dense, 128K", ("cudnn", "flashinfer")),
    Line(
        "32K tokens encoded as 64 blocks",
        "encode",
        "32K encoded as 64 blocks",
        "transformers",
    ),
    Line(
        "attention within 64 blocks of different lengths",
        "encode_blocks",
        "64 blocks of different lengths",
        ("cudnn", "flash"),
    ),
)
METHODS = {  # name in the table: preprocessing and selector of a method; at RATIO, or at a charged share (CHARGED)
    "blocks cached independently": ("independent", "none"),
    "Full Reuse": ("after_system", "none"),
    "KV Packet, 16 trained soft tokens a passage": ("packet", "none"),
    "CacheBlend": ("after_system", "kv_deviation"),
    "ProphetKV": ("independent", "prophet_kv"),
    "FusionRAG's choice alone": ("after_system", "query_guided"),
    "ours, answer-guided, blocks cached independently": ("independent", "answer_guided"),
    "FusionRAG, 10 neighbours": ("with_neighbours(n=10, search=exact)", "query_guided"),
    "its choice over all layers, 10 neighbours": ("with_neighbours(n=10, search=exact)", "query_guided(layers=all)"),
    "ours, answer-guided, 10 neighbours": ("with_neighbours(n=10, search=exact)", "answer_guided"),
}
CHARGED = "prophet_kv"  # measured within budgets only
READER, HELD_OUT, PASSAGES = "smollm2-reader", "nq-held", 10
ASKED = {HELD_OUT: "Natural Questions", "manuals-test": "manuals"}  # data sets of the second table
ANSWERED = {
    **{name: method for name, method in METHODS.items() if method[1] != "answer_guided" and method[0] != "packet"},
    "its 10 neighbours alone": ("with_neighbours(n=10, search=exact)", "none"),
    "1 neighbour alone": ("with_neighbours(n=1, search=exact)", "none"),
    "Cache-Craft's choice, 10 neighbours": ("with_neighbours(n=10, search=exact)", "inter_attention"),
    "full attention": ("independent", "none"),
}
# Methods that are mentioned above the tables.
PLAIN, PREPARED = "blocks cached independently", "FusionRAG, 10 neighbours, 15% recomputed"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def milliseconds(time: float) -> str:
    """Format milliseconds with three significant digits, or as an integer."""
    return f"{time:,.0f} ms" if time >= 100 else f"{time:.3g} ms"


def speed(rows: pd.DataFrame, lines: Sequence[Line] = LINES) -> str:
    """Tabulate lines: medians in milliseconds, and our speedup over the fastest such baseline.

    With the ratio's interval, and the smaller number of runs of the two sides.
    """
    cells = []
    for line in lines:
        timed = rows[(rows.report == line.report) & (rows.workload == line.work)]
        ours, others = timed[timed.candidate == line.mine], timed[timed.candidate.str.startswith(line.against)]
        if ours.empty or others.empty:
            continue
        mine, best = ours.iloc[0], others.loc[others.ms.idxmin()]
        times, low, high = ratio(best.to_dict(), mine.to_dict())
        ends = f"{low:.3g} to {high:.3g}, {min(mine.runs, best.runs):.0f} runs"
        file = "methods@gpu" if line.report == METHODS_TIMED else f"bench@{line.report}"
        report = f"[`{line.report}`](data/benchmarks/timings/{file}.parquet)"
        cells.append(
            [
                line.says,
                milliseconds(mine.ms),
                f"{best.candidate}: {milliseconds(best.ms)}",
                f"**{times:.3g}×** ({'; '.join(filter(None, (ends, line.note)))})",
                report,
            ]
        )
    return markdown(["work", "this work", "fastest baseline", "speedup", "report"], cells)


def over_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at RATIO in the setting that most training runs share."""
    seeds = rows.groupby("setting").training_seed.transform("nunique")
    return rows[(seeds == seeds.max()) & (rows.ratio == RATIO)]


def answered() -> tuple[str, str]:
    """Return a sentence and a table of a reader's scores over training runs, and the loss against full attention."""
    found = tables.read()
    told = found.answers("trial")
    asked = (told.model == READER) & (told.data == HELD_OUT) & (told.passages == PASSAGES)
    told = over_runs(told[asked & (told.positions == "re-encoded")])
    keys = ["training_seed", "question"]
    full = told[told["mode"] == "full"].set_index(keys).em
    told = told.assign(lost=told.em - told.set_index(keys).index.map(full))
    by = ["mode", "prepare", "select"]
    scored = {measure: over_seeds(told, measure, by).set_index(by) for measure in ("em", "contains", "f1", "lost")}
    same = "model == @READER and data == @HELD_OUT and passages == @PASSAGES"
    charged = found.counts("trial").query(f"{same} and measure == 'rows_charged'")
    spent = over_runs(charged).groupby(by).value.mean()
    cells = []
    for name, (prepare, select) in ANSWERED.items():
        key = ("full" if name == "full attention" else "block", prepare, select)
        if key not in scored["em"].index:
            continue
        ends = [scored[measure].loc[key] for measure in scored]
        marks = ["{:.1%} ({:.1%} to {:.1%})", "{:.1%}", "{:.1%}", "{:+.1f} points ({:+.1f} to {:+.1f})"]
        scales = (1, 1, 1, 100)
        texts = [
            mark.format(one.value * scale, one.low * scale, one.high * scale)
            for mark, one, scale in zip(marks, ends, scales, strict=True)
        ]
        texts[-1] = "0" if key[0] == "full" else texts[-1]
        share = "" if select == "none" else f", {RATIO:.0%} recomputed"
        cells.append([name + share, *texts, f"{spent[key]:,.0f}"])
    head = ["method", "exact match (95%)", "contains an alias", "F1", "difference from full attention (95%)"]
    one = scored["em"].iloc[0]
    lost = {row[0]: row[-2] for row in cells}
    short = (
        f"Exact match of `{READER}` on {one.n:.0f} held-out questions of Natural Questions, beside full attention: "
        f"{lost[PLAIN]} with {PLAIN}, {lost[PREPARED]} with {PREPARED}."
    )
    return short, (
        f"### How much answer quality is lost\n\n`{READER}` (SmolLM2-135M-Instruct, fine-tuned under full attention to "
        f"answer from ten passages) on {one.n:.0f} held-out questions of Natural Questions: "
        f"means over {one.seeds:.0f} training runs.\n\n"
        f"{markdown([*head, 'tokens computed'], cells)}\n\n"
        "Intervals are Student's over training runs, no narrower than that over the questions of one. "
        "`data/benchmarks/smollm2_reader.sh` trains, "
        "[plans/reader-fusion.toml](data/benchmarks/plans/reader-fusion.toml) measures.\n\n"
    )


def trials() -> pd.DataFrame:
    """Return one reader's results against full attention: one row per method and data set of ASKED."""
    counts = tables.read().counts("trial")
    asked = (counts.model == READER) & counts.data.isin(ASKED) & (counts.passages == PASSAGES)
    asked &= counts.training_seed == 0  # the shipped run
    plain = (counts[["sparse", "correct", "attend"]] == "none").all(axis=1)
    rows = tables.expand_settings(tables.scores(counts[asked & plain & (counts.kind == "all")]), "charged")
    alike = rows.setting == rows.setting.mode()[0]  # equal batch sizes: others round differently
    rows = rows[alike | (rows.prepare == "packet") | ((rows["select"] == CHARGED) & (rows.charged == RATIO))]
    return rows[rows.kl.notna()].drop_duplicates(["data", "mode", "positions", "prepare", "select", "ratio"])


def quality(rows: pd.DataFrame) -> str:
    """Tabulate METHODS on each data set: answers, distance from full attention's predictions, tokens computed.

    Tables are folded below one line: exact match of full attention, and the range over cached blocks.
    """
    reused = rows[(rows["mode"] == "block") & (rows.positions == "re-encoded")]
    head = ["method", "exact match (95%)", "contains an alias", "F1", "KL from full attention (95%)"]
    head += ["gold answer's likelihood lost (95%)", "tokens computed"]
    folded = []
    for data, label in ASKED.items():
        cells, scores = [], []
        for name, (prepare, select) in METHODS.items():
            chosen = reused[(reused["data"] == data) & (reused.prepare == prepare) & (reused["select"] == select)]
            share = "" if select == "none" else f", {RATIO:.0%} {'charged' if select == CHARGED else 'recomputed'}"
            for _, row in chosen[(select in ("none", CHARGED)) | (chosen.ratio == RATIO)].iterrows():
                ends = [f"{row[m]:.3f} ({row[f'{m}_low']:.3f} to {row[f'{m}_high']:.3f})" for m in ("kl", "nll_extra")]
                cells.append([name + share, *_scored(row), *ends, f"{row.rows_charged:,.0f}"])
                scores.append(row.em)
        for _, row in _full(rows[rows["data"] == data]).iterrows():
            cells.append(["full attention", *_scored(row), "0", "0", f"{row.rows_charged:,.0f}"])
            says = f"<b>{label}</b>: {row.em:.1%} of the answers are exact under full attention, "
            says += f"{min(scores):.1%} to {max(scores):.1%} over cached blocks"
            folded.append(FOLDED.format(says=says, table=markdown(head, cells)))
    return "\n\n".join(folded)


def _full(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["mode"] == "full") & (rows["sparse"] == "none")]


def _scored(row: "pd.Series[float]") -> tuple[str, str, str]:
    return f"{row.em:.1%} ({row.em_low:.1%} to {row.em_high:.1%})", f"{row.contains:.1%}", f"{row.f1:.1%}"


def about(rows: pd.DataFrame) -> str:
    """Describe the measurement: the model with its own description, questions, seed and device."""
    full = _full(rows)
    one, asked = full.iloc[0], json.loads(full.setting.iloc[0])
    tokens = asked["max_new_tokens"]
    sets = [f"{row.n:,.0f} questions of {ASKED[str(row['data'])]}" for _, row in full.iterrows()]
    return (
        f"`{one.model}`, training run {one.training_seed:.0f}, on {', '.join(sets)}: seed {one.seed:,.0f}, "
        f"{one.passages:.0f} passages, {one.device}. Predictions are compared along full attention's own answers, of "
        f"{tokens} tokens at most, in nats a token"
    )


def touched() -> str:
    """Return the prompt editor's response times, on every model timed."""
    shown = tables.read().timings("touch")
    times = shown[shown.candidate == "shown"].groupby("model", sort=False).ms
    texts = [f"{milliseconds(ms.min())} to {milliseconds(ms.max())} on {model}" for model, ms in times]
    return " and ".join(texts)


def measured() -> str:
    """Return both tables, each with how it was measured, and the prompt editor's response times."""
    found, real = tables.read(), trials()
    methods = (
        found.timings("methods").assign(report=METHODS_TIMED).replace({"candidate": {"full": "ours, full prefill"}})
    )
    timed = pd.concat([tables.expand_settings(found.timings("bench"), "report"), methods], ignore_index=True)
    gpu = timed.device.iloc[0]
    short, answers = answered()
    return (
        f"One {gpu}, bf16, Llama-3.1-8B's shape with random weights; medians, of one process a workload.\n\n"
        f"{speed(timed[timed.device == gpu], [line for line in LINES if line.first])}\n\n{short}\n\n"
        "<details><summary><b>All tables</b>, each with its device, model and questions</summary>\n\n"
        f"### How much sooner\n\n{speed(timed[timed.device == gpu])}\n\n"
        "A speedup's interval is the slow end of one side over the fast end of the other (5% to 95% of the runs, or "
        "all of them where they are few). Where whole requests are answered, this work replays captured CUDA graphs "
        "and transformers runs eagerly. `workbench bench question` measures the first report, and so on. "
        "Notebook 11 draws every workload, [notes.md](data/benchmarks/notes.md) says what was tried.\n\n"
        f"{answers}### How far predictions move\n\n{about(real)}.\n\n{quality(real)}\n\n"
        "The plans [data/benchmarks/plans](data/benchmarks/plans) measure it, notebook 12 shows it.\n\n"
        "### How soon the prompt editor answers\n\nOn two threads of a CPU, the answer to a change of ratio, selector, "
        f"order or word begins after {touched()} (medians; [touch.py](data/benchmarks/touch.py)).\n\n"
        "</details>\n"
    )


def renewed(text: str) -> str:
    """Return the README's text with both tables updated."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{measured()}\n{END}{tail}"


def write() -> None:
    """Write both tables into the README."""
    write_text(README, renewed(README.read_text()))


if __name__ == "__main__":
    write()
