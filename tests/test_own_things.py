"""Questions and methods of one's own: data frames, records, tables, folders, policies from a file or a cell."""

import json
import math
import os
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.commands import refused_command, told
from tests.own_method import LAST
from tests.refusals import refused
from workbench import Trial, data, generate, measure, sweep
from workbench.data import Passage, Sample
from workbench.data.retrieval_corpus import Corpus
from workbench.data.sources import folders, hub
from workbench.methods import own, own_function, presets, registry
from workbench.methods.select import Select

RECORD = {"question": "What does shelf 1 hold?", "answers": ["lamps"], "ctxs": [{"title": "", "text": "Lamps."}]}
ROW = {"question": "What does shelf 1 hold?", "answers": "lamps|a lamp", "context": "Shelf 1 holds lamps."}
CTXS = [{"title": "Shelf", "text": "It holds lamps."}]


class Rows:
    """Iterates as a `datasets.Dataset` does: a mapping a row."""

    def __iter__(self):
        return iter([RECORD])


GIVEN = {
    "records": [RECORD],
    "a data frame": pd.DataFrame([RECORD]),
    "a data frame with arrays": pd.DataFrame([RECORD | {"answers": np.array(["lamps"]), "kind": float("nan")}]),
    "a data set": Rows(),
    "samples": [Sample(RECORD["question"], ("lamps",), (Passage("", "Lamps."),))],
}


@pytest.mark.parametrize("what", GIVEN)
def test_objects_are_data(what):
    (read,) = data.load(GIVEN[what])
    assert (read.id, read.question, read.answers) == ("given-1", RECORD["question"], ("lamps",))
    assert read.ctxs == (Passage("", "Lamps."),)


LAMPS = {"text": "Lamps.", "metadata": {"file_name": "shelves.md"}}
DOCUMENTS = {
    "LangChain": SimpleNamespace(page_content="Lamps.", metadata={"source": "shelves.md"}),
    "LlamaIndex": SimpleNamespace(**LAMPS),
    "LlamaIndex with scores": SimpleNamespace(node=SimpleNamespace(**LAMPS), score=0.7),
}


@pytest.mark.parametrize("of", DOCUMENTS)
def test_documents_of_retrievers_are_passages(of):
    (read,) = data.load([{"question": "?", "answers": ["lamps"], "ctxs": [DOCUMENTS[of]]}])
    assert read.ctxs == (Passage("shelves.md", "Lamps."),)


@pytest.mark.parametrize("names", [("Question", "Answer", "Context"), ("Query", "Reference", "Docs")])
def test_names_of_columns_may_be_capitals(names, tmp_path):
    row = ("Who fixes lamps?", "Ana", "Ana fixes lamps.")
    pd.DataFrame([row], columns=list(names)).to_csv(tmp_path / "own.csv", index=False)
    for given in (tmp_path / "own.csv", pd.DataFrame([dict(zip(names, row, strict=True))])):
        (read,) = data.load(given)
        assert (read.question, read.answers, read.ctxs[0].text) == (row[0], (row[1],), row[2])


@pytest.mark.parametrize("name", ["fusionrag", "cacheblend", "turborag"])
def test_a_published_method_is_named_in_calls_for_one_trial_and_one_answer(name, loaded):
    named = Trial("lab-full", method=name, samples=2)
    assert named == Trial("lab-full", samples=2, **presets.options(name, {}))
    assert Trial("lab-full", method=name, samples=2, ratio=0.5).ratio == 0.5
    refused("unknown method 'fastest'", lambda: Trial("lab-full", method="fastest"))
    prompts = loaded.layout.prompts(data.load("lab", 2, 0, 3), loaded.tokenizer)
    answers = generate(loaded.model, loaded.tokenizer, prompts, mode=name, max_new_tokens=2)
    corpus = Corpus.of_prompts(prompts, loaded.tokenizer)
    same = generate(loaded.model, loaded.tokenizer, prompts, named.method(corpus), max_new_tokens=2)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in same]
    assert answers[0].rows_reused > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "data is 5: a name"),
        (torch.tensor(1.0), "data is"),
        ([{**RECORD, "ctxs": torch.tensor(1.0)}], "data, row 1: field 'ctxs'"),
        ({"question": "?"}, "data, row 1: field 'ctxs' is missing"),
        ([{"q": "?", "text": "a"}], "row 1: field 'question' is missing: there are q, text"),
        ({"train": [RECORD]}, "data is"),
        ([], "data holds no rows"),
        ([RECORD, {"question": "?"}], "data, row 2: field 'ctxs' is missing"),
        ([Sample(question="?", answers=("a",))], "row 1: field 'ctxs'"),
    ],
)
def test_objects_that_are_no_questions_are_refused(given, message):
    refused(message, data.load, given)


