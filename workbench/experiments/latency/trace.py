"""Export serving events in Chrome's trace format, which Perfetto (ui.perfetto.dev) opens.

Two groups of tracks: "machine" has a track for the engine, each loader, the scheduler and the tiers; "requests" has one
per request, from its arrival to its last token. Format: "Trace Event Format", JSON Object Format (Google, 2016):
complete events (`ph` X) for spans, instant events (i) for moments, async events (b, e) for overlapping spans of a
track.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import BadInput
from workbench.core.utils import json_text
from workbench.store.events import SPANS, Event, Span

if TYPE_CHECKING:
    from workbench.methods.request_report import Receipt

MACHINE, REQUESTS = 1, 2  # process numbers
OF_REQUEST: tuple[Span, ...] = ("wait", "load", "encode", "prefill", "decode")  # spans of a request's own track
_SHOWN = ("key", "tier", "bytes", "tokens", "detail", "request")


def read_trace(path: Path) -> list[Event]:
    """Read the stages of each request from the record of a trial that was run with receipts.

    `path` is the record's file, or a folder with one trial. Raises BadInput for other files.
    """
    file = _record_in(path) if path.is_dir() else path
    if not file.is_file():
        raise BadInput(f"{file} is not there: give a record of `workbench trial --receipt`")
    try:
        content = json_text.loads(file.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise BadInput(f"{file} is no JSON file: {problem}") from None
    content = content.get("record", content) if isinstance(content, Mapping) else content
    if isinstance(content, Mapping) and "trial" in content:
        if content.get("receipts") is None:
            raise BadInput(f"{file} is a record without receipts: run `workbench trial` with --receipt")
        return of_receipts(content["receipts"])
    raise BadInput(f"{file} does not hold the record of a trial")


def _record_in(folder: Path) -> Path:
    """Return the file of a folder with one trial (`trial --out`)."""
    trials = [path for path in (folder / "trials").glob("*.json") if not path.name.endswith(".failed.json")]
    if len(trials) > 1:
        raise BadInput(f"{folder} holds {len(trials)} trials: name the file of one, in {folder / 'trials'}")
    if not trials:
        raise BadInput(f"{folder} holds no trial: give a record of `workbench trial --receipt`")
    return trials[0]


def of_receipts(receipts: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return the stages of a trial's requests as events, batch by batch."""
    from workbench.methods.request_report import STAGES, Receipt  # imports torch

    events: list[Event] = []
    for number, row in enumerate(receipts):
        if not isinstance(row, Mapping) or not {"id", "at", "receipt"} <= set(row):
            raise BadInput(f"receipt {number} lacks 'id', 'at' or 'receipt'")
        receipt, at, name = Receipt.from_json(row["receipt"]), float(row["at"]), str(row["id"])
        events.append(Event("arrive", at, lane="scheduler", request=name))
        for stage in STAGES:
            seconds = receipt.seconds.get(stage, 0.0)
            if seconds:
                events += _of_stage(stage, at, seconds, name, receipt)
            at += seconds
        events.append(Event("finish", at, lane="scheduler", request=name))
    return events


def chrome(events: Iterable[Event]) -> dict[str, Any]:
    """Return events as an object of Chrome's trace format; times are in microseconds."""
    listed = sorted(events, key=lambda event: (event.at, -event.seconds))
    lanes = _numbered(event.lane for event in listed)
    requests = _numbered(event.request for event in listed if event.request)
    traced = [_named("process_name", MACHINE, 0, "machine"), _named("process_name", REQUESTS, 0, "requests")]
    traced += [_named("thread_name", MACHINE, number, lane) for lane, number in lanes.items()]
    traced += [_named("thread_name", REQUESTS, number, f"request {name}") for name, number in requests.items()]
    for number, event in enumerate(listed):
        traced += _traced(event, number, lanes, requests)
    return {"traceEvents": traced, "displayTimeUnit": "ms"}


def _of_stage(stage: str, at: float, seconds: float, name: str, receipt: "Receipt") -> list[Event]:
    batch = f"of its batch of {receipt.batch}" if receipt.batch > 1 else ""  # times are of the whole batch
    about: dict[str, Any] = {"seconds": seconds, "request": name, "detail": batch}
    if stage == "load":
        tiers = receipt.bytes
        return [Event("load", at, lane="engine", bytes=sum(tiers.values()), tier=", ".join(sorted(tiers)), **about)]
    if span := next((span for span in OF_REQUEST if span == stage), None):
        return [Event(span, at, lane="engine", **about)]
    about["detail"] = f"{stage} {batch}".strip()
    return [Event("encode", at, lane="engine", **about)]  # stages "store" and "place" belong to encoding


def _traced(event: Event, number: int, lanes: Mapping[str, int], requests: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the entries of one event: on its request's track, and on that of the machine part it used."""
    shown = {name: value for name in _SHOWN if (value := getattr(event, name))}
    base = {"name": event.what, "cat": event.tier or event.lane, "ts": event.at * 1e6, "args": shown}
    track = {"pid": REQUESTS, "tid": requests[event.request]} if event.request else {}
    lane = {"pid": MACHINE, "tid": lanes[event.lane]}
    if event.what not in SPANS:
        return [base | (track or lane) | {"ph": "i", "s": "t"}]
    span = {"ph": "X", "dur": event.seconds * 1e6}
    if event.what in OF_REQUEST and track:
        busy = event.what == "load" and event.lane != "scheduler"
        return [base | track | span, *([base | lane | span] if busy else [])]
    if event.what == "run":
        return [base | lane | span]
    ends = {"ph": "e", "ts": event.end * 1e6}
    return [base | lane | {"ph": "b", "id": number}, base | lane | ends | {"id": number}]


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """Number names from 1, in order of first occurrence."""
    return {name: number for number, name in enumerate(dict.fromkeys(names), 1)}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": {"name": name}}
