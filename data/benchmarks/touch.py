"""Response time of the prompt editor: ratio, selector, two passages swapped, a word edited.

    python data/benchmarks/touch.py --threads 2                     300 ms on the lab model is the bar
    python data/benchmarks/touch.py --threads 2 --model smollm2     2 s is the bar

Writes timings of experiment "touch" for the README, and prints one JSON line per change: milliseconds from the request
to the chosen method's first token ("shown"), full attention's ("both"), and all answers and token values ("all"):
medians and the slowest.
"""

import json
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

from script import name_of, options, writer

from workbench import data, explore
from workbench.app.explore.editor.widget import PromptWidget
from workbench.models.given import Model

Change = Callable[[PromptWidget, int], dict[str, Any]]


def ratio(widget: PromptWidget, turn: int) -> dict[str, Any]:
    """Move the slider of the ratio."""
    return {"ratio": 0.1 + 0.01 * (turn % 20)}


def selector(widget: PromptWidget, turn: int) -> dict[str, Any]:
    """Choose another selector."""
    return {"select": ("kv_deviation", "first_k", "query_guided")[turn % 3]}


def order(widget: PromptWidget, turn: int) -> dict[str, Any]:
    """Swap the first two passages."""
    system, first, second, *others = widget.wanted["blocks"]
    return {"blocks": [system, second, first, *others]}


def word(widget: PromptWidget, turn: int) -> dict[str, Any]:
    """Write another word into the first passage, which is encoded again."""
    blocks = [dict(block) for block in widget.wanted["blocks"]]
    blocks[1]["text"] += f" Number {turn}."
    return {"blocks": blocks}


CHANGES: dict[str, Change] = {"ratio": ratio, "selector": selector, "order": order, "word": word}


def times(widget: PromptWidget, change: dict[str, Any]) -> dict[str, float]:
    """Send a change and return the milliseconds until each part of the answer arrives."""
    came: dict[str, float] = {}

    def arrived(event: dict[str, Any]) -> None:
        if event["new"].get("revision") == wanted:
            came.setdefault("shown", perf_counter())
            if event["new"].get("full"):
                came.setdefault("both", perf_counter())

    wanted = widget.wanted["revision"] + 1
    widget.observe(arrived, "answers")
    begin = perf_counter()
    widget.change(**change).wait()
    came["all"] = perf_counter()
    widget.unobserve(arrived, "answers")
    return {name: (at - begin) * 1e3 for name, at in came.items()}


def measured(model: Model, repeats: int, passages: int = 10) -> Iterator[dict[str, Any]]:
    """Yield one row per change, after a warm-up: {change, tokens, shown, both, all, slowest}."""
    widget = explore.prompt(model, data.load("lab", 1, 0, passages)[0]).wait()
    for name, change in CHANGES.items():
        rows = [times(widget, change(widget, turn)) for turn in range(repeats + 1)][1:]
        medians = {part: round(median(row[part] for row in rows), 1) for part in ("shown", "both", "all")}
        slowest = round(max(row["shown"] for row in rows), 1)
        yield {"change": name, "tokens": widget.bill["length"], **medians, "slowest": slowest}


def main() -> None:
    args = options(__doc__, model="lab-full", threads=2, repeats=9, passages=10)
    with writer(args, f"touch@cpu-{name_of(args.model)}", model=args.model, passages=args.passages) as out:
        for row in measured(args.model, args.repeats, args.passages):
            about = {"workload": row["change"], "setting": {"tokens": row["tokens"]}, "runs": args.repeats}
            most = {"shown": row["slowest"]}
            parts = ("shown", "both", "all")
            out.timings({**about, "candidate": part, "ms": row[part], "most": most.get(part)} for part in parts)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
