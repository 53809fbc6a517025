"""What preparing a chunk takes on a GPU, beside what FusionRAG prints (section 3.1)."""

import plotly.graph_objects as go

from workbench.experiments import results
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.findings import times
from workbench.plots.table import table

NO_FILE = "Not measured on a GPU yet: python data/benchmarks/prepare_cost.py"
PRINTED = FUSION_RAG["seconds_a_chunk"]


def seconds_a_chunk() -> go.Figure | None:
    """Tabulate seconds a chunk by preparation; None where they were not measured."""
    if "prepare-cost" not in results.names():
        return None
    kept = results.read("prepare-cost")
    plain, similar = (row["seconds"] for row in kept["rows"])
    rows = [
        [
            row["name"],
            f"{row['seconds']:.4f}",
            f"{row['least']:.4f} to {row['most']:.4f}",
            f"{60 / row['seconds']:,.0f}",
        ]
        for row in kept["rows"]
    ]
    rows.append(["printed, Qwen2.5-7B, HotpotQA", f"{PRINTED:.3f}", "", f"{60 / PRINTED:,.0f}"])
    return table(
        ["preparation", "seconds a chunk", "range", "chunks a minute"],
        rows,
        widths=[3, 1.2, 1.5, 1.2],
        title="What preparing a chunk takes (FusionRAG, section 3.1)",
        notice=f"Behind similar chunks a chunk takes {times(similar / plain, 'as long', 'as short')} as behind the "
        f"system prompt alone, and {times(PRINTED / similar, 'less', 'more')} than is printed, on another GPU.",
        caption=f"{kept['shape']}'s shape, random weights, {kept['chunks']} chunks of {kept['tokens']} tokens in "
        f"batches of {kept['batch']}, without the search for similar ones; median and range of {kept['runs']} runs, "
        f"{kept['device']}. data/benchmarks/prepare_cost.py.",
    )
