"""Sessions of demonstrations, of chat turns and of game frames: their figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.data.sources import demonstrations
from workbench.data.sources.game import Frame
from workbench.experiments.serving.session_replay import total
from workbench.metrics.published_numbers import BLOCK_V2_TEXT
from workbench.plots.attention.frames import frames
from workbench.plots.marks.intervals import quality
from workbench.plots.marks.table import table, verdict
from workbench.plots.tokens.block_history import history, turnover

Records = Sequence[Mapping[str, Any]]


def demonstrations_history(records: Records, *, shots: int, seed: int) -> go.Figure:
    """Draw the blocks of requests with `shots` demonstrations each; `records` as of `session_replay.follow`."""
    return history(
        records,
        title="Requests with demonstrations",
        unit="request",
        caption=f"{shots} of {demonstrations.POOL} demonstrations in random order, seed {seed}. The store starts "
        "empty. Prefix cache: of the request before.",
    )


def demonstrations_turnover(records: Records, *, repeats: int, device: str) -> go.Figure:
    """Draw what every request with demonstrations takes; its time is a median of `repeats` runs."""
    more = "Up and down: every other question brings a passage of its own."
    return _turnover(records, "request", repeats, f"{more} {device}")


def _turnover(records: Records, unit: str, repeats: int, more: str) -> go.Figure:
    """Draw what every prompt of a session takes; `unit` is what a prompt is, `more` ends the caption."""
    return turnover(
        records,
        title=f"What a {unit} takes",
        unit=unit,
        caption=f"Time to the first token: median of {repeats} runs, what the store lacks encoded within it (the first "
        f"{unit}, full attention and all blocks again: one run). Prefix cache: counted, from the {unit} before, not "
        f"measured. {more}.",
    )


def demonstrations_quality(rows: Sequence[dict[str, Any]], *, about: str, device: str) -> go.Figure:
    """Draw the scores of requests with several numbers of demonstrations: `rows` as of `by_number`."""
    return quality(
        rows,
        caption=f"{about} (the number of demonstrations stands behind the comma). The question comes with a passage of "
        f"its own, or asks for another fact of a demonstration. Greedy decoding; bars are 95% intervals. {device}.",
    )


def chat_history(records: Records, *, turns: int, memory: int, seed: int) -> go.Figure:
    """Draw the blocks of one conversation, whose prompt keeps the last `memory` turns."""
    return history(
        records,
        title="A conversation, turn by turn",
        unit="turn",
        caption=f"One conversation of {turns} turns, of which the last {memory} stay in the prompt; seed {seed}. "
        "Replies in the prompt are the right ones, whatever the model said.",
    )


def chat_turnover(records: Records, *, repeats: int, device: str) -> go.Figure:
    """Draw what every turn takes; its time is a median of `repeats` runs."""
    return _turnover(records, "turn", repeats, device)


def chat_quality(rows: Sequence[dict[str, Any]], *, about: str, device: str) -> go.Figure:
    """Draw the scores of conversations by kind of question: `rows` as of `session_replay.scores`."""
    return quality(
        rows,
        caption=f"{about}. Told now: in this turn; told before: in an earlier turn; follow-up: in an earlier turn that "
        f"went on about somebody. Greedy decoding; bars are 95% intervals. {device}.",
    )


def game_frames(records: Records, played: Sequence[Frame], *, seed: int) -> go.Figure:
    """Draw the blocks of every frame of a game as cells, a row a table."""
    rows = list(played[0].state)
    return frames(
        records,
        columns=56,
        rows=rows,
        active=2 if len(records) > 2 else 1,
        caption=f"Dou dizhu at {len(rows)} tables, {len(records)} frames, seed {seed}. A row is a table: its turn, its "
        "chips, its 54 cards. Point at a cell to read its block; the first block, the rules, is not drawn.",
    )


def game_turnover(records: Records, *, repeats: int, device: str) -> go.Figure:
    """Draw what every frame takes; its time is a median of `repeats` runs."""
    full, block = BLOCK_V2_TEXT["game_ttft_ms"].values()
    paper = f"Block-Attention, appendix A, reports {full:,} ms and {block:,} ms for a game of over "
    setting = f"{BLOCK_V2_TEXT['game_blocks']} blocks, in a setting it does not publish."
    return _turnover(records, "frame", repeats, f"{paper}{setting} {device}")


def game_table(records: Records, played: Sequence[Frame], *, model: str, device: str, most: int = 16) -> go.Figure:
    """Draw the answers to the first `most` frames, with the store and with every block encoded again."""
    drawn = records[:most]
    count, gap = len(records), max(record["logit_gap"] for record in records)
    rows = []
    for r, frame in zip(drawn, played, strict=False):
        answers = [frame.question, frame.answers[0], r["answer"], r["answer_anew"], verdict(r["equal"])]
        encoded = f"{r['blocks_encoded']} of {len(r['fates'])}"
        rows.append([str(r["step"] + 1), *answers, f"{r['logit_gap']:.1g}", encoded])
    return table(
        ["frame", "question", "state", "with the store", "encoded again", "equal", "logits differ by", "encoded"],
        rows,
        widths=[0.65, 3.9, 0.6, 1.5, 1.5, 0.65, 1.5, 1.2],
        words=6,
        title="With the store, and with every block encoded again",
        caption=f"{model}, greedy decoding. Encoded again: the same frame with an empty store. Logits: largest "
        f"absolute difference over all tokens of the question, at most {gap:.1g}. Of {count} answers "
        f"{total(records, 'equal')} are equal and {total(records, 'right')} right. The first {len(drawn)} frames. "
        f"{device}.",
    )
