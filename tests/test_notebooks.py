"""The shipped notebooks: how they are made, and what a run with tiny parameters leaves behind."""

import json
import re
from pathlib import Path

import made_up
import nbformat
import pandas as pd
import pytest
from papermill.inspection import inspect_notebook
from short_runs import FIGURES, NAMES, NOTEBOOKS, TINY

from workbench.app.notebooks import execution
from workbench.app.notebooks.run import NotebookRun, NotebookWorkers
from workbench.app.reports import html
from workbench.experiments.judging import claims
from workbench.experiments.latency import ttft
from workbench.results.reader import FOLDER

OWN = {"text": "Ada Kelric lives in Wilby.\n\nShe was born in Tamton.\n\nBen Orlo is a potter."}
OWN |= {"question": "Where is Ada Kelric?"}
TABLES = {
    "00_start_here": {"answers"},
    "01_masks": {"masks", "answers"},
    "02_positions": {"rounding", "families", "drift", "first_token", "angles"},
    "03_reuse": {"quality", "ttft", "cost"},
    "04_block_finetuning": {"measured", "here", "curve", "answers"},
    "06_kv_deviation": {"concentration", "places", "causes", "repair"},
    "07_critical_tokens": {"places", "agreement", "answers"},
    "08_recompute_tradeoff": {"measured", "at_ratio", "here", "answers"},
    "09_sparse_masks": {"heads", "thresholds", "rules", "union", "long"},
    "10_sparse_quality": {"measured", "thresholds", "times", "crossover", "here"},
    "11_latency": {"ttft", "cached", "ratios", "cost", "stages", "kernels"},
    "12_real_model": {"measured", "deviation", "here"},
    "15_add_a_method": {"rows", "methods"},
    "14_store": {"modes", "tiers", "timed", "served", "load", "break_even", "crossings", "poisoned"},
    "05_beyond_rag": {"icl", "icl_quality", "chat", "chat_quality", "game"},
}


@pytest.fixture(scope="module", autouse=True)
def batch(forked_workers):
    """The environment of `make report`; kernels are forked."""
    with NotebookWorkers(1) as workers, pytest.MonkeyPatch.context() as patch:
        workers.prepare()
        for name, value in workers.environment.items():
            patch.setenv(name, value)
        yield


def run(name: str, checkpoint: Path, out: Path, **parameters) -> NotebookRun:
    """One notebook as `make report` runs it; its results lie in `out`/`name`."""
    given = {"model": str(checkpoint), **TINY[name], **parameters}
    return execution.execute(at(name), out, given, cell_timeout_s=200)


def at(name: str) -> Path:
    return NOTEBOOKS[NAMES.index(name)]


def test_the_notebooks_are_there():
    assert set(NAMES) >= set(TINY)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_begins_with_title_parameters_and_validation(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.metadata.get("tags") != ["answer"]]
    title, parameters, validation = cells[:3]
    assert title.source.startswith("# ") and len(title.source.splitlines()) >= 3
    assert parameters.metadata.tags == ["parameters"]
    assert all(cell.metadata.jupyter.source_hidden for cell in (parameters, validation)), "Lab begins with the question"
    assert "notebook.validate(" in validation.source
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
    assert any("thumbnail" in cell.metadata.get("tags", []) for cell in notebook.cells)
    for name, found in inspect_notebook(str(path)).items():
        assert found["inferred_type_name"] != "None", f"{name} has no type"
        assert found["help"], f"{name} has no comment"


