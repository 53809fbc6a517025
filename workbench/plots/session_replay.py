"""Sessions of demonstrations, of chat turns and of game frames: their figures with what to notice in them."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.data import demonstrations
from workbench.data.game import Frame
from workbench.experiments.session_replay import later_prompts, mean_em, total
from workbench.metrics.answers import wilson
from workbench.metrics.published_numbers import BLOCK_V2_TEXT
from workbench.plots.block_history import history, turnover
from workbench.plots.findings import joined
from workbench.plots.frames import frames
from workbench.plots.intervals import quality
from workbench.plots.table import table, verdict

Records = Sequence[Mapping[str, Any]]


def equal_answers(records: Records) -> str:
    """Return a sentence on the answers that are those of encoding every block again."""
    return f"{total(records, 'equal')} of {len(records)} answers are those of encoding all blocks again."


def demonstrations_history(records: Records, *, shots: int, seed: int) -> go.Figure:
    """Draw the blocks of requests with `shots` demonstrations each; `records` as of `session_replay.follow`."""
    computed, tokens, prefix = (total(records, field) for field in ("computed", "tokens", "after_prefix"))
    return history(
        records,
        title="Requests with demonstrations",
        unit="request",
        notice=f"In {len(records)} requests blocks compute {computed:,} of {tokens:,} tokens, a prefix cache "
        f"{prefix:,}. {_only_questions(records)}",
        caption=f"{shots} of {demonstrations.POOL} demonstrations in random order, seed {seed}. The store starts "
        "empty. Prefix cache: of the request before.",
    )


def _only_questions(records: Records) -> str:
    """Say from which prompt on no block is encoded, so that the question alone is computed."""
    last = max((i for i, r in enumerate(records) if r["blocks_encoded"]), default=-1)
    if last + 1 == len(records):
        return "Blocks are encoded up to the last request."
    return f"From request {last + 2} on only questions are computed."


def demonstrations_turnover(records: Records, *, repeats: int, device: str) -> go.Figure:
    """Draw what every request with demonstrations takes; its time is a median of `repeats` runs."""
    second = records[len(records) // 2 :]
    computed, tokens = (total(second, field) / len(second) for field in ("computed", "tokens"))
    notice = f"In the second half of the requests blocks compute {computed:,.0f} of {tokens:,.0f} tokens each."
    more = "Up and down: every other question brings a passage of its own."
    return _turnover(records, "request", f"{notice} {equal_answers(records)}", repeats, f"{more} {device}")


def _turnover(records: Records, unit: str, notice: str, repeats: int, more: str) -> go.Figure:
    """Draw what every prompt of a session takes; `unit` is what a prompt is, `more` ends the caption."""
    return turnover(
        records,
        title=f"What a {unit} takes",
        unit=unit,
        notice=notice,
        caption=f"Time to the first token: median of {repeats} runs, what the store lacks encoded within it (the first "
        f"{unit}, full attention and all blocks again: one run). Prefix cache: counted, from the {unit} before, not "
        f"measured. {more}.",
    )


def demonstrations_quality(rows: Sequence[dict[str, Any]], *, about: str, device: str) -> go.Figure:
    """Draw the scores of requests with several numbers of demonstrations: `rows` as of `by_number`."""
    return quality(
        rows,
        notice=f"Full attention answers {mean_em(rows, 'full'):.0%}, blocks {mean_em(rows, 'block'):.0%}. As blocks "
        f"demonstrations do not see each other. {overlapping(rows)}",
        caption=f"{about} (the number of demonstrations stands behind the comma). The question comes with a passage of "
        f"its own, or asks for another fact of a demonstration. Greedy decoding; bars are 95% intervals. {device}.",
    )


def chat_history(records: Records, *, turns: int, memory: int, seed: int) -> go.Figure:
    """Draw the blocks of one conversation, whose prompt keeps the last `memory` turns."""
    first = _first_drop(records, memory)["step"] + 1
    dropped = f"From turn {first} on the oldest turn is dropped and the others move. {_moved(records[first - 1 :])}"
    return history(
        records,
        title="A conversation, turn by turn",
        unit="turn",
        notice=dropped if turns > memory + 1 else "No turn is dropped: the conversation is not longer than its memory.",
        caption=f"One conversation of {turns} turns, of which the last {memory} stay in the prompt; seed {seed}. "
        "Replies in the prompt are the right ones, whatever the model said.",
    )


def _moved(late: Records) -> str:
    """Say how many blocks were encoded, of those that the prompts of these turns hold."""
    encoded, held = total(late, "blocks_encoded"), sum(len(r["fates"]) for r in late)
    return f"In those turns {encoded} of {held} blocks are encoded, {encoded / len(late):.1f} a turn."


def chat_turnover(records: Records, *, memory: int, repeats: int, device: str) -> go.Figure:
    """Draw what every turn takes; its time is a median of `repeats` runs."""
    late = records[_first_drop(records, memory)["step"] :]
    computed, tokens, prefix = (total(late, field) for field in ("computed", "tokens", "after_prefix"))
    counts = f"blocks compute {computed:,} tokens, a prefix cache {prefix:,} of {tokens:,}"
    notice = f"In the last {len(late)} turns {counts}. {equal_answers(records)}"
    return _turnover(records, "turn", notice, repeats, device)


def _first_drop(records: Records, memory: int) -> Mapping[str, Any]:
    """Return the first turn without the oldest one, or the last turn where all of them stay."""
    return records[min(memory + 1, len(records) - 1)]


def chat_quality(rows: Sequence[dict[str, Any]], *, about: str, device: str) -> go.Figure:
    """Draw the scores of conversations by kind of question: `rows` as of `session_replay.scores`."""
    em = {row["mode"]: row["em"] for row in rows if row["kind"] == "all"}
    return quality(
        rows,
        notice=f"Full attention answers {em['full']:.0%}, blocks {em['block']:.0%}. As a block, a turn that says “She "
        f"…” has not seen who that is. {overlapping(rows)}",
        caption=f"{about}. Told now: in this turn; told before: in an earlier turn; follow-up: in an earlier turn that "
        f"went on about somebody. Greedy decoding; bars are 95% intervals. {device}.",
    )


def overlapping(rows: Sequence[dict[str, Any]]) -> str:
    """Say in which kinds of question the 95% intervals of full attention and blocks lie apart."""
    by_mode: dict[str, dict[str, dict[str, Any]]] = {"full": {}, "block": {}}
    for row in rows:
        if row["kind"] != "all" and row["mode"] in by_mode:
            by_mode[row["mode"]][row["kind"]] = row
    full, block = by_mode["full"], by_mode["block"]
    apart = [
        f"{kind} ({full[kind]['em']:.0%} and {block[kind]['em']:.0%})"
        for kind in full
        if kind in block
        and (full[kind]["em_low"] > block[kind]["em_high"] or block[kind]["em_low"] > full[kind]["em_high"])
    ]
    return f"Their intervals lie apart for {joined(apart)}." if apart else "Their intervals overlap for every kind."


def game_frames(records: Records, played: Sequence[Frame], *, seed: int) -> go.Figure:
    """Draw the blocks of every frame of a game as cells, a row a table."""
    session = later_prompts(records)
    rows = list(played[0].state)
    return frames(
        records,
        columns=56,
        rows=rows,
        active=2 if len(records) > 2 else 1,
        notice=f"{session['blocks']} blocks; {session['repeated']:.1%} of them are not encoded again from one frame to "
        "the next. Move the slider.",
        caption=f"Dou dizhu at {len(rows)} tables, {len(records)} frames, seed {seed}. A row is a table: its turn, its "
        "chips, its 54 cards. Point at a cell to read its block; the first block, the rules, is not drawn.",
    )


def game_turnover(records: Records, *, repeats: int, device: str) -> go.Figure:
    """Draw what every frame takes; its time is a median of `repeats` runs."""
    session = later_prompts(records)
    notice = (
        f"After the first frame blocks compute {session['computed']:,.0f} of {session['tokens']:,.0f} tokens a frame, "
        f"a prefix cache {session['after_prefix']:,.0f}. First token: {session['ttft_ms']:,.0f} ms where full "
        f"attention takes {session['ttft_full_ms']:,.0f} ms."
    )
    full, block = BLOCK_V2_TEXT["game_ttft_ms"].values()
    paper = f"Block-Attention, appendix A, reports {full:,} ms and {block:,} ms for a game of over "
    setting = f"{BLOCK_V2_TEXT['game_blocks']} blocks, in a setting it does not publish."
    return _turnover(records, "frame", notice, repeats, f"{paper}{setting} {device}")


def game_table(records: Records, played: Sequence[Frame], *, model: str, device: str, most: int = 16) -> go.Figure:
    """Draw the answers to the first `most` frames, with the store and with every block encoded again."""
    drawn = records[:most]
    right, count = total(records, "right"), len(records)
    low, high = wilson(right, count)
    gap = max(record["logit_gap"] for record in records)
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
        notice=f"{equal_answers(records)} Logits differ by at most {gap:.1g}. Whether they are right is the model's "
        f"affair: {right} of {count} are ({low:.0%} to {high:.0%}).",
        caption=f"{model}, greedy decoding. Encoded again: the same frame with an empty store. Logits: largest "
        f"absolute difference over all tokens of the question. The first {len(drawn)} frames. {device}.",
    )