TABLES = {
    "csv": (ROW, ("lamps", "a lamp"), "Shelf 1 holds lamps."),
    "tsv": (ROW | {"answers": '["lamps"]'}, ("lamps",), "Shelf 1 holds lamps."),
    "a column of passages": ({"user_input": "?", "reference": "7", "contexts": json.dumps(["x"])}, ("7",), "x"),
    "one passage in a cell": ({"query": "?", "ground_truth": "7", "documents": "x y"}, ("7",), "x y"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_are_data(case, tmp_path):
    row, answers, text = TABLES[case]
    path = tmp_path / f"mine.{case if case == 'tsv' else 'csv'}"
    pd.DataFrame([row]).to_csv(path, sep="\t" if case == "tsv" else ",", index=False)
    (read,) = data.load(path)
    assert (read.id, read.answers, read.ctxs[0].text) == ("mine-1", answers, text)


def test_parquet_and_squad_are_data(tmp_path):
    squad = {"question": "?", "title": "A", "context": "One text.", "answers": {"text": ["x"], "answer_start": [0]}}
    pd.DataFrame([squad]).to_parquet(tmp_path / "mine.parquet")
    (read,) = data.load(tmp_path / "mine.parquet")
    assert (read.answers, read.ctxs) == (("x",), (Passage("A", "One text."),))


def notes(folder):
    folder.mkdir()
    (folder / "bees.md").write_text("Bees dance. They count. They sleep.\n\nHoney keeps.")
    (folder / "maps.txt").write_text("Maps fold badly.")
    (folder / "questions.csv").write_text("question,answer\nHow do maps fold?,badly\n")
    return folder


def test_a_folder_without_questions_shows_an_example_that_works_when_pasted(tmp_path):
    (notes(tmp_path / "my notes") / "questions.csv").unlink()
    said = refused_command("data", tmp_path / "my notes")
    place, example = said.split("write them to ")[1].split(", a line each: ")
    Path(place).write_text(example)
    assert json.loads(example)["question"] in told("data", tmp_path / "my notes")


CUTS = {
    "": ["Bees dance. They count. They sleep.", "Honey keeps.", "Maps fold badly."],
    "(by=sentences, size=2, overlap=1)": [
        "Bees dance. They count.",
        "They count. They sleep.",
        "They sleep. Honey keeps.",
    ],
    "(by=tokens, size=6, overlap=2, model=lab-full)": ["Bees dance", "ance. They c", "y count. The"],
    "(by=words, size=4)": ["Bees dance. They count.", "They sleep. Honey keeps.", "Maps fold badly."],
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_folder_is_cut_as_it_is_named(cut, tmp_path):
    (whole,) = data.corpus(f"{notes(tmp_path / 'notes')}{cut}")
    assert [passage.text for passage in whole.ctxs][:3] == CUTS[cut]


def test_questions_of_a_folder_get_the_passages_most_alike(tmp_path):
    (read,) = data.load(str(notes(tmp_path / "notes")), passages=2)
    assert (read.ctxs[0], len(read.ctxs)) == (Passage("maps", "Maps fold badly."), 2)
    assert Trial("lab-full", data=f"{tmp_path / 'notes'}(by=sentences)").data.endswith("(by=sentences)")


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ("(by=lines)", "unknown by 'lines': allowed are paragraphs, sentences, words, tokens"),
        ("(by=words, size=0)", "size is 0"),
        ("(by=words, size=4, overlap=4)", "overlap is 4: it has to be less"),
        ("(overlap=1)", "overlap is 1"),
        ("(by=tokens)", "by=tokens, and that alone, needs model=NAME"),
        ("(by=words, model=lab-full)", "by=tokens, and that alone, needs model=NAME"),
        ("(by=tokens, model=nobody)", "model 'nobody' has no tokenizer.json here"),
        ("(cut=1)", "unknown option of a folder 'cut'"),
    ],
)
def test_cuts_that_do_not_fit_are_refused(cut, message, tmp_path):
    refused(message, lambda: data.load(f"{notes(tmp_path / 'notes')}{cut}"))


def test_a_folder_needs_one_file_of_questions(tmp_path):
    (notes(tmp_path / "notes") / "more.jsonl").write_text("{}")
    refused(r"one file of questions .* there are: more\.jsonl, questions\.csv", data.load, str(tmp_path / "notes"))


def test_pdfs_ask_for_their_reader_where_it_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "find_spec", lambda _: None)
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    refused("pip install pypdf", data.corpus, str(tmp_path))


