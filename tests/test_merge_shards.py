"""Rows of many processes gathered into the two committed tables, on a handful of made-up rows."""

import json

import merge_shards
import numpy as np
import pytest

from workbench.core.errors import BadInput
from workbench.methods.config import MethodConfig

BLOCK = MethodConfig(mode="block")
CONFIGS = {
    "full": MethodConfig(),
    "after_system": MethodConfig(mode="block", prepare="after_system"),
    "chosen": MethodConfig(mode="block", prepare="after_system", select="first_k", ratio=0.15),
    "chosen 30%": MethodConfig(mode="block", prepare="after_system", select="first_k", ratio=0.3),
    "bfla": MethodConfig(sparse="bfla"),
}
KL = {"full": 0.0, "after_system": 0.4, "chosen": 0.1, "chosen 30%": 0.05, "bfla": 0.2}


def row(method, number, kind=""):
    kl = KL[method] * (1 + number % 2)
    return {
        "data": "nq",
        "model": "tiny",
        "method": method,
        "id": f"q{number}",
        "kind": kind,
        "tokens": 90,
        "nll": 2 + kl,
        "nll_full": 2.0,
        "kl": kl,
        "kl_first": kl,
        "kl_gold": kl,
        "agree": 1 - kl / 2,
        "agree_first": float(kl < 0.3),
        "full": "text that is not kept",
        "full_em": 0.0,
        "full_f1": 0.25,
        "answer": None,
        "em": None,
        "f1": None,
        "rows": 20.0,
        "flops": 1e9,
        "bytes": 1e6,
        "seconds": 0.1,
    }


def write(folder, name, rows, **head):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    about = {"n": 4, "seed": 5, "passages": 10, "max_new_tokens": 32, "corpus": 99}
    about |= {"device": "some GPU", "versions": {"torch": "2"}, "note": "4-bit"} | head
    (folder / f"{name}.head").write_text(json.dumps(about))


@pytest.fixture
def measured(tmp_path):
    """Two parts of two questions each, three methods."""
    for part in (0, 1):
        rows = [row(m, 2 * part + i, "ab"[i]) for m in ("full", "after_system", "chosen") for i in (0, 1)]
        write(tmp_path, f"tiny-nq-choices-{part}", rows)
    return tmp_path


def methods(folder):
    return merge_shards.methods(merge_shards.complete(merge_shards.gather(folder))[0], CONFIGS)


def test_a_method_has_a_row_a_kind_with_how_it_was_measured_and_what_it_closes(measured):
    table = methods(measured)
    assert list(table.kind.unique()) == ["all", "a", "b"] and len(table) == 9
    chosen = table[(table.trial == "chosen") & (table.kind == "all")].iloc[0]
    choices = (chosen["mode"], chosen.prepare, chosen["select"], chosen.ratio)
    assert choices == ("block", "after_system", "first_k", 0.15)
    assert (chosen.n, chosen.asked, chosen.seed, chosen.passages) == (4, 4, 5, 10)
    assert (chosen.device, chosen.note, json.loads(chosen.versions)) == ("some GPU", "4-bit", {"torch": "2"})
    assert chosen.kl == pytest.approx(0.15) and chosen.kl_low <= chosen.kl <= chosen.kl_high
    assert chosen.nll_extra == pytest.approx(0.15) and chosen.kl_gold == pytest.approx(0.15)
    assert [chosen.kl_explained, chosen.nll_explained] == pytest.approx([0.75, 0.75])
    assert chosen.kl_more_than_reuse == pytest.approx(-0.45) and chosen.agree_first_p == 0.125
    assert (chosen["rows"], chosen.flops, chosen.full_f1) == (20, 1e9, 0.25) and "seconds" not in table
    of_b = table[(table.trial == "chosen") & (table.kind == "b")].iloc[0]
    assert (of_b.n, of_b.kl) == (2, pytest.approx(0.2))


