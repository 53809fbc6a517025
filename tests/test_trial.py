import json
import pickle
from dataclasses import asdict, replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from tests import tiny
from tests.refusals import refused
from workbench import data, models
from workbench.app.console.trial_report import beside_full
from workbench.core.errors import BadInput
from workbench.core.plan import Pass
from workbench.experiments.trials import record, trial_measures
from workbench.experiments.trials.record import FIDELITY, LATER, Record, dumps
from workbench.experiments.trials.trial import Trial, batches
from workbench.methods import presets
from workbench.methods.generation import Generation
from workbench.methods.modes.full import Full
from workbench.metrics import cost, fidelity
from workbench.metrics.faithfulness import verdict

QUESTIONS = {"samples": 6, "passages": 3, "max_new_tokens": 4, "timed": 2, "batch": 4}


@pytest.fixture(scope="module")
def records(folder, loaded):
    ways = {"full": {}, "block": {"mode": "block"}, "naive": {"mode": "block", "positions": "naive"}}
    return {name: Trial(str(folder), **QUESTIONS | way).run(loaded=loaded) for name, way in ways.items()}


def test_a_full_trial_computes_every_row(records):
    found = records["full"]
    assert (found.rows_computed, found.rows_reused, found.hit_rate) == (found.prompt_tokens, 0, 0)
    assert found.n == sum(score.n for score in found.by_kind.values()) == 6
    assert found.em_low <= found.em <= found.em_high and found.f1_low <= found.f1 <= found.f1_high
    assert 0 < found.ttft_s.p5 <= found.ttft_s.p50 <= found.ttft_s.p95 and found.ttft_s.n == 2


def test_a_block_trial_computes_the_question_and_reuses_the_rest(records, loaded):
    full, block = records["full"], records["block"]
    _, tokenizer, layout = loaded
    prompts = layout.prompts(data.load("lab", 6, 0, 3), tokenizer)
    assert block.rows_computed == sum(len(prompt.question) for prompt in prompts) / 6
    assert block.rows_computed + block.rows_reused == full.prompt_tokens == block.prompt_tokens
    blocks = [b for prompt in prompts for b in prompt.context]
    assert block.hit_rate == pytest.approx(1 - len(set(blocks)) / len(blocks))
    assert block.flops < full.flops and block.bytes_loaded > 0 == full.bytes_loaded


def test_cost_is_that_of_the_rows(records, loaded):
    model, tokenizer, layout = loaded
    shape = cost.shape_of(model)
    prompts = layout.prompts(data.load("lab", 6, 0, 3), tokenizer)
    costs = [cost.first_token(shape, range(len(p)), len(p), itemsize=4) for p in prompts]
    assert records["full"].flops == pytest.approx(sum(c.flops for c in costs) / 6)
    assert records["full"].bytes == pytest.approx(sum(c.bytes for c in costs) / 6)
    assert records["full"].parameters == shape.stored


def test_a_record_is_one_line_of_json_that_is_read_back(records):
    for found in records.values():
        line = record.dumps(found)
        assert "\n" not in line and Record.from_json(json.loads(line)) == found
    with pytest.raises(BadInput, match="record field 'em' is missing"):
        Record.from_json({key: value for key, value in json.loads(line).items() if key != "em"})


def test_rows_of_scores_name_the_mode_and_the_kind(records):
    assert {row["mode"] for row in records["naive"].rows()} == {"naive"}
    rows = records["block"].rows()
    assert [row["kind"] for row in rows] == ["all", *records["block"].by_kind]
    assert rows[0]["n"] == 6 and rows[0]["mode"] == "block"


def test_a_record_does_not_depend_on_what_its_process_computed_before(folder, records):
    loaded = models.load(str(folder))
    Trial(str(folder), mode="block", **QUESTIONS | {"batch": 1}).run(loaded=loaded)  # references of other batches
    for mode in ("full", "block"):
        again = Trial(str(folder), mode=mode, **QUESTIONS).run(loaded=loaded)
        assert again.by_kind == records[mode].by_kind and again.kl == records[mode].kl


def test_right_answers_score_one(folder, loaded, monkeypatch):
    gold = iter([sample.answers[0] for sample in data.load("lab", 6, 0, 3)])

    def say(self, prompts, *_):
        return [Generation((), f" {next(gold)}.", 1, 0, 0.0, (Pass([0], 1),)) for _ in prompts]

    monkeypatch.setattr(Trial, "answer", say)
    found = Trial(str(folder), **QUESTIONS).run(loaded=loaded)
    assert (found.em, found.f1, found.contains) == (1, 1, 1)
    assert all(score.em == 1 for score in found.by_kind.values())


