"""Reports on chunked prefill read back: figures 1 and 5 of CompactAttention, tables 1 and 2 of BFLA."""

import json

import pytest

from tests.figure_views import texts
from workbench.experiments import chunk_reports, results
from workbench.plots import chunk_findings, chunks

ENDS = ((16384, 0.8), (65536, 1.3))


def one(who, ms, **facts):
    return {"who": who, "ms": ms, "p5": ms * 0.98, "p95": ms * 1.02, "runs": 20, **facts}


def write(folder, name, *works):
    listed = [{"name": f"{i}", "shape": shape, "contestants": who} for i, (shape, who) in enumerate(works)]
    (folder / f"{name}.json").write_text(json.dumps({"card": "NVIDIA H200", "workloads": listed}))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def sparsity(folder, chunk):
    shape = {"keys": 65536, "density": 0.1}
    dense = [one("ours, dense", 60), one("cudnn, dense", 56), one("flash, dense", 110)]
    slices = [one("ours, dense", 1.2), one("flashinfer, dense", 0.9), one("ours", chunk)]
    union = one("ours, pages of a union", 0.15)
    pairs = ({"rows": 65536}, [one("ours", 7), *dense]), ({"rows": 1024}, [*slices, union])
    write(folder, "chunk_kernels", *((shape | rows, who) for rows, who in pairs))


def searches(folder, factor):
    names = {"flash_prefill": 1, "xattention": 4, "seer_attention": 2}
    for_each = [one(f"{name}, {way}", ms * by) for name, ms in names.items() for way, by in ways(factor)]
    write(folder, "chunk_choices", *(({"tokens": n}, for_each) for n in (65536, 131072)))


def ways(factor):
    return (("one pass", 1), ("in chunks", factor), *[("in chunks, means kept", factor * 0.6)])


def lengths(folder, rises):
    for name, key, dense in (("chunk_attention", "keys", "cudnn, dense"), ("chunked", "tokens", "ours, dense")):
        works = []
        for at, ms in ((16384, 10.0), (131072, 40.0)):
            faster = 3.0 if (at > 16384) == rises else 1.2
            methods = [one("ours", ms / faster, density=0.25), one("xattention", ms * 1.1), one(dense, ms)]
            works.append(({key: at}, [*methods, {"who": "quoka", "problem": "no memory"}]))
        write(folder, name, *works)


def prefill(folder, short):
    works = [({"tokens": n}, [one("ours", ms, density=0.3), one("ours, dense", 10.0)]) for n, ms in short.items()]
    write(folder, "prefill", *works)


@pytest.mark.parametrize(("chunk", "words"), [(0.3, "as the paper prints"), (0.09, "against the paper")])
def test_equal_sparsity_is_compared_with_the_fastest_dense_baseline(folder, chunk, words):
    sparsity(folder, chunk)
    rows = chunk_reports.equal_sparsity()
    assert [row["against"] for row in rows] == ["cudnn, dense", *["flashinfer, dense"] * 2]
    assert rows[0]["mean"] == pytest.approx(8) and rows[1]["mean"] == pytest.approx(0.9 / chunk)
    assert words in texts(chunks.equal_sparsity())


@pytest.mark.parametrize(("factor", "words"), [(3, "as the paper prints"), (0.9, "against the paper")])
def test_choices_summed_over_chunks_stand_beside_one_pass(folder, factor, words):
    searches(folder, factor)
    rows = chunk_findings.grown(chunk_reports.searches())
    assert {row["name"]: round(row["mean"], 3) for row in rows} == dict.fromkeys(
        ("flash_prefill", "xattention", "seer_attention"), factor
    )
    assert words in texts(chunks.summed_choices())


@pytest.mark.parametrize(("rises", "words"), [(True, "rises with the length"), (False, "does not rise")])
def test_speedups_stand_beside_the_published_ones(folder, rises, words):
    lengths(folder, rises)
    fig = chunks.speedups()
    assert words in texts(fig) and ("above the printed" if rises else "below the printed") in texts(fig)
    rings = [tuple(trace.y) for trace in fig.data if (trace.name or "").startswith("published")]
    assert rings == [(2.72,), (1.96,)]
    assert "QUOKA" not in [trace.name for trace in fig.data]


def test_a_shorter_prompt_is_not_held_to_the_printed_speedup():
    rows = [
        {"name": "compact(over=flash_prefill)", "at": at, "mean": m, "low": m, "high": m, "runs": 2} for at, m in ENDS
    ]
    said = chunk_findings.said_of_growth("whole", rows, 1.96)
    assert "128K not timed, of which 1.96 is printed" in said and "below" not in said and "above" not in said
    rows[-1]["at"] = chunk_reports.PRINTED_AT
    assert "below the printed 1.96" in chunk_findings.said_of_growth("whole", rows, 1.96)


def test_methods_whose_whole_prefill_is_not_timed_are_named(monkeypatch):
    rows = {"attention": ["flash_prefill", "quoka"], "whole_prefill": ["flash_prefill"]}
    for name, methods in rows.items():
        monkeypatch.setattr(chunk_reports, name, lambda methods=methods: [{"name": one} for one in methods])
    assert chunk_reports.untimed() == ["quoka"] and "not timed: QUOKA." in chunk_findings.not_timed()
    monkeypatch.setattr(chunk_reports, "whole_prefill", list)
    assert chunk_reports.untimed() == [] and chunk_findings.not_timed() == ""


def test_a_method_whose_time_a_chunk_does_not_grow_waits_for_the_host(monkeypatch):
    def work(tokens, **ms):
        candidates = [{"who": who.replace("_", ", "), "ms": value} for who, value in ms.items()]
        return {"shape": {"tokens": tokens}, "contestants": candidates}

    of = [work(65536, ours=4.1, quoka=9.0, ours_dense=9.0), work(16384, ours=1.0, quoka=2.0, ours_dense=1.0)]
    monkeypatch.setattr(chunk_reports, "works", lambda name: of)
    assert chunk_reports.flat() == ["compact(over=flash_prefill)"]
    assert "as long at any length under CompactAttention over FlashPrefill" in chunk_findings.flat_words()
    monkeypatch.setattr(chunk_reports, "works", lambda name: of[:1])
    assert chunk_findings.flat_words() == "", "one length says nothing"


def test_means_that_are_kept_are_no_method_of_their_own_over_a_whole_prompt(monkeypatch):
    for name, methods in {"attention": ["quoka, means kept"], "whole_prefill": ["quoka"]}.items():
        monkeypatch.setattr(chunk_reports, name, lambda methods=methods: [{"name": one} for one in methods])
    assert chunk_reports.untimed() == []


def test_a_row_of_another_run_is_beside_the_dense_time_of_its_own(monkeypatch):
    def row(who, ms, **more):
        return {"who": who, "ms": ms, "p5": ms, "p95": ms, "runs": 2, "least": ms, "most": ms, **more}

    rows = [row("ours, dense", 9.0), row("ours", 3.0), row("quoka", 4.0, dense=row("ours, dense", 8.0))]
    work = {"shape": {"tokens": 16384}, "contestants": rows}
    monkeypatch.setattr(chunk_reports, "works", lambda name: [work])
    assert {one["name"]: one["mean"] for one in chunk_reports.whole_prefill()} == {
        "compact(over=flash_prefill)": 3.0,
        "quoka": 2.0,
    }