def test_questions_keep_scores_and_no_text(measured):
    table = merge_shards.questions(merge_shards.gather(measured))
    assert len(table) == 12 and table.kl.dtype == np.float32 and set(table.trial) == {"full", "after_system", "chosen"}
    assert not {"full", "answer"} & set(table.columns)
    assert table[table.trial == "full"].full_f1.notna().all() and table[table.trial == "chosen"].full_f1.isna().all()


def test_a_later_group_stands_beside_the_reuse_of_an_earlier_one(measured):
    write(measured, "tiny-nq-ratios-0", [row(m, i, "ab"[i % 2]) for m in ("chosen 30%", "chosen") for i in range(4)])
    table = methods(measured)
    of_all = table[table.kind == "all"].set_index("trial")
    assert of_all.kl_explained["chosen 30%"] == pytest.approx(0.875) and of_all.ratio["chosen 30%"] == 0.3
    assert of_all.index.is_unique and of_all.group["chosen"] == "choices", "what two groups have counts once"


def test_other_prompts_are_other_questions(measured):
    write(measured, "tiny-nq-sparse-0", [row(m, i) for m in ("full", "bfla") for i in range(4)], passages=40)
    kept = {"data": "nq", "model": "tiny", "method": "bfla", "n": 2, "density": 0.25, "mass": 0.9}
    (measured / "tiny-nq-sparse-0.kept").write_text(json.dumps(kept) + "\n")
    table = methods(measured)
    sparse = table[table.trial == "bfla"].iloc[0]
    assert (sparse.passages, sparse.kept_density, sparse.kept_mass) == (40, 0.25, 0.9)
    assert np.isnan(sparse.kl_explained), "no reuse on these prompts"
    assert len(table[(table.trial == "full") & (table.kind == "all")]) == 2


def test_questions_that_a_method_lacks_are_left_out_and_the_group_is_named(measured):
    path = measured / "tiny-nq-choices-1.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert [group.n for group in merge_shards.gather(measured)] == [3]
    whole, lacking = merge_shards.complete(merge_shards.gather(measured))
    assert whole == [] and lacking == ["tiny on nq, choices: 3 of 4 questions"]


def test_a_group_that_lacks_a_tenth_of_its_questions_at_most_is_taken(tmp_path):
    write(tmp_path, "tiny-nq-choices-0", [row(m, i) for m in ("full", "after_system") for i in range(9)], n=10)
    whole, lacking = merge_shards.complete(merge_shards.gather(tmp_path))
    assert [group.n for group in whole] == [9] and lacking == ["tiny on nq, choices: 9 of 10 questions"]
    table = merge_shards.methods(whole, CONFIGS)
    assert set(table.n) == {9} and set(table.asked) == {10}
    write(tmp_path, "tiny-nq-choices-0", [row(m, i) for m in ("full", "after_system") for i in range(9)], n=11)
    assert merge_shards.complete(merge_shards.gather(tmp_path))[0] == []


@pytest.mark.parametrize(
    "spoil, problem",
    [
        (lambda folder: [path.unlink() for path in folder.glob("*.jsonl")], "holds no rows"),
        (lambda folder: (folder / "tiny-nq-choices-0.head").unlink(), "head is missing"),
        (lambda folder: (folder / "tiny-nq-choices-0.head").write_text('{"n": 4}'), "does not say seed"),
        (lambda folder: write(folder, "tiny-nq-choices-1", [row("full", 3)], seed=6), "differ in seed: 5 and 6"),
        (lambda folder: write(folder, "tiny-nq-choices-1", [row("full", 3) | {"method": "new"}]), "'new' is unknown"),
    ],
)
def test_a_folder_that_cannot_be_gathered_is_refused(measured, spoil, problem):
    spoil(measured)
    with pytest.raises(BadInput, match=problem):
        merge_shards.methods(merge_shards.gather(measured), CONFIGS)
