"""Result of a trial: a flat record that is written as one line of JSON."""

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import BadInput
from workbench.core.utils import html_views
from workbench.core.utils import versions as installed
from workbench.metrics.answers import Score
from workbench.metrics.latency import Quantiles
from workbench.metrics.measures import MEASURES
from workbench.metrics.quality import Quality

if TYPE_CHECKING:
    import torch

# Missing in records of earlier versions.
LATER = (
    "faithfulness",
    "rows_charged",
    "charged_share",
    "preprocess_ms",
    "answered",
    "misses",
    "stored",
    "receipts",
    "engine",
    "ttft_full_s",
)
FIDELITY = frozenset(field.name for field in fields(Quality)) - {field.name for field in fields(Score)}


@dataclass(frozen=True, kw_only=True)
class Record(Quality):
    """Scores and costs of a trial; tokens, rows, FLOPs and bytes are means per request, up to its first token."""

    trial: dict[str, Any]  #: the trial's own fields: model, data, mode, positions, seed, …
    by_kind: dict[str, Quality]  #: per kind of question, "" if the data has no kinds
    ttft_s: Quantiles  #: time to first token: one request at a time, after warm-up, with its blocks in the store
    prompt_tokens: float
    rows_computed: float
    rows_reused: float
    flops: float
    flops_linear: float
    flops_attention: float
    bytes: float
    bytes_loaded: float  #: bytes of keys and values from the store
    hit_rate: float  #: hit rate of the store while the answers were computed; 0 in full mode, which uses no store
    parameters: int
    seconds: float  #: wall time of computing the answers, batched
    device: str
    versions: dict[str, str]
    sparsity: dict[str, Any] | None = None  #: attention that a sparse method keeps (`metrics.tiles.sparsity`)
    faithfulness: dict[str, Any] | None = None  #: of the answers, `metrics.faithfulness.Faithfulness`, if judged
    rows_charged: float | None = None  #: tokens through all layers of all passes, those of the selector included
    charged_share: float | None = None  #: of the prompt's tokens through all layers (`metrics.cost.charged_share`)
    preprocess_ms: float | None = None  #: ms per token of passages missing in the store; None if none was missing
    answered: dict[str, Any] | None = None  #: fidelity over the questions that full attention answers correctly
    misses: dict[str, int] | None = None  #: of the store, by reason (`store.misses.Miss`); None without a store
    stored: dict[str, Any] | None = (
        None  #: of the folder or URL of blocks: {reused, encoded, created}, blocks once each
    )
    receipts: list[dict[str, Any]] | None = None  #: {id, at, receipt} per request (`methods.request_report`)
    engine: str | None = None  #: the engine, and why it was chosen; None in records of earlier versions, and on a CPU
    ttft_full_s: Quantiles | None = None  #: full attention's time to first token, on the first of these prompts
    note: str = ""  #: remarks of the model's folder (random weights), and on settings without effect

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `from_json` reads them back.

        Faithfulness, receipts, and fidelity to full attention are left out if they were not requested.
        """
        values = {name: value for name, value in asdict(self).items() if name not in LATER or value is not None}
        values["by_kind"] = {kind: _measured(score) for kind, score in values["by_kind"].items()}
        return _measured(values)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Record":
        """Read what `to_json` wrote. Raises BadInput that names a missing or unknown field."""
        known = {field.name for field in fields(cls)}
        needed = {field.name for field in fields(cls) if field.default is MISSING}
        if odd := sorted((needed - set(record)) | (set(record) - known)):
            raise BadInput(f"record field {odd[0]!r} is {'missing' if odd[0] in known else 'unknown'}")
        by_kind = {kind: Quality(**score) for kind, score in record["by_kind"].items()}
        times = {name: Quantiles(**record[name]) for name in ("ttft_s", "ttft_full_s") if record.get(name)}
        return cls(**record | {"by_kind": by_kind, **times})

    @property
    def label(self) -> str:
        """The method in words: "full", "block", "block, after_system, query_guided at 15%", …"""
        return label_of(self.trial)

    def __repr__(self) -> str:
        of = f"{self.label} on {self.trial['model']}, {self.trial['data']}"
        scores = {"em": self.em, "f1": self.f1, "kl": self.kl, "ttft_s": self.ttft_s.p50}
        found = (f"{name}={value:.4g}" for name, value in scores.items() if value is not None)
        return f"Record({of}: n={self.n}, {', '.join(found)})"

    def _repr_html_(self) -> str:
        """Show scores with their intervals, costs, parameters and versions in a notebook."""
        scored = [
            (row["kind"] or "(no kind)", *(_interval(row, name) for name in SHOWN), row["n"]) for row in self.rows()
        ]
        title = f"{self.trial['model']} on {self.trial['data']}: {self.label}"
        costs = [
            ("time to first token", f"{self.ttft_s.p50 * 1e3:.1f} ms, {self.ttft_s.n} requests"),
            ("tokens computed", f"{self.rows_computed:,.0f} of {self.prompt_tokens:,.0f}"),
            ("operations", f"{self.flops:.2e}"),
            ("bytes moved", f"{self.bytes:.2e}, of these {self.bytes_loaded:.2e} from the store"),
            ("device", self.device),
            *([("note", self.note)] if self.note else []),
            *self.versions.items(),
        ]
        parts = [
            html_views.table(title, scored, ("questions", *(MEASURES[name].label for name in SHOWN), "n")),
            html_views.table("Costs", costs),
        ]
        return "".join([*parts, html_views.table("Parameters", self.trial.items())])

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of scores per kind of question and one for "all", with the mode of the trial."""
        mode = self.trial["mode"] if self.trial["positions"] != "naive" else "naive"
        score = {field.name: getattr(self, field.name) for field in fields(Quality)}
        scores = {"all": score} | {kind: asdict(of_kind) for kind, of_kind in self.by_kind.items()}
        return [{"mode": mode, "kind": kind} | _measured(of_kind) for kind, of_kind in scores.items()]


