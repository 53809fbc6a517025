"""Options of `workbench tune` for training data. Has no slow imports, so that `--help` is fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class DataFields:
    """Training data, as `examples.Data` reads it."""

    name: str = "lab"
    passages: Annotated[tuple[int, int] | None, "Passages of a lab context, as 10 or 1-40"] = None
    questions: Annotated[int | None, "Questions over one context of lab, or of --mix"] = None
    kinds: Annotated[Mapping[str, float] | None, "Weights of lab questions, as continuation=3,order=1"] = None
    continued: Annotated[float | None, "Share of lab documents with a second passage"] = None
    shuffled: Annotated[float | None, "Share of lab contexts in random order"] = None
    mix: Annotated[tuple[int, int] | None, "Passages of contexts that are mixed from a file's samples, as 4-12"] = None
    overlap: Annotated[str, "Samples that share text with --exclude or --evaluate-data: refuse or drop"] = "refuse"
    exclude: tuple[str, ...] = ()