def test_progress_is_told_after_every_prompt_of_full_attention_and_every_batch(folder, loaded):
    told = []
    Trial(str(folder), **QUESTIONS).run(progress=lambda done, total: told.append((done, total)), loaded=loaded)
    assert told == [(done, 6) for done in (0, 1, 2, 3, 4, 4, 5, 6, 6)]


def test_batches_keep_the_order_and_both_limits():
    assert list(batches([5, 5, 5, 20, 5], most=2, tokens=12)) == [[0, 1], [2], [3], [4]]
    assert list(batches([1] * 5, most=3)) == [[0, 1, 2], [3, 4]]


def test_a_field_of_mode_block_chooses_it_as_on_the_command_line(folder):
    assert [Trial(str(folder), **given).mode for given in ({}, {"select": "none"})] == ["full", "full"]
    for given in ({"select": "query_guided"}, {"positions": "naive"}, {"prepared": "x"}, {"store": "x"}):
        assert Trial(str(folder), **given).mode == presets.options(None, given)["mode"] == "block"
    refused("select 'query_guided' is for mode block", Trial, str(folder), mode="full", select="query_guided")
    refused("select 'query_guided' is for mode block", replace, Trial(str(folder)), select="query_guided")
    again = pickle.loads(pickle.dumps(Trial(str(folder), select="first_k")))
    assert again == Trial(str(folder), select="first_k", mode="block") and "_without_mode" not in vars(again)


def test_a_ratio_without_a_selector_is_refused(folder):
    for given in ({"mode": "block", "ratio": 0.3}, {"ratio": 0.3}):
        refused("as --select query_guided", Trial(str(folder), **given).run)
    for method, mode in (("full", "block"), ("cacheblend", "full"), ("superposition", "block")):
        refused(f"method {method} and mode {mode} contradict", presets.options, method, {"mode": mode})


