"""Prompt layouts from chat templates: the text around passages, question and answer, as the template writes it.

A template is rendered with marks in place of the passages, the question and the answer, and cut at the marks. So the
joined texts of the blocks are the template's own rendering.

    system block     BOS, the system turn and the opening of the user turn
    passages         one block each, inside the user turn
    question block   the question, the end of the user turn and the generation prompt

Blocks end with a line break and do not begin with one, as tokenizers split there anyway. Where a template refuses or
drops a system turn (Gemma 2: "System role not supported"), the system text opens the user turn.
"""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from functools import reduce
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import TYPE_CHECKING, Any

from workbench.core.errors import BadInput
from workbench.data.layouts import CHAT, Layout, known_layout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM = "You answer questions in a few words, using only the given passages."
OPENING = "Passages:\n"
PASSAGE = "Title: {title}\n{text}\n"
QUESTION = "Question: {question}\nAnswer in a few words."
DATE = date(2024, 7, 26)  # "today" in all templates, so that keys of blocks do not change from day to day
SECONDS, BYTES, CHARACTERS = 5.0, 1 << 28, 100_000  # limits of rendering a template, beyond its input
REMEDY = "choose another layout: lab, released or a JSON file"

_PASSAGES, _QUESTION, _ANSWER, _NEXT = "PassagesStandHere", "QuestionStandsHere", "AnswerStandsHere", "NextStandsHere"
_CODES = ("%-d", "%-m", *(f"%{letter}" for letter in "aAbBdHIjmMpSyY"))
Message = dict[str, str]


def chat_message(role: str, content: str) -> Message:
    """Return one message of a conversation: {"role": …, "content": …}."""
    return {"role": role, "content": content}


def render(tokenizer: "PreTrainedTokenizerBase", messages: list[Message], answer: bool = True) -> str:
    """Return the text of a conversation by the tokenizer's chat template.

    With `answer`, the generation prompt is appended. Reasoning is switched off where a template can do that, and the
    date is fixed to `DATE`. Raises BadInput, with the template's message, where it refuses the conversation.
    """
    try:
        template = tokenizer.get_chat_template()
        if "strftime_now" in template:
            template = _pinned() + template
        options: dict[str, Any] = {"tokenize": False, "enable_thinking": False, "add_generation_prompt": answer}
        with limited_execution(SECONDS, BYTES):
            text = str(tokenizer.apply_chat_template(messages, chat_template=template, **options))
        if len(text) > CHARACTERS + sum(len(message["content"]) for message in messages):
            raise BadInput(f"it writes {len(text):,} characters")
        return text
    except Exception as problem:  # a template is a program of the checkpoint, which may raise anything
        why = " ".join(str(problem).split()) or type(problem).__name__
        raise BadInput(f"the chat template of {_name(tokenizer)} refuses a conversation: {why}") from None


def layout(tokenizer: "PreTrainedTokenizerBase") -> Layout:
    """Return the layout "chat" of an instruct model, which asks for short answers from passages.

    An answer ends at the template's end of turn or at a line break. Raises BadInput where the tokenizer has no chat
    template or one that cannot hold passages.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise BadInput(f"the tokenizer of {_name(tokenizer)} has no chat template: {REMEDY}")
    prompt = _prompt(tokenizer)
    system, rest = prompt.split(_PASSAGES)
    before, after = rest.split(_QUESTION)
    added, answer, end, turn = _answered(tokenizer, after)
    bos = _opens(tokenizer, prompt)
    return Layout(
        CHAT,
        bos=bool(bos),
        system=system.removeprefix(bos),
        passage=PASSAGE,
        question=_escaped(before) + "{question}" + _escaped(after + added),
        answer=answer,
        stop=tuple(dict.fromkeys(text for text in (end, "\n") if text)),
        turn=turn,
    )


def layout_named(name: str, tokenizer: "PreTrainedTokenizerBase") -> Layout:
    """Return a layout by name ("lab", "released", "chat") or from a JSON file. Raises BadInput for anything else."""
    return known_layout(name) or layout(tokenizer)


def _prompt(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the prompt with marks, with a system turn if the template supports one."""
    asked = _asked()
    problem = f"the chat template of {_name(tokenizer)} drops or changes what stands in a user turn"
    for messages in (
        [chat_message("system", SYSTEM), chat_message("user", asked)],
        [chat_message("user", f"{SYSTEM}\n\n{asked}")],
    ):
        try:
            prompt = render(tokenizer, messages)
        except BadInput as refusal:
            problem = str(refusal)
            continue
        if asked in prompt and prompt.count(_PASSAGES) == 1 and SYSTEM in prompt:
            return prompt
    raise BadInput(f"{problem}; it cannot hold passages: {REMEDY}")