def finished(name: str, checkpoint: Path, out: Path, **parameters) -> tuple[dict, dict[str, pd.DataFrame]]:
    """Metrics and tables of a run; checks what every run must leave behind."""
    ended = run(name, checkpoint, out, **parameters)
    assert ended.ok, ended.message
    folder, metrics = out / name, ended.metrics["here"]
    assert metrics["seed"] == 0 and metrics["model"].endswith("tiny") and metrics["device"]
    assert all(value is not None for value in metrics.values())
    tables = {path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")}
    assert set(tables) == TABLES[name] and all(len(table) for table in tables.values())
    assert (folder / "_SUCCESS").exists() and (folder / f"{name}.html").exists()
    (line,) = re.findall(r'<p class="wb-told".*?</p>', (folder / f"{name}.html").read_text())
    assert "seed=" in line and all(f"{name}=" in line for name in parameters), "a page tells its parameters, once"
    check_figures(folder / f"{name}.ipynb", FIGURES[name])
    return dict(metrics), tables


def check_figures(executed: Path, least: int) -> None:
    """Figures that need no kernel, each with its texts; no noise, no widget state, no giant file."""
    figures = list(html.figures(executed))
    assert len(figures) >= least
    for figure in figures:
        assert figure["data"], "an empty figure"
        texts = [note["text"] for note in figure["layout"]["annotations"]]
        assert texts[-3].startswith("<b>") and texts[-1], "title, and how it was measured"
    notebook = nbformat.read(executed, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.get("name") == "stderr"], "noise in a stored notebook"
    assert "widgets" not in notebook.metadata
    assert executed.stat().st_size < 10_000_000


def test_papers_judge_every_table_and_figure(tmp_path):
    given = {"paper": "bfla", "results": [f"mine={made_up.sweep(tmp_path / 'mine')}"]}
    ended = execution.execute(at("13_papers"), tmp_path, given, cell_timeout_s=200)
    assert ended.ok, ended.message
    metrics, folder = ended.metrics, tmp_path / "13_papers"
    claiming = [item for item in claims.items() if not item.only_names]
    assert metrics["here"]["items"] == len(claiming) == sum(metrics["mine"].values())
    assert set(pd.read_parquet(folder / "claims.parquet").verdict) >= {"confirmed", "open"}
    assert "../08_recompute_tradeoff/08_recompute_tradeoff.html#cell-id=" in (folder / "13_papers.html").read_text()
    check_figures(folder / "13_papers.ipynb", FIGURES["13_papers"])


def test_a_selector_of_ones_own_stands_beside_the_others(folder, tmp_path):
    metrics, tables = finished("15_add_a_method", folder, tmp_path)
    assert set(metrics["kl"]) == set(tables["methods"]["method"]) == {"nothing recomputed", "last_tokens", "random"}


def test_store_serves_replays_and_compares(folder, tmp_path):
    metrics, tables = finished("14_store", folder, tmp_path, results=[f"mine={FOLDER}", "shipped"])
    assert sum(each >= {"mine", "shipped"} for each in sources_of(tmp_path, "14_store")) >= 9
    assert metrics["equal"] is True and 0 < metrics["hit_rate"] < 1
    assert set(tables["modes"]["mode"]) == {"sync", "request", "layer"} and set(tables["tiers"].tier) >= {"GPU", "disk"}
    assert len(set(tables["timed"].candidate)) == 5 and (tables["timed"].ms > 0).all()
    rounds = tables["served"].groupby("round")[["reused", "bytes"]].sum()
    assert rounds.reused["empty tiers"] < rounds.reused["again"] == rounds.reused["memory empty, folder full"]
    shipped = json.loads((tmp_path / "14_store" / "metrics.json").read_text())["shipped"]
    assert 0.6 < shipped["path_storage_saved"] < 0.8 and shipped["path_redundant_removed"] == 1


def test_the_first_notebook_answers_a_prompt_in_every_order_and_its_page_needs_no_kernel(folder, tmp_path):
    metrics, tables = finished("00_start_here", folder, tmp_path)
    answers = tables["answers"]
    assert metrics["orders"] == answers.order.nunique() == 2 + 2 and len(answers) == 4 * (1 + 2)
    assert 0 < metrics["flops_share"] < 1
    page = (tmp_path / "00_start_here" / "00_start_here.html").read_text()
    assert page.count("model: pageModel(data, el.id)") == 1 and "widget-view" not in page


def test_masks_show_the_readers_own_text_and_what_reuse_saves(folder, tmp_path):
    metrics, tables = finished("01_masks", folder, tmp_path, **OWN)
    assert metrics["source"] == "the reader's text" and metrics["blocks"] == 1 + 3 + 1
    assert 0 < metrics["reuse_pairs_share"] < metrics["block_pairs_share"] < 1
    masks = tables["masks"].set_index("mask")
    assert masks.pairs["Block attention"] == masks.pairs["Independent blocks"]
    assert masks.rows["Independent blocks"] < masks.rows["Block attention"] == metrics["tokens"]


def test_positions_measure_exactness_in_every_family(folder, tmp_path):
    metrics, tables = finished("02_positions", folder, tmp_path)
    assert metrics["families"] == len(tables["families"]) >= 10
    assert metrics["largest_difference"] < 2e-5 < metrics["smallest_naive_difference"]


def test_reuse_measures_quality_time_and_hits(folder, tmp_path):
    metrics, tables = finished("03_reuse", folder, tmp_path)
    assert set(metrics["records"]) == {"full", "block", "naive"}
    assert metrics["ttft_context"] == 96 and metrics["ttft_full_ms"] > 0
    times, quality = tables["ttft"], tables["quality"]
    here = quality[(quality.source == "here") & (quality.kind == "all")]
    assert len(here) == 3 and (here.em_low <= here.em).all() and {"here", "shipped"} == set(quality.source)
    times = times[times.source == "here"]
    assert set(zip(times.length, times.way, strict=True)) == {(n, m) for n in (64, 96) for m in ("full", "block")}
    cost = tables["cost"].query('model == "Llama-3-8B\'s shape" and length == 32768').set_index("way")
    assert cost.convention["full"] == pytest.approx(4.9e14, rel=0.02), "the paper's Table 3"
    assert cost.convention["block"] == pytest.approx(7.5e11, rel=0.02)


def test_block_finetuning_compares_the_methods_of_the_papers_table(folder, tmp_path):
    metrics, tables = finished("04_block_finetuning", folder, tmp_path, tuned=str(folder))
    measured = tables["measured"].query("kind == 'all'").set_index("method")
    assert {"full attention", "PromptCache", "Superposition", "block fine-tuned"} <= set(measured.index)
    assert {"full", "block"} <= set(tables["curve"].kind) and tables["curve"]["at"].min() == 0
    assert set(tables["here"].method) == set(tables["answers"].method) == set(metrics["em"])


def test_beyond_rag_encodes_what_changed_and_equals_encoding_all_anew(folder, tmp_path):
    metrics, tables = finished("05_beyond_rag", folder, tmp_path)
    assert metrics["equal"] is True and metrics["logit_gap"] < 2e-5
    assert metrics["game_blocks"] == 57 and metrics["game_repeated"] > 0.85
    game, chat = tables["game"], tables["chat"]
    assert len(game) == 3 and (game.computed[1:] < game.tokens[1:] / 4).all() and game.equal.all()
    assert len(chat) == 4 and (chat.tokens_moved[3:] > 0).all(), "the oldest turn was dropped"
    assert set(tables["icl_quality"].shots) == {1, 2}


def test_kv_deviation_measures_causes_and_repair(folder, tmp_path):
    metrics, tables = finished("06_kv_deviation", folder, tmp_path)
    assert metrics["causes"]["position"] > metrics["causes"]["context"] > 0.001 > metrics["causes"]["precision"] / 10
    repair = tables["repair"]
    assert set(repair.part) == {"context", "recomputed_left", "question_left"}
    assert (repair.query("part == 'recomputed_left'").value < 1).all()
    assert set(tables["places"].by) == {"offset", "rank"}
    assert tables["concentration"].query("at == 1").value.to_list() == pytest.approx([1, 1])


def test_recomputation_compares_selectors_on_many_questions_and_here(folder, tmp_path):
    metrics, tables = finished("08_recompute_tradeoff", folder, tmp_path)
    shipped = tables["at_ratio"].query("source == 'shipped'")
    assert len(shipped) and set(tables["measured"].source) == {"shipped"}
    here = tables["here"].query("kind == 'all'")
    assert set(here["select"]) == {"none", "first_k"} and (here.n == 3).all()
    assert set(metrics["by_method"]) == set(metrics["ttft_ms"]) == set(tables["answers"].method)


def test_sparse_quality_finds_thresholds_in_the_shipped_table_and_here(folder, tmp_path):
    mine = f"mine={made_up.sweep(tmp_path / 'mine', model=str(folder))}"
    given = {"measure": "mass", "keep": 0.8}
    metrics, tables = finished("10_sparse_quality", folder, tmp_path, results=["shipped", mine], **given)
    sources = sources_of(tmp_path, "10_sparse_quality")
    assert {"shipped", "mine"} in sources and sum("shipped" in each for each in sources) >= 8 and len(sources) >= 9
    settings = tables["measured"].query("source == 'shipped'").set_index("sparse")
    assert all(settings.mass[spec] >= 0.8 for spec in metrics_of(tmp_path)["shipped"]["thresholds"].values())
    here = tables["here"].set_index("method")
    assert all(here.mass[method] >= 0.8 for method in metrics["thresholds_here"])
    assert here.density["dense"] == here.mass["dense"] == 1 and here.agree["dense"] == 1 and len(here) == 7
    assert set(tables["times"].length) == {128, 256} and (tables["times"].seconds > 0).all()
    assert tables["crossover"]["Llama-3-8B"].min() > 1024


def test_latency_takes_times_here_and_shows_whatever_results_there_are(folder, tmp_path):
    mine = tmp_path / "mine"
    for name in ("tile_attention", "q_sparse_attention", "question"):
        made_up.bench(mine, name)
    metrics, tables = finished("11_latency", folder, tmp_path, results=[f"mine={mine}"])
    assert metrics_of(tmp_path, "11_latency")["mine"]["gpus"] == [made_up.CARD]
    assert set(tables["kernels"].source) == {"mine"} and set(tables["kernels"].report) == {
        "tile_attention",
        "q_sparse_attention",
        "question",
    }
    assert set(metrics["ttft_ms"]) == set(ttft.METHODS) and min(metrics["ttft_ms"].values()) > 0
    assert set(tables["ttft"].length) == {96, 128} and (tables["ttft"].p5 <= tables["ttft"].p95).all()
    cached = tables["cached"].set_index("share")
    assert list(cached.index) == [0, 1] and cached.flops[0] > cached.flops[1]
    assert tables["ratios"].flops.is_monotonic_increasing
    choosing = metrics["stages_ms"]
    assert choosing["full attention"]["choose"] == choosing["cached blocks"]["choose"] == 0


def test_a_real_model_has_its_results_and_the_same_asked_here(folder, tmp_path):
    mine = f"mine={made_up.sweep(tmp_path / 'mine')}"
    metrics, tables = finished("12_real_model", folder, tmp_path, results=[mine])
    assert set().union(*sources_of(tmp_path, "12_real_model")) <= {"mine", "published", "here"}
    assert metrics["live"] is True and "Full Reuse" in metrics_of(tmp_path, "12_real_model")["mine"]["kl"]
    assert set(tables["here"].query("kind == 'all' and measure == 'kl'").n) == {2}
    assert {"low", "high", "seed", "n"} <= set(tables["measured"])


def metrics_of(folder, name="10_sparse_quality"):
    return json.loads((folder / name / "metrics.json").read_text())


def sources_of(folder, name):
    """The sources of every figure of results."""
    metas = [figure["layout"].get("meta") or {} for figure in html.figures(folder / name / f"{name}.ipynb")]
    return [set(meta["sources"]) for meta in metas if "sources" in meta]


def test_critical_tokens_of_the_readers_own_text_move_with_the_ratio(folder, tmp_path):
    given = {**OWN, "selectors": ["answer_guided", "first_k"]}
    metrics, tables = finished("07_critical_tokens", folder, tmp_path, **given)
    answers = tables["answers"].set_index(["ratio", "selector"]).sort_index()
    assert (answers.loc[0.0].tokens == 0).all() and (answers.loc[0.0].answer == metrics["answer_reuse"]).all()
    assert answers.loc[0.5].tokens.between(1, answers.loc[1.0].tokens - 1).all()
    assert answers.right.isna().all(), "nobody knows"
    assert tables["agreement"].shape == (2, 3)


def test_sparse_masks_weigh_what_is_kept_and_what_is_dropped(folder, tmp_path):
    metrics, tables = finished("09_sparse_masks", folder, tmp_path)
    heads, turned = tables["heads"], tables["thresholds"]
    assert set(heads.method) == set(metrics["density"]) and len(heads) == 5 * 2 * 4
    assert ((heads.attention + heads.missed) <= 1 + 1e-5).all() and (heads.missed > 0).any()
    for _, points in turned.groupby("method"):
        assert points.density.is_monotonic_increasing and points.mass.is_monotonic_increasing
    steps = tables["union"].pivot(index="layer", columns="step", values="density")
    steps = steps[["choice", "query blocks", "heads", "chunk"]]
    assert (steps.diff(axis=1).iloc[:, 1:] >= 0).all(axis=None) and (steps.choice < steps["chunk"]).all()
    rules = tables["rules"].groupby("rule")[["density", "attention"]].mean()
    assert set(rules.index) == {"mass", "local", "sink", "stride", "random"} and rules.sum().max() < 1 + 1e-6
    assert set(tables["long"].method) == set(metrics["long_seconds"]) and (tables["long"].density < 1).all()


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("04_block_finetuning", {"passages": 1}, "parameter passages is 1"),
        ("00_start_here", {"ratios": [0.1, 2]}, "parameter ratios is 2"),
        ("00_start_here", {"prepare": "with_neighbours"}, "parameter prepare is 'with_neighbours'"),
        ("01_masks", {"rule": "__import__('os')"}, "mask rule"),
        ("01_masks", {"window": 0}, "parameter window is 0"),
        ("02_positions", {"samples": "many"}, "parameter samples is 'many'"),
        ("03_reuse", {"lengths": [1]}, "parameter lengths is 1"),
        ("06_kv_deviation", {"ratio": 1.5}, "parameter ratio is 1.5"),
        ("07_critical_tokens", {"ratios": [0.1, 2]}, "parameter ratios is 2"),
        ("09_sparse_masks", {"overview": 2048}, "parameter overview is 2048"),
        ("10_sparse_quality", {"measure": "speed"}, "parameter measure is 'speed'"),
        ("10_sparse_quality", {"keep": 1.5}, "parameter keep is 1.5"),
        ("12_real_model", {"ratio": 1.5}, "parameter ratio is 1.5"),
        ("11_latency", {"against": ["fa4"]}, "parameter against is 'fa4'"),
        ("11_latency", {"shares": [2]}, "parameter shares is 2"),
        ("14_store", {"order": "random"}, "parameter order is 'random'"),
        ("14_store", {"rate": 0}, "parameter rate is 0"),
        ("05_beyond_rag", {"tables": 0}, "parameter tables is 0"),
        ("05_beyond_rag", {"shots": [17]}, "parameter shots is 17"),
    ],
)
def test_a_wrong_parameter_is_one_sentence_before_any_work(name, parameters, sentence):
    cells = [cell for cell in nbformat.read(at(name), as_version=4).cells if cell.cell_type == "code"]
    namespace: dict = {}
    exec(cells[0].source, namespace)
    namespace |= parameters
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        exec(cells[1].source, namespace)