def test_hub_names_ask_for_datasets_where_it_is_not_there(monkeypatch):
    monkeypatch.setattr("workbench.data.sources.hub.find_spec", lambda _: None)
    refused("pip install datasets", data.load, "hf:squad:validation")


@pytest.mark.parametrize(
    ("name", "offline", "message"),
    [
        (
            "hf:a/gone",
            False,
            r"'hf:a/gone' is not in /hub/datasets, and the Hub cannot be reached: run this once where",
        ),
        (
            "hf:a/gone",
            True,
            "the Hub is not asked while HF_HUB_OFFLINE is set: run this once where it can be, then copy",
        ),
        ("hf:a/qa::other", True, r"'hf:a/qa::other' cannot be loaded: no config 'other' Available: \['default'\]$"),
        ("hf:a/qa:val", True, "has no split 'val': allowed are train, test"),
    ],
)
def test_hub_names_that_are_not_there_are_told_in_one_sentence(name, offline, message, hub_of):
    hub_of(offline)
    refused(message, data.load, name)


def test_a_data_set_of_the_hub_is_asked_for_once_and_its_test_questions_come_before_those_to_train_on(hub_of):
    asked = hub_of(True)
    assert [data.load("hf:a/qa")[0].question, data.load("hf:a/qa:train")[0].question] == ["of test", "of train"]
    assert asked == ["a/qa"]


@pytest.fixture
def hub_of(monkeypatch):
    """A function that puts a stand-in in place of the package `datasets`, and returns the list of what it is asked."""
    asked = []

    def load_dataset(place, config):
        asked.append(place)
        if place != "a/qa":
            raise ConnectionError(f"Couldn't reach '{place}' on the Hub")
        if config:
            raise ValueError(f"no config {config!r}\nAvailable: ['default']")
        return {part: [{"question": f"of {part}", "answer": "x", "context": "y"}] for part in ("train", "test")}

    def begin(offline):
        config = SimpleNamespace(HF_HUB_OFFLINE=offline, HF_DATASETS_CACHE=Path("/hub/datasets"))
        errors = SimpleNamespace(DatasetsError=RuntimeError)
        stand_in = SimpleNamespace(load_dataset=load_dataset, config=config, exceptions=errors)
        monkeypatch.setitem(sys.modules, "datasets", stand_in)
        return asked

    monkeypatch.setattr(hub, "find_spec", lambda _: True)
    hub._found.cache_clear()
    yield begin
    hub._found.cache_clear()


@pytest.mark.parametrize("command", ["trial", "sweep", "leaderboard", "prepare --out o", "serve-bench"])
def test_every_command_that_runs_methods_reads_them_from_a_file(command):
    assert refused_command(*command.split(), "--method-file", "nowhere.py").endswith("nowhere.py is not there")


def test_policies_of_a_file_have_names_and_options(method_file):
    own.use([method_file])
    policy = registry.make_policy("workbench.methods.select", "last_ones(weight=2)")
    assert registry.spec_of(policy) == "last_ones(system=1, weight=2)"
    assert "last_ones" in registry.names("workbench.methods.select")
    assert "last_ones" not in registry.names("workbench.methods.sparse")
    assert os.environ[own.FILES] == str(method_file.resolve())
    assert list(own.versions()) == ["mine.py"]
    refused("weigth", registry.make_policy, "workbench.methods.select", "last_ones(weigth=2)")


FUNCTIONS = """
def from_the_end(prompt):
    return list(range(prompt.starts[-1] - 1, -1, -1))

def by_cache(model, prompt, kv, weight=2.0):
    return [weight * float(x) for x in range(prompt.starts[-1])]

def _helper(prompt): ...

def of_other_things(path): ...
"""