def test_a_trial_counts_the_blocks_that_its_store_had(folder, loaded, tmp_path):
    asked = {"samples": 2, "passages": 2, "timed": 1, "max_new_tokens": 2, "store": str(tmp_path / "kept")}
    first, second = (Trial(str(folder), **asked).run_each(loaded=loaded) for _ in range(2))
    blocks = first[0].stored["encoded"]
    assert first[0].stored == {"reused": 0, "encoded": blocks, "created": True} and blocks == 5
    assert second[0].stored == {"reused": blocks, "encoded": 0, "created": False}
    Console(file=(out := StringIO()), width=200).print(beside_full(*first), beside_full(*second))
    assert f"; 0 of {blocks} blocks reused, {blocks} encoded" in out.getvalue() and "store: created " in out.getvalue()
    assert f"store: {blocks} of {blocks} blocks reused, 0 encoded" in out.getvalue()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mode": "blok"}, "unknown mode 'blok': allowed are full, block"),
        ({"mode": "block", "positions": "moved"}, "unknown positions 'moved': allowed are re-encoded, naive"),
        ({"mode": "full", "positions": "naive"}, "positions 'naive' is for mode block"),
        ({"samples": 0}, "samples is 0"),
        ({"samples": 2.5}, "samples is 2.5"),
        ({"samples": True}, "samples is True"),
        ({"seed": -1}, "seed is -1"),
        ({"passages": 0}, "passages is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"timed": 0}, "timed is 0"),
        ({"store_gib": 0}, "store_gib is 0"),
        ({"fidelity": "no"}, "fidelity is 'no': it must be True or False"),
        ({"faithfulness": "nli"}, "unknown judge 'nli': allowed are lab or a model; unknown model 'nli'"),
        ({"sparse": "dense_ish"}, "unknown sparse 'dense_ish': allowed are bfla, by_head, compact"),
        ({"sparse": "bfla(block=100)"}, "block 100"),
        ({"chunk": 0}, "chunk is 0"),
        ({"sparse": "window(block=64)", "chunk": 16}, "chunk 16 is smaller than a tile"),
        ({"mode": "superposition", "chunk": 16}, "for modes full and block"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_before_anything_is_loaded(change, message):
    refused(message, Trial, "no-such-model", **change)


def test_a_prompt_over_the_models_context_is_refused(tmp_path):
    small = tiny.checkpoint(tmp_path / "small", max_position_embeddings=128)
    refused(r"sample 'lab-0-.' has .* tokens, the model's context is 128", lambda: Trial(str(small), **QUESTIONS).run())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_trial_on_the_accelerator_agrees_with_the_cpu(folder, records):
    found = Trial(str(folder), mode="block", device="cuda", dtype="float32", **QUESTIONS).run()
    assert found.em == records["block"].em and found.f1 == pytest.approx(records["block"].f1, abs=0.05)
    assert asdict(found.ttft_s)["n"] == 2


def test_without_a_system_block_the_first_passage_is_a_passage(loaded):
    trial = Trial("tiny", mode="block", prepare="after_system", select="first_k", ratio=0.5)
    assert (trial.method().prepare.system, trial.method().select.system) == (1, 1)
    method = trial.method(system=False)
    assert (method.prepare.system, method.select.system) == (0, 0)
    model, tokenizer, layout = loaded
    bare = replace(layout, system="")
    record = replace(trial, samples=2, passages=3, timed=1).run(loaded=(model, tokenizer, bare))
    prompts = bare.prompts(data.load("lab", 2, 0, 3), tokenizer)
    chosen = sum(round(0.5 * p.starts[-1]) + len(p.question) for p in prompts) / 2
    assert record.rows_computed == chosen


def test_chunks_and_a_sparse_method_that_keeps_everything_change_no_answer(folder, loaded):
    plain = Trial(str(folder), **QUESTIONS)
    answers = [row["answer"] for row in plain.run_each(loaded=loaded)[1]]
    for more in ({"chunk": 16}, {"sparse": "dense"}, {"sparse": "dense", "chunk": 64}):
        record, rows = replace(plain, **more).run_each(loaded=loaded)
        assert [row["answer"] for row in rows] == answers
        assert (record.sparsity is None) == ("sparse" not in more)
    assert record.sparsity["density"] == record.sparsity["mass"] == 1 and record.sparsity["answer"] == 1
    assert record.label == "full, dense, chunks of 64"


def test_reuse_recomputation_sparse_tiles_and_chunks_go_together(folder, loaded):
    trial = Trial(
        str(folder),
        mode="block",
        prepare="after_system",
        select="first_k",
        ratio=0.5,
        sparse="window(block=16, local=1)",
        chunk=32,
        **QUESTIONS,
    )
    record = trial.run(loaded=loaded)
    assert 0 < record.sparsity["density"] < 1 and record.rows_reused > 0
    assert record.label == "block, after_system, first_k at 50%, window(block=16, local=1), chunks of 32"
    assert Record.from_json(json.loads(dumps(record))) == record


def test_faithfulness_is_judged_where_it_is_asked_for_and_changes_nothing_else(folder, loaded, records):
    plain = records["block"]
    trial = Trial(str(folder), mode="block", faithfulness="lab", **QUESTIONS)
    record, rows = trial.run_each(loaded=loaded)
    samples = data.load("lab", 6, 0, 3)
    shares = [float(verdict(sample, row["answer"]) == "supported") for sample, row in zip(samples, rows, strict=True)]
    judged = record.faithfulness
    assert judged["n"] == 6 and judged["mean"] == sum(shares) / 6 and judged["low"] <= judged["mean"] <= judged["high"]
    assert (record.em, record.f1, record.trial["faithfulness"]) == (plain.em, plain.f1, "lab")
    assert plain.faithfulness is None and "faithfulness" not in plain.trial | plain.to_json()
    assert Record.from_json(json.loads(dumps(record))) == record


def test_a_model_judges_the_answers_of_another(folder, loaded):
    trial = Trial(str(folder), faithfulness=str(folder), **QUESTIONS | {"samples": 2})
    judged = trial.run(loaded=loaded).faithfulness
    assert judged["n"] == 2 <= judged["claims"] and 0 <= judged["low"] <= judged["high"] <= 1


def test_the_lab_judge_refuses_questions_of_other_data_before_any_work(tmp_path):
    line = {"question": "Why?", "answers": ["because"], "ctxs": [{"title": "a", "text": "b"}]}
    (tmp_path / "own.jsonl").write_text(json.dumps(line))
    refused(
        r"the lab corpus does not ask 'Why\?'",
        Trial("no-such-model", data=str(tmp_path / "own.jsonl"), faithfulness="lab").run,
    )


def test_a_record_says_how_near_full_attention_the_predictions_are(records):
    for name in ("nll", "nll_extra", "kl", "kl_first", "agree", "agree_first"):
        for found in records.values():
            for score in (found, *found.by_kind.values()):
                low, mean, high = (getattr(score, name + end) for end in ("_low", "", "_high"))
                assert low - 1e-9 <= mean <= high + 1e-9
    full, block = records["full"], records["block"]
    assert full.kl == full.kl_first == full.nll_extra == 0 and full.agree == full.agree_first == 1
    assert block.kl > 0 and block.compared == 6 == sum(score.compared for score in block.by_kind.values())
    assert block.answered == full.answered | {"compared": block.answered["compared"]}  # no question is answered


MEANS = ("nll", "kl", "kl_first", "agree", "agree_first", "flops")


def test_means_of_a_trial_are_those_of_its_questions_alone(folder, loaded, records):
    samples = data.load("lab", 6, 0, 3)
    for name, positions in (("block", "re-encoded"), ("naive", "naive")):
        asked = Trial(str(folder), samples[:1], mode="block", positions=positions, max_new_tokens=4, timed=1)
        own = [replace(asked, data=[sample]).run(loaded=loaded) for sample in samples]
        means = {field: sum(getattr(one, field) for one in own) / 6 for field in MEANS}
        assert {field: getattr(records[name], field) for field in MEANS} == pytest.approx(means, abs=1e-6, rel=1e-6)
        assert records[name].rows_charged == sum(one.rows_charged for one in own) / 6


def test_fidelity_can_be_left_out_and_trials_are_named_as_before(folder, loaded):
    trial = Trial(str(folder), mode="block", **QUESTIONS)
    assert "fidelity" not in trial.settings() and replace(trial, fidelity=False).settings()["fidelity"] is False
    record, rows = replace(trial, fidelity=False).run_each(loaded=loaded)
    assert record.kl is None and record.answered is None and "kl" not in rows[0]
    line = record.to_json()
    assert "kl" not in line and "nll_low" not in line["by_kind"]["single-hop"]
    assert Record.from_json(line) == record


def test_records_of_earlier_versions_are_read(records):
    line = records["block"].to_json()
    earlier = {name: value for name, value in line.items() if name not in FIDELITY | set(LATER)}
    earlier["by_kind"] = {
        kind: {name: value for name, value in score.items() if name not in FIDELITY}
        for kind, score in line["by_kind"].items()
    }
    found = Record.from_json(earlier)
    assert (found.em, found.nll, found.rows_charged) == (line["em"], None, None) and found.to_json() == earlier


def test_full_attention_is_asked_once_for_all_trials_of_a_model(folder, loaded, monkeypatch):
    monkeypatch.setattr(trial_measures, "_KEPT", type(trial_measures._KEPT)())
    asked = []
    ask = fidelity.reference
    monkeypatch.setattr(fidelity, "reference", lambda *given: asked.append(len(given[2])) or ask(*given))
    trial = Trial(str(folder), mode="block", **QUESTIONS)
    first = trial.run(loaded=loaded)
    second = replace(trial, positions="naive").run(loaded=loaded)
    assert asked == [4, 2] and second.kl != first.kl
    assert replace(trial, positions="naive").run(loaded=loaded).kl == second.kl
    replace(trial, max_new_tokens=5).run(loaded=loaded)
    assert asked == [4, 2, 4, 2]
    monkeypatch.setattr(trial_measures, "_KEPT", type(trial_measures._KEPT)())
    monkeypatch.setattr(trial_measures, "cache_bytes", lambda: 1)  # nothing fits
    assert trial.run(loaded=loaded).kl == trial.run(loaded=loaded).kl == first.kl and len(asked) == 8


def test_full_attention_computes_a_prompt_once_on_a_cpu_and_its_answers_time_it(folder, loaded, monkeypatch):
    monkeypatch.setattr(trial_measures, "_KEPT", type(trial_measures._KEPT)())
    begun, begin = [], Full.begin
    monkeypatch.setattr(Full, "begin", lambda self, *given: begun.append(len(given[1])) or begin(self, *given))
    found = Trial(str(folder), mode="block", **QUESTIONS).run(loaded=loaded)
    assert begun == [1] * 6 and found.ttft_full_s.n == found.ttft_s.n == 2 and found.ttft_full_s.least > 0


def test_a_file_without_answers_has_divergence_and_agreement(folder, loaded, tmp_path):
    lines = [sample.to_json() | {"answers": []} for sample in data.load("lab", 3, 0, 3)]
    for line in lines:
        del line["answers"]
    path = tmp_path / "unanswered.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = QUESTIONS | {"samples": 3, "passages": None}
    found, rows = Trial(str(folder), data=str(path), mode="block", **given).run_each(loaded=loaded)
    assert (found.n, found.em, found.f1_low, found.nll, found.nll_high, found.answered) == (0, *[None] * 5)
    assert found.compared == 3 and found.kl_low <= found.kl <= found.kl_high and 0 <= found.agree <= 1
    assert all(row["em"] is row["expected"] is row["nll"] is None and row["kl"] > 0 for row in rows)
    assert Record.from_json(json.loads(dumps(found))) == found
