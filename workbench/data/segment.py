"""Text into the pieces that become blocks: passages, chat turns, in-context examples, JSON state, plain text.

Block-Attention, section 2.2: "segment semantically independent parts of the prompt into separate blocks". The last
piece of a prompt is the question; nothing here adds or drops it.
"""

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from workbench.core.errors import BadInput

# Section 3.1 and the released preprocessing: the first separator that occurs splits the whole text.
SEPARATORS = {"\\n\\n": r"\n\n\s*", "---": r"-{3,}\s*", "===": r"={3,}\s*", "\\n\\t": r"\n\t", "\\n": r"\n\s*"}
_FENCE = re.compile(r"^```.*?(?:^```[^\n]*$\n?|\Z)", re.MULTILINE | re.DOTALL)
_CODE_LINE = re.compile(
    r"\s*(?:(?:def|class|import|from|return|for|while|if|elif|else|func|fn|let|const|var|public|private|static|struct|void|int"
    r"|package|using|namespace|SELECT)\b.*[:;{}()\]=]\s*$|(?:import|from)\s+[\w.]+|#include\b|@\w+|[\w.\[\]]+\s*=[^=]|.*[;{}]\s*$)"
)


def passages(ctxs: Iterable[Any], template: str = "Title: {title}\n{text}\n") -> list[str]:
    """Return one piece for each passage; `ctxs` are objects with `title` and `text`."""
    return [template.format(title=ctx.title, text=ctx.text) for ctx in ctxs]


def split_turns(messages: Sequence[Mapping[str, str]], template: str = "<|{role}|>\n{content}\n") -> list[str]:
    """Return one piece for each turn, a user message with its replies, and for each system message (section 3.1).

    `messages` are `{"role": "system" | "user" | "assistant" | "tool", "content": text}`, in order; if the last is the
    user's, it is the question. Raises BadInput for a message without role or content.
    """
    pieces: list[str] = []
    before = "system"
    for i, message in enumerate(messages):
        if not {"role", "content"} <= message.keys():
            raise BadInput(f"message {i} has {sorted(message)}; a chat message has role and content")
        said = template.format(role=message["role"], content=message["content"])
        if message["role"] in ("system", "user") or before == "system":
            pieces.append(said)
        else:
            pieces[-1] += said
        before = message["role"]
    return pieces


def examples(
    demonstrations: Iterable[Mapping[str, str]], template: str = "Question: {question}\nAnswer: {answer}\n\n"
) -> list[str]:
    """Return one piece for each in-context example (section 3.1: each is a block).

    `template` refers to keys of the examples. Raises BadInput where an example lacks one.
    """
    pieces = []
    for i, demonstration in enumerate(demonstrations):
        try:
            pieces.append(template.format(**demonstration))
        except KeyError as missing:
            raise BadInput(f"example {i} has no {missing}; it has {sorted(demonstration)}") from None
    return pieces


def state(value: Any, root: str = "state") -> list[str]:
    """Return JSON state as one line for each leaf group: `state.chips.p2: {"bet": 10, "remain": 990}` (appendix A).

    A leaf group is an object or array that holds no containers, or the plain values of one that does. Each line begins
    with its path, so that a block encoded alone tells what it belongs to, and depends on its group alone: what did not
    change between two states gives the same block. Different states give different pieces.
    """
    return [f"{path}: {json.dumps(group, ensure_ascii=False)}\n" for path, group in _groups(value, root)]


def _groups(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    plain: Any = value
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        plain = {key: item for key, item in value.items() if not isinstance(item, dict | list)}
        inner = [(_step(key), item) for key, item in value.items() if key not in plain]
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        plain, inner = {}, [(f"[{i}]", item) for i, item in enumerate(value)]
    if not inner or plain:
        yield path, plain
    for step, item in inner:
        yield from _groups(item, path + step)


def _step(key: str) -> str:
    return f".{key}" if re.fullmatch(r"[^\W\d]\w*", key) else f"[{json.dumps(key, ensure_ascii=False)}]"


def text(whole: str, most: int = 15) -> list[str]:
    """Cut plain text at the first separator of SEPARATORS that occurs in it; a separator ends the piece before it.

    The joined pieces are the text. Fenced code is not cut, and a text that is itself code is one piece. While there are
    more than `most` pieces, the shortest is joined to its shorter neighbour. Raises BadInput for `most` under 1.
    """
    if most < 1:
        raise BadInput(f"most is {most}; at least one piece is needed")
    if not whole:
        return []
    if _is_code(whole):
        return [whole]
    fences = [match.span() for match in _FENCE.finditer(whole)]
    for pattern in SEPARATORS.values():
        matches = re.finditer(pattern, whole)
        ends = [match.end() for match in matches if not any(a <= match.start() < b - 1 for a, b in fences)]
        cuts = [end for end in ends if end < len(whole) and whole[:end].strip()]
        if cuts:
            bounds = [0, *cuts, len(whole)]
            return _join([whole[a:b] for a, b in pairwise(bounds)], most)
    return [whole]


def _is_code(whole: str) -> bool:
    lines = [line for line in _FENCE.sub("", whole).splitlines() if line.strip()]
    return len(lines) > 1 and sum(bool(_CODE_LINE.match(line)) for line in lines) > 0.5 * len(lines)


def _join(pieces: list[str], most: int) -> list[str]:
    """Join the shortest piece to its shorter neighbour until `most` are left; O(n log n)."""
    owner: dict[int, str] = dict(enumerate(pieces))
    left, right = {i: i - 1 for i in owner}, {i: i + 1 for i in owner}
    heap = [(len(piece), i) for i, piece in owner.items()]
    heapq.heapify(heap)
    while len(owner) > most:
        length, i = heapq.heappop(heap)
        if i not in owner or len(owner[i]) != length:
            continue  # outdated: joined since
        near = [j for j in (left[i], right[i]) if j in owner]
        a, b = sorted((i, min(near, key=lambda j: (len(owner[j]), j))))
        owner[a] += owner.pop(b)
        right[a] = right[b]
        left[right[b]] = a
        heapq.heappush(heap, (len(owner[a]), a))
    return [owner[i] for i in sorted(owner)]