def test_functions_of_a_file_are_selectors_that_other_processes_know(method_file, loaded, unknown_again):
    method_file.write_text(FUNCTIONS)
    own.use([method_file])
    assert own.registered_policies([method_file]) == [("select", "from_the_end"), ("select", "by_cache")]
    quick = {"samples": 2, "passages": 2, "timed": 1, "max_new_tokens": 2, "mode": "block", "ratio": 0.3}
    expected = Trial("tiny", select=Backwards(), **quick).run_each(loaded=loaded)[1]
    for name in ("from_the_end", "by_cache"):
        assert Trial("tiny", select=name, **quick).run_each(loaded=loaded)[1] == expected
        assert not own_function.is_function(name)


def test_a_file_that_changed_is_read_again(method_file):
    own.use([method_file])
    method_file.write_text(LAST.replace("weight: float = 1.0", "weight: float = 3.0"))
    os.utime(method_file, ns=(1, 1))
    assert registry.make_policy("workbench.methods.select", "last_ones").weight == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class", "fails: SyntaxError"),
        ("import no_such_package", "fails: ModuleNotFoundError"),
        ("x = 1", "holds no policy"),
        (LAST.replace("LastOnes", "FirstK"), "select has a policy 'first_k' already"),
    ],
)
def test_files_that_hold_no_policy_are_refused(text, message, method_file):
    method_file.write_text(text)
    refused(message, own.use, [method_file])


@dataclass(frozen=True)
class Backwards(Select):
    """Chooses the last tokens of the context."""

    def score(self, prompt):
        return torch.arange(prompt.starts[-1]).float()


def test_a_trial_takes_questions_and_a_selector_themselves(unknown_again, tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path)
    trial = Trial("lab-full", data=[RECORD], mode="block", select=Backwards(system=0), ratio=0.5, timed=1)
    assert trial == Trial(
        "lab-full", data=pd.DataFrame([RECORD]), mode="block", select=Backwards(system=0), ratio=0.5, timed=1
    )
    record = trial.run()
    assert (record.n, record.trial["select"].partition("(")[0]) == (1, "backwards")
    assert data.load(trial.data)[0].id == "given-1"


def backwards_scores(prompt):
    return np.arange(prompt.starts[-1], dtype=float)


def backwards_tokens(prompt):
    return list(range(prompt.starts[-1] - 1, -1, -1))


def backwards_of_cache(model, prompt, kv, *, weight=2.0):
    return weight * torch.arange(len(kv))[: prompt.starts[-1]]


@pytest.mark.parametrize("function", [backwards_scores, backwards_tokens, backwards_of_cache])
def test_a_trial_a_sweep_and_a_measurement_take_a_function(function, loaded, unknown_again):
    quick = {"samples": 2, "passages": 2, "timed": 1, "max_new_tokens": 2, "mode": "block", "ratio": 0.3}
    record, answers = Trial("tiny", select=function, **quick).run_each(loaded=loaded)
    exact, expected = Trial("tiny", select=Backwards(), **quick).run_each(loaded=loaded)
    assert record.trial["select"].partition("(")[0] == function.__name__
    assert (record.rows_computed, answers) == (exact.rows_computed, expected)
    table = sweep(Trial("tiny", **quick), loaded=loaded, select=[function, "none"])
    assert set(table.rows_computed) > {exact.rows_computed}
    for elsewhere in ({"jobs": 2}, {"cluster": "local"}):
        refused("a function of this process", sweep, Trial("lab-full", **quick), select=[function], **elsewhere)
    (sample,) = data.load("lab", samples=1, passages=2)
    scores = measure.scores(loaded, sample, [function, Backwards()])
    ranks = scores[[function.__name__, "Backwards"]].rank()
    assert ranks[function.__name__].equals(ranks["Backwards"])


def test_a_sweep_goes_on_with_a_function_and_begins_again_with_another_of_its_name(loaded, unknown_again, tmp_path):
    quick = {"data": [RECORD], "mode": "block", "ratio": None, "timed": 1, "max_new_tokens": 2}

    def one(prompt):
        return [prompt.starts[1]]

    def two(prompt):
        return [prompt.starts[1], prompt.starts[1] + 1]

    found = []
    for function in (one, one, two):
        function.__name__ = "mine"
        table = sweep(Trial("tiny", **quick), loaded=loaded, out=tmp_path, select=[function])
        found.append(table.rows_computed.iloc[0])
    assert found[0] == found[1] == found[2] - 1


