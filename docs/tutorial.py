"""Pictures for docs/tutorial.md and the guide: two of one prompt under lab-full, the others of shipped results.

python docs/tutorial.py [FOLDER]        writes SVG files there; needs Chromium
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from picture import with_palette

from workbench import data, models, results
from workbench.app.console.verify_page import verification_html
from workbench.app.leaderboard.page import page
from workbench.app.reports.figure_files import write_figure
from workbench.app.reports.thumbnail import screenshot
from workbench.core.masks import block_attention, causal
from workbench.data.prompt_view import of_sample
from workbench.engine.assembly import assemble
from workbench.experiments.leaderboard.ranking import boards
from workbench.experiments.trials.record import device_name
from workbench.experiments.trials.verification import verify_model
from workbench.methods import prepare
from workbench.metrics.kv.kv_deviation import context_gaps, full_attention_kv
from workbench.plots.attention.masks import compare_masks
from workbench.plots.kv.deviation import token_map
from workbench.plots.marks import chart, table, theme
from workbench.plots.marks.method_names import sparse_look, with_method_names
from workbench.plots.marks.styles import BASELINES, SCHEDULERS, SELECTORS
from workbench.results import expand_settings
from workbench.store import MemoryStore

for module in (chart, table, theme):
    module.WIDTH = 740  # px of a documentation page: figures are not scaled down

FOLDER = Path(__file__).parent / "_static" / "tutorial"
MODEL, DATA = "smollm2-reader", "nq-held"  # in the shipped results
PRETRAINED = "smollm2"  # model whose sparse prefill is compared with random tiles
PREPARED = {
    "independent": "alone",
    "after_system": "behind the system prompt",
    "with_neighbours(n=2, search=exact)": "behind 2 similar passages",
    "with_neighbours(n=10, search=exact)": "behind 10 similar passages",
}
COMPARED = [
    "Full Reuse",
    "independent blocks",
    "10 neighbours",
    "Full Reuse + KV deviation (CacheBlend) at 15%",
    "10 neighbours + question-guided (FusionRAG) at 15%",
]
MANUALS, PUBLISHED = "manuals-test", ("full", "block", "full-reuse", "prompt-cache", "superposition", "link0", "mepic")
KL = "KL from full attention (nats a token)"


def of_a_prompt() -> Iterator[tuple[str, go.Figure | None]]:
    """Yield masks and deviation of one prompt."""
    model, tokenizer, layout = models.load("lab-full")
    (sample,) = data.load("lab", 1, 4, 6)
    view = of_sample(sample, "a sample of lab (seed 4)", tokenizer, layout)
    rules = {"Full attention": causal, "Blocks cached independently": block_attention(view.prompt)}
    yield "masks", compare_masks(rules, view, cached=[], own="")
    cached = prepare.from_spec("independent")(model, [view.prompt], MemoryStore(1 << 30))
    kv = assemble(model, view.prompt, *cached)
    gaps = context_gaps([kv], [full_attention_kv(model, view.prompt)], [view.prompt])
    yield "between", token_map({"cached alone": gaps[0]}, view, about=f"lab-full, {device_name(model.device)}")


def of_results() -> Iterator[tuple[str, go.Figure | None]]:
    """Yield figures of shipped results, one per step."""
    found = results.read()
    counts = found.counts("trial")
    counts = counts[(counts.model == MODEL) & (counts.data == DATA) & (counts.kind == "all") & (counts.passages == 10)]
    counts = counts[(counts[["sparse", "correct", "attend"]] == "none").all(axis=1) & (counts.training_seed == 0)]
    counts = counts.drop_duplicates(["mode", "positions", "prepare", "select", "ratio", "measure"])
    reuse = counts[counts["mode"] == "block"]
    alone = reuse[(reuse["select"] == "none") & (reuse.prepare == "independent") & (reuse.positions != "naive")]
    full = counts[(counts["mode"] == "full") & (counts.measure == "rows_charged")].assign(name="full attention")
    both = pd.concat([full, alone[alone.measure == "rows_charged"].assign(name="cached blocks reused")])
    yield "computed", chart.bars(both, y="name", axis="tokens computed for a request", title="What a request computes")

    kl = reuse[reuse.measure == "kl"]
    yield "positions", _positions(found)
    chosen = kl[(kl.prepare == "after_system") & kl["select"].isin(["random", "kv_deviation", "answer_guided"])]
    yield (
        "ratio",
        chart.lines(
            chosen,
            x="ratio",
            by="select",
            look=SELECTORS.of,
            x_axis={"title_text": "share of the passage tokens recomputed", "tickformat": ".0%"},
            y_axis=KL,
            title="What recomputing a few tokens gives back",
            caption="Bands: 95% intervals.",
        ),
    )
    prepared = kl[(kl.positions != "naive") & kl.prepare.isin(PREPARED) & kl["select"].isin(["none", "answer_guided"])]
    prepared = prepared[(prepared["select"] == "none") | ((prepared.ratio - 0.15).abs() < 0.005)]
    yield (
        "preprocessing",
        chart.dot_plot(
            prepared.assign(name=pd.Categorical(prepared.prepare.map(PREPARED), PREPARED.values(), True)).sort_values(
                "name"
            ),
            y="name",
            by="select",
            look=SELECTORS.of,
            axis=KL,
            title="What a passage was cached behind",
            caption="Answer-guided: 15% recomputed. 95% intervals.",
        ),
    )
    yield "sparse", _sparse(found)
    yield "buys", _times(found)


def _positions(found: results.Results) -> go.Figure | None:
    answers = found.answers("trial")
    alone = answers[(answers[["select", "sparse", "correct", "attend"]] == "none").all(axis=1) & answers.kl.notna()]
    alone = alone[(alone["mode"] == "block") & (alone.prepare == "independent") & (alone.positions != "shared")]
    by = ["source", "model", "data", "positions"]
    alone = alone[alone.model == MODEL].drop_duplicates([*by, "question"])
    gaps = results.paired_differences(alone, lambda rows: rows.positions == "re-encoded", "kl", by, within=by[:3])
    gaps = gaps[gaps.positions == "naive"]
    return chart.dot_plot(
        gaps.assign(name="questions of " + gaps.data).sort_values("value"),
        y="name",
        axis="KL as cached, less that of re-encoded keys: nats a token",
        level=0,
        title="Keys left as they were cached",
        caption="Paired bootstrap 95% intervals.",
    )


def _sparse(found: results.Results) -> go.Figure | None:
    counts = with_method_names(found.counts("trial"))
    told = (counts.model == PRETRAINED) & (counts.kind == "all")
    kept = counts[told & counts.rule.isin(["bfla", "xattention", "random"])]
    kept = results.most_frequent(
        results.with_trial_measure(kept[kept.measure.isin(["kl", "density"])], "density"), "data"
    )
    return chart.lines(
        kept[kept.measure == "kl"],
        x="density",
        by="rule",
        look=sparse_look,
        x_axis={"title_text": "share of query-key pairs computed", "tickformat": ".0%"},
        y_axis=KL,
        title="Attending to a part of the tiles",
        caption="Bands: 95% intervals.",
    )


def _times(found: results.Results) -> go.Figure | None:
    bench = expand_settings(found.timings("bench"), "report", "context", "tokens")
    asked = bench[(bench.report == "question") & bench.candidate.str.match(r"ours$|transformers")]
    asked = asked[asked.workload == asked.workload.iloc[-1]]
    names = asked.candidate.map(BASELINES.name_of).where(asked.candidate != "ours")
    return chart.dot_plot(
        asked.assign(value=asked.ms, low=asked.p5, high=asked.p95, name=names.fillna("cached blocks (this workbench)")),
        y="name",
        panels={"": {"title": "", "axis": "milliseconds to the first token", "log": True}},
        title=f"Time to the first token: {asked.workload.iloc[0]}, an 8B shape on one GPU",
    )


def of_guides() -> Iterator[tuple[str, go.Figure | None]]:
    """Yield the figures that the guide's commands draw from shipped results."""
    found = results.read()
    answers, by = with_method_names(found.answers("trial")), ["source", "model", "data", "name", "select"]
    asked = (answers.model == MODEL) & (answers.data == DATA) & (answers.passages == 10) & (answers.training_seed == 0)
    asked = answers[asked & answers.kl.notna() & answers.name.isin(COMPARED)].drop_duplicates([*by, "question"])
    gaps = results.paired_differences(asked, lambda rows: rows.name == COMPARED[0], "kl", by, within=by[:3])
    yield (
        "compare",
        chart.dot_plot(
            gaps.sort_values("value"),
            y="name",
            by="select",
            look=SELECTORS.of,
            axis="KL less that of Full Reuse, nats a token",
            level=0,
            title="Differences from Full Reuse, question by question",
            caption="Paired bootstrap 95% intervals.",
        ),
    )
    scores = results.scores(found.counts("trial"))
    of_one = (scores.model == MODEL) & (scores.data == MANUALS) & (scores.kind == "all") & scores.method.isin(PUBLISHED)
    yield (
        "scores",
        chart.dot_plot(
            scores[of_one].drop_duplicates("method").sort_values("em"),
            x="em",
            y="method",
            percent=True,
            title="Exact match",
        ),
    )
    replays = found.counts("replay")
    load = replays[replays.setting == replays.setting.iloc[0]]
    panels = {
        "ttft_ms": {"title": "time to the first token", "y_axis": "milliseconds", "y_log": True},
        "idle": {"title": "engine idle", "y_axis": "share of the time", "percent": True},
    }
    yield (
        "serving",
        chart.lines(
            results.over_draws(load, ["source", "model", "device", "setting", "method", "measure", "at"]),
            x="at",
            by="method",
            panel="measure",
            panels=panels,
            look=SCHEDULERS.of,
            x_axis="requests a second",
            title="Modes of the scheduler under load",
            lines=2,
        ),
    )
    tiers = found.timings("tiers").rename(columns={"p5": "ms_low", "p95": "ms_high", "runs": "n"})
    tiers = tiers.assign(tokens=tiers.workload.astype(float))
    yield (
        "tiers",
        chart.lines(
            tiers[tiers.model == tiers.model.iloc[-1]],
            x="tokens",
            y="ms",
            by="candidate",
            x_axis="tokens of the prompt",
            y_axis="milliseconds",
            y_log=True,
            title="Time to the first token by where blocks are",
            lines=3,
        ),
    )


