"""Every committed result is shown: a notebook reads it, or a report that a test holds."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.experiments import bench_reports, results

ROOT = Path(__file__).parents[1]
FILES = sorted(path for kind in ("json", "parquet") for path in results.FOLDER.glob(f"*.{kind}"))
TESTED = {  # a report that a test holds → the results it reads
    "data/benchmarks/lab_card.py": r"lab-(seed-\d+|full-\w+)",  # tests/test_lab_training.py
    "workbench/experiments/papers/evidence.py": r"deviation(-.+)?",  # notebooks/13_papers.ipynb
    "data/benchmarks/headline.py": r"touch-cpu-(\w+)",  # tests/test_headline.py
    "workbench/experiments/bench_reports.py": r"stages",  # notebooks/11_latency.ipynb, by `bench_reports.split`
}


def reads() -> str:
    """What notebooks, and the modules that they show figures of, name."""
    packages = (ROOT / "workbench" / name for name in ("experiments", "metrics", "plots"))
    sources = [*(ROOT / "notebooks").glob("*.ipynb"), *(path for package in packages for path in package.rglob("*.py"))]
    return "\n".join("".join(cells(path)) for path in sources)


def cells(path: Path) -> list[str]:
    """Source of a module, or of all code cells of a notebook."""
    if path.suffix == ".py":
        return [path.read_text()]
    notebook = json.loads(path.read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


READS = reads()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_result_is_read_by_a_notebook_or_a_tested_report(path):
    start = re.escape(path.stem.rsplit("-", 1)[0])
    named = re.search(rf'(read|table)\("{re.escape(path.stem)}"\)', READS)
    named = named or re.search(rf'(read|table)\(f"{start}-\{{', READS)
    tested = any(re.fullmatch(pattern, path.stem) for pattern in TESTED.values())
    kernels = {bench_reports.bench.today(path.stem)} & set(bench_reports.reports())
    assert named or tested or kernels, "show it in a notebook, or remove it"


@pytest.mark.parametrize("report", TESTED)
def test_a_tested_report_stands_and_names_its_results(report):
    text = (ROOT / report).read_text()
    assert re.search(TESTED[report].split("(")[0], text)


def test_a_table_is_written_smaller_and_read_back_to_the_last_bit(tmp_path):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"kl": draw.random(5000).astype("float32"), "id": [f"q{i % 50}" for i in range(5000)]})
    frame.loc[3, "kl"] = np.nan
    results.write_table(tmp_path / "kept.parquet", frame)
    frame.to_parquet(tmp_path / "plain.parquet", compression="zstd")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "kept.parquet"), frame, check_exact=True)
    assert (tmp_path / "kept.parquet").stat().st_size < 0.9 * (tmp_path / "plain.parquet").stat().st_size
