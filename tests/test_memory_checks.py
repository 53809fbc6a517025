"""What compute-sanitizer says is counted, kept and told; a stand-in for it says what the real one does."""

import sys

import memory_checks
import pytest

CLEAN = "========= COMPUTE-SANITIZER\nrope_and_cache: right\n========= ERROR SUMMARY: 0 errors\n"
WRONG = (
    "========= Invalid __global__ read of size 4 bytes\n=========     at x+0x10\n========= ERROR SUMMARY: 3 errors\n"
)
RACE = "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """Says what stands in a file, sleeps where nothing does, and passes the command's own status on."""
    script = tmp_path / "sanitizer"
    script.write_text(
        f"#!{sys.executable}\nimport pathlib, sys, time\nsaid = pathlib.Path({str(tmp_path / 'said')!r}).read_text()\n"
        "print(said, flush=True)\ntime.sleep(0 if said else 9)\nsys.exit('wrong' in sys.argv)\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(memory_checks, "SANITIZER", str(script))
    return tmp_path / "said"


@pytest.mark.parametrize(
    ("said", "command", "errors", "right"),
    [(CLEAN, "well", 0, True), (CLEAN, "wrong", 0, False), (WRONG, "well", 3, True), ("no count", "well", None, True)],
    ids=["clean", "a case is wrong", "errors", "no summary"],
)
def test_what_a_tool_finds_is_counted(sanitizer, said, command, errors, right):
    sanitizer.write_text(said)
    row = memory_checks.checked("memcheck", "rope_and_cache", [command], 60)
    assert (row["errors"], row["right"]) == (errors, right)
    assert bool(row["output"]) == (errors != 0 or not right)
    assert errors != 3 or row["output"][0].startswith("========= Invalid")


def test_a_tool_that_takes_too_long_is_told_so(sanitizer):
    sanitizer.write_text("")
    row = memory_checks.checked("racecheck", "x", ["y"], 0.2)
    assert row["errors"] is None and not row["right"]


def test_hazards_are_errors_too():
    assert memory_checks.counted(RACE) == 2 and memory_checks.counted(CLEAN) == 0
    assert memory_checks.counted("nothing") is None


def test_every_kernel_runs_under_every_tool(sanitizer):
    sanitizer.write_text(CLEAN)
    rows = list(memory_checks.of_kernels(["a", "b"], memory_checks.TOOLS, 2, 60))
    assert {(row["tool"], row["name"]) for row in rows} == {(t, n) for t in memory_checks.TOOLS for n in "ab"}