SHOWN = ("em", "f1", "contains", "kl")  # scores in a notebook


def _interval(row: dict[str, Any], name: str) -> str:
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    return (
        "–" if value is None else f"{MEASURES[name].format_value(value)} ({MEASURES[name].ends(low or 0, high or 0)})"
    )


def _measured(score: dict[str, Any]) -> dict[str, Any]:
    """Return scores without the fields of fidelity if it was not measured."""
    return score if score["compared"] is not None else {k: v for k, v in score.items() if k not in FIDELITY}


def dumps(record: Record) -> str:
    """Return the record as one line of JSON."""
    return json.dumps(record.to_json(), allow_nan=False)


def versions() -> dict[str, str]:
    """Return the versions of the packages that a measurement depends on."""
    return {"python": platform.python_version()} | installed.versions()


def device_name(device: "torch.device") -> str:
    """Return the accelerator's product name, or the processor with the threads torch uses."""
    import torch  # slow to import, and not needed for reading records

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name, threads = platform.processor() or platform.machine(), torch.get_num_threads()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def label_of(trial: Mapping[str, Any]) -> str:
    """Return the method of a trial in words, from its fields."""
    words = [trial["mode"]]
    words += [f"{trial['positions']} positions"] if trial["positions"] != "re-encoded" else []
    words += [trial["prepare"]] if trial["prepare"] != "independent" else []
    if trial["select"] != "none":
        words.append(trial["select"] + ("" if trial["ratio"] is None else f" at {trial['ratio']:.0%}"))
    words += [trial[name] for name in ("correct", "attend") if trial.get(name, "none") != "none"]
    words += [trial["sparse"]] if trial.get("sparse", "none") != "none" else []
    words += [f"chunks of {trial['chunk']}"] if trial.get("chunk") else []
    return ", ".join(words)