def verified() -> str:
    """Return the page of `workbench verify --html` for lab-full."""
    loaded = models.load("lab-full")
    return verification_html(
        verify_model(loaded.model, loaded.layout.prompts(data.load("lab", 3, 0, 6), loaded.tokenizer), "lab-full")
    )


def slim(svg: str) -> str:
    """Return the SVG without invisible parts: empty groups, unused clip paths, full opacity."""
    while svg != (svg := re.sub(r'<g(?: class="[^"]*")?(?: clip-path="[^"]*")?(?:/>|></g>)', "", svg)):
        pass
    svg = re.sub(r"(?<![\w-])(?:stroke-|fill-)?opacity: 1; ?", "", svg)
    svg = re.sub(
        r"rgb\((\d+), (\d+), (\d+)\)", lambda found: "#{:02x}{:02x}{:02x}".format(*map(int, found.groups())), svg
    )
    used = set(re.findall(r"url\(.?#([\w-]+)", svg))
    parts = re.compile(r'<clipPath[^>]*id="([\w-]+)"[^>]*>.*?</clipPath>')
    return parts.sub(lambda found: found[0] if found[1] in used else "", svg)


def main(folder: Path = FOLDER) -> None:
    """Write every picture."""
    folder.mkdir(parents=True, exist_ok=True)
    board = boards(results.read(), (0.15,), model=MODEL, data=DATA, by="kl", published=True)[0]
    with tempfile.TemporaryDirectory() as held:
        (place := Path(held, "board.html")).write_text(page([board]), encoding="utf-8")
        screenshot(place, folder / "board.png", width=1000, height=760)
        (place := Path(held, "verified.html")).write_text(verified(), encoding="utf-8")
        screenshot(place, folder / "verified.png", width=900, height=750)
    for name in ("board.png", "verified.png"):
        (folder / name).write_bytes(with_palette((folder / name).read_bytes()))
    for name, figure in (*of_a_prompt(), *of_results(), *of_guides()):
        if figure is None:
            sys.exit(f"{name}: the shipped results hold no rows for it")
        path = write_figure(figure, folder / f"{name}.svg")
        path.write_text(slim(path.read_text()))
        print(path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
