"""Edit a prompt; see which blocks are encoded again, and the new answer."""

from collections.abc import Sequence

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, number_slider, slider, text_field
from workbench.experiments.serving.sessions import SessionPrompt, follow
from workbench.models.loading import Loaded
from workbench.plots.marks.table import table
from workbench.plots.tokens.plans import history
from workbench.store import MemoryStore

EDITS = ("nothing", "add a sentence", "delete", "copy to the front", "move to the front", "reverse all blocks")


def editing_explorer(
    loaded: Loaded,
    steps: Sequence[SessionPrompt],
    added: str = "Nobody seems to remember why.",
    max_new_tokens: int = 16,
) -> VBox:
    """Explore one edit of one block: the prompt before and after it, and both answers."""

    def draw(edit: str, sentence: str, number: int, block: int) -> list[go.Figure]:
        step = steps[number]
        pieces = edit_pieces(step.pieces, edit, block, sentence)
        changed = SessionPrompt(pieces, step.answers, step.kind, f"{edit}, block {block}")
        before, after = follow(loaded, [step, changed], MemoryStore(), max_new_tokens, repeats=1)
        rows = []
        for name, r in (("as it is", before), ("edited", after)):
            counts = [f"{r[key]:,}" for key in ("computed", "after_prefix", "tokens")]
            rows.append([name, r["answer"], r["answer_full"], *counts])
        answered = table(
            ["prompt", "answer, blocks", "answer, full", "computed", "prefix cache", "tokens"],
            rows,
            widths=[1.2, 2.2, 2.2, 0.9, 1.1, 0.8],
            words=3,
            title=step.label,
            notice=f"Before the edit the answer was: {', '.join(step.answers)}.",
            caption="Greedy. computed: tokens computed with a block store; prefix cache: with one "
            f"that keeps the prompt before. Largest difference from encoding all again: {after['logit_gap']:.1e}.",
        )
        bars = history(
            [before, after],
            title="Blocks that are encoded again",
            unit="prompt",
            notice=f"{after['blocks_encoded']} of {len(after['fates'])} blocks are encoded again.",
            caption=f"Top: prompt {number} with an empty store. Below: edited.",
        )
        return [answered, bars]

    most = max(1, max(len(step.pieces) for step in steps) - 2)
    controls = [menu(EDITS, "edit", value="add a sentence"), text_field("sentence", added, 420)]
    return explorer([*controls, number_slider("prompt", steps, len(steps) - 1), slider("block", 1, 1, most)], draw)


def edit_pieces(pieces: Sequence[str], edit: str, block: int, sentence: str) -> tuple[str, ...]:
    """Return the pieces of a prompt with one change; the first (system) block and the question stay in place."""
    system, *context, question = pieces
    at = min(block - 1, len(context) - 1)
    if not context:
        return tuple(pieces)
    match edit:
        case "add a sentence":
            head, line, tail = context[at].partition("\n")
            text, end, rest = tail.partition("\n")
            context[at] = f"{head}{line}{text} {sentence}{end}{rest}" if text else f"{head} {sentence}{line}"
        case "delete":
            del context[at]
        case "copy to the front":
            context.insert(0, context[at])
        case "move to the front":
            context.insert(0, context.pop(at))
        case "reverse all blocks":
            context.reverse()
    return (system, *context, question)
