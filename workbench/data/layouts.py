"""How a sample becomes a prompt: the text around its parts, and the tokens of every block.

Each block is tokenised alone and the token ids are joined, so a passage has the same tokens wherever it stands; text is
never decoded and encoded again. BOS, where a model wants one, belongs to the first block only.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from string import Formatter
from typing import Any

from transformers import PreTrainedTokenizerBase

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.data import segment
from workbench.data.sample import Sample


@dataclass(frozen=True)
class Layout:
    """The prompt format of a model: system block, one block a passage, the question; `answer` is what training appends.

    `stop` strings end an answer and are no part of it. Raises BadInput for a template without its fields.
    """

    name: str
    bos: bool
    system: str
    passage: str
    question: str
    answer: str
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, wanted in (("passage", "text"), ("question", "question"), ("answer", "answer")):
            if wanted not in _names(getattr(self, part), part):
                raise BadInput(f"layout {self.name!r}: {part} template {getattr(self, part)!r} has no {{{wanted}}}")
        if "" in self.stop:
            raise BadInput(f"layout {self.name!r}: an empty stop string would end every answer at once")

    def pieces(self, sample: Sample) -> list[str]:
        """The texts of the blocks, in order; the last is the question."""
        system = [self.system] if self.system else []
        return system + segment.passages(sample.ctxs, self.passage) + [self.question.format(question=sample.question)]

    def prompt(self, sample: Sample, tokenizer: PreTrainedTokenizerBase) -> Prompt:
        """The prompt of one sample."""
        return self.prompts([sample], tokenizer)[0]

    def prompts(self, samples: Iterable[Sample], tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
        """The prompts of many samples; every distinct piece is tokenised once."""
        return prompts([self.pieces(sample) for sample in samples], tokenizer, bos=self.bos)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"stop": list(self.stop)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Layout":
        """A layout from its JSON object. Raises BadInput for a field that is missing, unknown or of the wrong type."""
        known = {field.name: bool if field.name == "bos" else str for field in fields(cls) if field.name != "stop"}
        for name, kind in known.items():
            if not isinstance(record.get(name), kind):
                raise BadInput(f"layout field {name!r} is {json.dumps(record.get(name))}; {kind.__name__} is needed")
        if unknown := set(record) - set(known) - {"stop"}:
            raise BadInput(f"unknown layout field {sorted(unknown)[0]!r}; allowed are {', '.join([*known, 'stop'])}")
        stop = record.get("stop", [])
        if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
            raise BadInput(f"layout field 'stop' is {json.dumps(stop)}; a list of texts is needed")
        return cls(**{**record, "stop": tuple(stop)})


def prompts(texts: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, bos: bool = False) -> list[Prompt]:
    """Prompts from the pieces of `segment`, the last piece of each being its question.

    Raises BadInput for a prompt without a block before its question, for a piece without tokens and for a BOS that the
    tokenizer does not have.
    """
    start = tokenizer.bos_token_id
    if bos and start is None:
        raise BadInput("the layout wants a BOS token and the tokenizer has none")
    distinct = list(dict.fromkeys(chain.from_iterable(texts)))
    encoded = tokenizer(distinct, add_special_tokens=False)["input_ids"] if distinct else []
    tokens = dict(zip(distinct, encoded, strict=True))
    listed = []
    for pieces in texts:
        blocks = [Block(tuple(tokens[piece]), label=_label(piece)) for piece in pieces]
        if bos:
            blocks[0] = Block((start, *blocks[0].tokens), label=blocks[0].label)
        listed.append(Prompt(tuple(blocks)))
    return listed


def _label(piece: str) -> str:
    line = " ".join(piece.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _names(template: str, part: str) -> set[str]:
    try:
        return {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as problem:
        raise BadInput(f"layout template {part} {template!r}: {problem}") from None


LAB = Layout(
    "lab",
    bos=True,
    system="Answer the question from the passages.\n",
    passage="Title: {title}\nText: {text}\n",
    question="Question: {question}\nAnswer:",
    answer=" {answer}\n",
    stop=("\n",),
)

# As released with Block-Attention (Tulu-3 chat format, no BOS); the end of an answer is the model's own EOS.
RELEASED = Layout(
    "released",
    bos=False,
    system="<|user|>\nYou are an intelligent AI assistant. Please answer questions based on the user's instructions. "
    "Below are some reference documents that may help you in answering the user's question.\n\n",
    passage="- Title: {title}\n{text}\n",
    question="\n\nPlease write a high-quality answer for the given question using only the provided search documents "
    "(some of which might be irrelevant).\nQuestion: {question}\n<|assistant|>\n",
    answer="{answer}<|end_of_text|>",
    stop=("<|end_of_text|>",),
)

LAYOUTS = {layout.name: layout for layout in (LAB, RELEASED)}