def test_numbers_of_tokens_are_a_choice_of_their_own(loaded, unknown_again):
    (prompt,) = loaded.layout.prompts(data.load("lab", samples=1, passages=2), loaded.tokenizer)
    first = prompt.starts[1]

    def three(prompt):
        return [first + 5, first, first + 2]

    policy, kv = own_function.selector(three), measure.reused(loaded, prompt)
    (rows,) = policy.rows(loaded.model, [prompt], [kv])
    assert rows.tolist() == [first, first + 2, first + 5]
    (rows,) = policy.rows(loaded.model, [prompt], [kv], tokens=1)
    assert rows.tolist() == [first + 5]


def test_a_token_of_the_system_block_is_recomputed_at_inf_alone(loaded, unknown_again):
    (prompt,) = loaded.layout.prompts(data.load("lab", samples=1, passages=2), loaded.tokenizer)
    first, kv = prompt.starts[1], measure.reused(loaded, prompt)

    def from_the_front(prompt):
        return torch.arange(prompt.starts[-1], 0, -1).float()

    def the_first_two(prompt):
        return [0, 1]

    def the_first_in_any_case(prompt):
        return torch.tensor([torch.inf, *[-torch.inf] * (prompt.starts[-1] - 1)])

    functions = (from_the_front, the_first_two, the_first_in_any_case)
    chosen = [own_function.selector(each).rows(loaded.model, [prompt], [kv], tokens=2)[0] for each in functions]
    assert [rows.tolist() for rows in chosen] == [[first, first + 1], [], [0]] and first > 1


def two_parameters(prompt, kv):
    raise AssertionError("it is refused before it is called")


def by_keyword(prompt, *, weight):
    raise AssertionError("it is refused before it is called")


def first_k(prompt):
    return [0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (two_parameters, r"select is two_parameters\(prompt, kv\): a function of \(prompt\) or \(model, prompt, kv\)"),
        (by_keyword, r"select is by_keyword\(prompt, weight\): a function of"),
        (lambda prompt: [0], "which has no name for the results"),
        (first_k, "select has a policy 'first_k' already"),
    ],
)
def test_a_trial_refuses_functions_that_cannot_select(value, message, unknown_again):
    refused(message, Trial, "lab-full", mode="block", select=value)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("text", "returned 'text'"),
        (None, "returned None"),
        ([0.5], "returned 1 scores for"),
        ([[1.0]], r"returned float32 of shape \(1, 1\)"),
        ([True, False], "returned bool"),
        ([-1], "returned tokens -1 to -1: allowed are 0 to"),
        ([10**6], "returned tokens 1000000"),
        ([1, 1], "returned a token more than once"),
    ],
)
def test_what_a_function_returns_is_looked_at_before_any_work(returned, message, loaded, unknown_again, monkeypatch):
    def mine(prompt):
        return returned

    monkeypatch.setattr("workbench.experiments.trials.trial.choose_engine", None)  # what comes next
    trial = Trial("tiny", samples=1, passages=2, mode="block", select=mine)
    refused(f"mine {message}", trial.run, loaded=loaded)


def test_a_function_that_fails_is_named_with_its_line(loaded, unknown_again):
    def divides(prompt):
        return 1 / (len(prompt) - len(prompt))

    def nothing(prompt):
        return [math.nan] * prompt.starts[-1]

    for mine, message in (
        (divides, r"select divides \(test_own_things.py, line \d+\) raised ZeroDivisionError"),
        (nothing, r"nothing returned \d+ scores that are nan"),
    ):
        refused(message, Trial("tiny", samples=1, passages=2, mode="block", select=mine).run, loaded=loaded)


def test_a_function_that_a_loop_makes_needs_a_name_of_its_own(unknown_again):
    def made(count):
        def chosen(prompt):
            return list(range(count))

        return chosen

    one = made(1)
    assert own_function.selector(one) == own_function.selector(one)
    refused("give it a __name__ of its own", own_function.selector, made(2))
    other = made(2)
    other.__name__ = "chosen_two"
    assert registry.spec_of(own_function.selector(other)) == "chosen_two(system=1)"


@pytest.mark.parametrize("value", [5, Backwards])
def test_a_trial_refuses_what_is_no_policy(value):
    refused("select is", Trial, "lab-full", mode="block", select=value)


def test_packages_name_policies_by_entry_points(unknown_again, monkeypatch):
    entry = EntryPoint("backwards", f"{__name__}:Backwards", "workbench.select")
    monkeypatch.setattr(own, "_entries", lambda kind: {"backwards": entry} if kind == "select" else {})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert registry.make_policy("workbench.methods.select", "backwards") == Backwards()
