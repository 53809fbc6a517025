"""Prompts that follow one another and share most of their blocks: demonstrations, chat turns, states of a game.

Each of these becomes a block (Block-Attention, sections 2.2 and 3.1 and appendix A).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.data import layouts, segment
from workbench.data.layouts import Layout
from workbench.data.sample import Sample
from workbench.data.sources.demonstrations import Request
from workbench.data.sources.game import RULES, Frame
from workbench.models.loading import Loaded


@dataclass(frozen=True)
class SessionPrompt:
    """One prompt of a session in pieces, the question last, with the aliases of its answer; `label` is its event."""

    pieces: tuple[str, ...]
    answers: tuple[str, ...]
    kind: str
    label: str


def of_game(frames: Sequence[Frame], layout: Layout) -> list[SessionPrompt]:
    """Make prompts of the rules, one block a leaf group of the state, and the question.

    In a chat the rules stand behind the system prompt, inside the user's turn.
    """
    rules = (layout.system if layout.turn else "") + RULES
    pieces = [(rules, *frame.pieces(), layout.question.format(question=frame.question)) for frame in frames]
    return [SessionPrompt(text, f.answers, f.kind, f.event) for text, f in zip(pieces, frames, strict=True)]


def of_frames(states: Sequence[Sample], layout: Layout) -> list[SessionPrompt]:
    """Make prompts of the system block, one block a passage of the state, and the question."""
    return [SessionPrompt(tuple(layout.pieces(state)), state.answers, state.kind, state.id) for state in states]


def of_chat(turns: Sequence[Sample], layout: Layout, memory: int = 8) -> list[SessionPrompt]:
    """Make prompts of the system block, the last turns and the question.

    The last `memory` turns stand there with their (right) replies, one block each.

    A turn's block ends with the text that opens the user's next turn, so it is the same wherever it stands.
    """
    if memory < 1:
        raise BadInput(f"memory is {memory}; at least 1 turn is remembered")
    system = {"role": "system", "content": layout.system or "\n"}
    asked = [{"role": "user", "content": _asked(turn, layout)} for turn in turns]
    replies = [{"role": "assistant", "content": _reply(turn, layout)} for turn in turns]
    steps = []
    for at, turn in enumerate(turns):
        past = slice(max(0, at - memory), at)
        remembered = chain.from_iterable(zip(asked[past], replies[past], strict=True))
        pieces = segment.turns([system, *remembered, asked[at]], template="{content}")
        steps.append(SessionPrompt(tuple(pieces), turn.answers, turn.kind, turn.question))
    return steps


def of_demonstrations(requests: Sequence[Request], layout: Layout) -> list[SessionPrompt]:
    """Make prompts of the system block, one block a demonstration, and the question with its passage."""
    steps = []
    for request in requests:
        shots, asked = request.demonstrations, request.asked
        shown = [{"asked": _asked(s, layout), "answer": _reply(s, layout)} for s in shots]
        pieces = [layout.system or "\n", *segment.examples(shown, "{asked}{answer}"), _asked(asked, layout)]
        steps.append(SessionPrompt(tuple(pieces), asked.answers, asked.kind, asked.question))
    return steps


def prompts(steps: Sequence[SessionPrompt], loaded: Loaded, max_new_tokens: int = 0) -> list[Prompt]:
    """Tokenize the prompts of all steps; BadInput where one leaves no room for its answer in the model's context."""
    loaded = Loaded(*loaded)
    tokenized = layouts.prompts([step.pieces for step in steps], loaded.tokenizer, bos=loaded.layout.bos)
    context = loaded.spec.context
    longest = max(map(len, tokenized), default=0)
    if context and longest + max_new_tokens > context:
        raise BadInput(
            f"a prompt of {longest} tokens and an answer of {max_new_tokens} are over the model's context of {context} "
            "tokens: ask for fewer tables, turns or demonstrations"
        )
    return tokenized


def _reply(sample: Sample, layout: Layout) -> str:
    """Write the answer, and the opening of the user's next turn."""
    return layout.answer.format(answer=sample.answers[0]) + layout.turn


def _asked(sample: Sample, layout: Layout) -> str:
    """Join passages and the question behind them into one text."""
    return "".join(segment.passages(sample.ctxs, layout.passage)) + layout.question.format(question=sample.question)