def _answered(tokenizer: "PreTrainedTokenizerBase", after: str) -> tuple[str, str, str, str]:
    """Return (rest of the question block, answer template, end of a turn, next turn).

    `after`: the prompt's text behind the question. The rest is empty except for templates without a generation prompt.
    The next turn is the text between the end of an answer and the user's next words.
    """
    user, reply = chat_message("user", _asked()), chat_message("assistant", _ANSWER)
    try:
        whole = render(tokenizer, [user, reply], answer=False).split(_QUESTION)[-1]
        bridge, tail = whole.removeprefix(after).split(_ANSWER)
    except (BadInput, ValueError):  # no answers in conversations: an answer ends with EOS
        whole, bridge, tail = "", "", tokenizer.eos_token or ""
    if not whole.startswith(after):  # an answered turn has a different form, e.g. without its reasoning
        bridge = ""
    added = bridge if bridge.strip() and _unasked(tokenizer, user) else ""
    match = re.search("|".join(map(re.escape, _special(tokenizer))) or "$^", tail)
    closing = tail[: match.end()] if match else tail.rstrip()
    answer = _escaped(bridge.removeprefix(added)) + "{answer}" + _escaped(closing)
    return added, answer, match.group() if match else closing.strip(), _next_turn(tokenizer, [user, reply], closing)


def _unasked(tokenizer: "PreTrainedTokenizerBase", user: Message) -> bool:
    """Return whether the template has no generation prompt."""
    return render(tokenizer, [user]) == render(tokenizer, [user], answer=False)


def _next_turn(tokenizer: "PreTrainedTokenizerBase", answered: list[Message], closing: str) -> str:
    try:
        whole = render(tokenizer, [*answered, chat_message("user", _NEXT)])
        return whole.split(_ANSWER)[1].split(_NEXT)[0].removeprefix(closing)
    except (BadInput, IndexError):  # the template supports a single turn only
        return ""


def _opens(tokenizer: "PreTrainedTokenizerBase", prompt: str) -> str:
    """Return the BOS at the start of a prompt; "" if it begins every turn (SmolLM2) and so belongs to the turns."""
    bos = tokenizer.bos_token
    return str(bos) if bos and prompt.startswith(bos) and prompt.count(bos) == 1 else ""


def _asked() -> str:
    return OPENING + _PASSAGES + QUESTION.format(question=_QUESTION)


def _special(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """Return the texts of the special tokens, the longest first."""
    own = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(own | set(tokenizer.all_special_tokens), key=lambda text: (-len(text), text))


def _pinned() -> str:
    """Return a macro that replaces the function by which templates get the date."""
    text = reduce(lambda so_far, code: f"{so_far}|replace('{code}', '{DATE.strftime(code)}')", _CODES, "format")
    return f"{{% macro strftime_now(format) %}}{{{{ {text} }}}}{{% endmacro %}}\n"  # without rendered line break


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _name(tokenizer: "PreTrainedTokenizerBase") -> str:
    return tokenizer.name_or_path or "this tokenizer"


_TURN = RLock()  # the memory limit is per process: concurrent changes would restore wrong limits
MAPPED = Path("/proc/self/statm")  # first number: pages of address space


@contextmanager
def limited_execution(seconds: float, new_bytes: int) -> Iterator[None]:
    """Limit the Python code of a block: TimeoutError after `seconds`, MemoryError for more `new_bytes` (on Linux).

    The clock is read at every line (`sys.settrace`), which slows the code. One thread at a time is in such a block.
    """
    tracer = sys.gettrace()

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > ends:
            raise TimeoutError(f"it takes more than {seconds:g} seconds")
        return watch

    with _TURN, ExitStack() as stack:
        stack.callback(sys.settrace, tracer)
        if MAPPED.is_file():
            import resource  # not available on every system

            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            most = int(MAPPED.read_text().split()[0]) * resource.getpagesize() + new_bytes
            if soft == resource.RLIM_INFINITY or most < soft:
                stack.callback(resource.setrlimit, resource.RLIMIT_AS, (soft, hard))
                resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        ends = time.monotonic() + seconds
        sys.settrace(watch)
        yield
