"""Prompt layouts: how a sample becomes a prompt, the text around its parts and the tokens of every block.

Each block is tokenised alone and the token ids are joined, so a passage has the same tokens wherever it is. BOS, if a
model uses one, belongs to the first block. `data.chat_template` makes a layout from a tokenizer's chat template.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from workbench.core.errors import BadInput, format_value, not_allowed
from workbench.core.utils import annotations, json_text
from workbench.core.utils.files import is_file
from workbench.data import segment
from workbench.data.sample import Sample

if TYPE_CHECKING:  # named layouts and files are read without torch
    from transformers import PreTrainedTokenizerBase

    from workbench.core.blocks import Prompt

MANY = 100_000  # characters; longer texts are checked against the context before tokenisation
SURROGATE = re.compile("[\ud800-\udfff]")
FIELDS = {"passage": ("text", "title"), "question": ("question",), "answer": ("answer",)}  # the first field is required


@dataclass(frozen=True)
class Layout:
    """The prompt format of a model: a system block, one block a passage, and the question.

    bos       whether the first block begins with the tokenizer's BOS token
    system    text of the system block; "": there is none
    passage   template with {title} and {text}
    question  template with {question}
    answer    template with {answer}, which training appends
    stop      strings that end an answer and are not part of it
    turn      text between an answer and the user's next message, in a conversation

    Raises BadInput for a template with missing or unknown fields.
    """

    name: str
    bos: bool
    system: str
    passage: str
    question: str
    answer: str
    stop: tuple[str, ...] = ()
    turn: str = ""

    def __post_init__(self) -> None:
        for part, (wanted, *others) in FIELDS.items():
            names = _names(getattr(self, part), part, (wanted, *others))
            if wanted not in names:
                raise BadInput(f"layout {self.name!r}: {part} template {getattr(self, part)!r} has no {{{wanted}}}")
        if "" in self.stop:
            raise BadInput(f"layout {self.name!r}: an empty stop string would end every answer at once")

    def pieces(self, sample: Sample) -> list[str]:
        """Return the texts of a sample's blocks, in order; the last is the question."""
        if not isinstance(sample, Sample):
            raise BadInput(f"{format_value(sample)} is no sample: `data.load` returns those")
        system = [self.system] if self.system else []
        return system + segment.passages(sample.ctxs, self.passage) + [self.question.format(question=sample.question)]

    def prompt(self, sample: Sample, tokenizer: "PreTrainedTokenizerBase") -> "Prompt":
        """Return the prompt of one sample."""
        return self.prompts([sample], tokenizer)[0]

    def prompts(self, samples: Iterable[Sample], tokenizer: "PreTrainedTokenizerBase") -> "list[Prompt]":
        """Return the prompts of many samples; each distinct text is tokenised once."""
        annotations.check("samples", samples, Iterable[Sample])
        return prompts([self.pieces(sample) for sample in samples], tokenizer, bos=self.bos)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"stop": list(self.stop)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Layout":
        """Return a layout from its JSON object.

        Raises BadInput for a field that is missing, unknown or of the wrong type.
        """
        known = {field.name: bool if field.name == "bos" else str for field in fields(cls) if field.name != "stop"}
        for name, kind in known.items():
            value = record.get(name, "" if name == "turn" else None)
            if not isinstance(value, kind):
                raise BadInput(f"layout field {name!r} is {json.dumps(value)}; {kind.__name__} is needed")
        if unknown := set(record) - set(known) - {"stop"}:
            raise not_allowed("layout field", sorted(unknown)[0], [*known, "stop"])
        stop = record.get("stop", [])
        if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
            raise BadInput(f"layout field 'stop' is {json.dumps(stop)}; a list of texts is needed")
        return cls(**{**record, "stop": tuple(stop)})


def prompts(texts: Sequence[Sequence[str]], tokenizer: "PreTrainedTokenizerBase", bos: bool = False) -> "list[Prompt]":
    """Return one prompt for each list of texts: a text is a block, the last one the question.

    `bos` puts the tokenizer's BOS token before the first block. Raises BadInput for a prompt of one text, a text
    without tokens, and a BOS token that the tokenizer does not have.
    """
    from workbench.core.blocks import Block, Prompt

    if not hasattr(tokenizer, "bos_token_id"):
        raise BadInput(f"tokenizer is {format_value(tokenizer)}: a tokenizer of transformers is needed")
    start = tokenizer.bos_token_id
    if bos and start is None:
        raise BadInput("the layout wants a BOS token and the tokenizer has none")
    first = _encoded({pieces[0] for pieces in texts if pieces}, tokenizer, tokenizer.bos_token if bos else "")
    later = _encoded(chain.from_iterable(pieces[1:] for pieces in texts), tokenizer, _lead(tokenizer))
    listed = []
    for pieces in texts:
        opening = [Block(((start, *first[piece]) if bos else first[piece]), _label(piece)) for piece in pieces[:1]]
        listed.append(Prompt((*opening, *(Block(later[piece], _label(piece)) for piece in pieces[1:]))))
    return listed


def encode(texts: Iterable[str], tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Return the token ids of texts as they follow other text: without BOS and SentencePiece's leading blank."""
    listed = list(texts)
    tokens = _encoded(listed, tokenizer, _lead(tokenizer))
    return [list(tokens[text]) for text in listed]


def _encoded(texts: Iterable[str], tokenizer: "PreTrainedTokenizerBase", lead: str) -> dict[str, tuple[int, ...]]:
    """Return token ids of every distinct text as tokenised after `lead`, without the tokens of `lead`."""
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return {}
    for text in distinct:
        if not text.isascii() and SURROGATE.search(text):
            raise BadInput(f"the text {format_value(text)} holds half of a character (a lone surrogate)")
    if (longest := max(map(len, distinct))) > MANY:
        _check_size(longest, tokenizer)
    pieces = [lead, *(lead + text for text in distinct)]
    quiet = {"add_special_tokens": False, "verbose": False}  # `check_context` reports texts that are too long
    skipped, *rest = tokenizer(pieces, **quiet)["input_ids"]
    return {text: tuple(tokens[len(skipped) :]) for text, tokens in zip(distinct, rest, strict=True)}


def _check_size(characters: int, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Refuse, before tokenisation, a text that exceeds the context even if all tokens were the longest one."""
    most, widest = tokenizer.model_max_length, max(map(len, tokenizer.get_vocab()), default=1)
    if characters > most * widest:
        raise BadInput(
            f"a text of {characters:,} characters is over the model's context of {most:,} tokens, of at most {widest} "
            "characters each"
        )


def _lead(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return a line break for tokenizers that put a blank before a text (SentencePiece); "" for others."""
    alone = tokenizer.convert_ids_to_tokens(tokenizer("a", add_special_tokens=False)["input_ids"])
    return "\n" if alone and alone[0].startswith("▁") else ""


def _label(piece: str) -> str:
    line = " ".join(piece.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _names(template: str, part: str, allowed: Sequence[str]) -> set[str]:
    """Return the fields of a template. Raises BadInput for one that is not `allowed`, or has a format or conversion."""
    try:
        fields = [(name, code, how) for _, name, code, how in Formatter().parse(template) if name is not None]
    except ValueError as problem:
        raise BadInput(f"layout template {part} {template!r}: {problem}") from None
    for name, code, conversion in fields:
        if name not in allowed or code or conversion:
            written = name + (f"!{conversion}" if conversion else "") + (f":{code}" if code else "")
            known = " and ".join(f"{{{each}}}" for each in allowed)
            raise BadInput(f"layout template {part} {template!r} has {{{written}}}: allowed are {known}, as they stand")
    return {name for name, _, _ in fields}


LAB = Layout(
    "lab",
    bos=True,
    system="Answer the question from the passages.\n",
    passage="Title: {title}\nText: {text}\n",
    question="Question: {question}\nAnswer:",
    answer=" {answer}\n",
    stop=("\n",),
)

# As released with Block-Attention (Tulu-3 chat format, no BOS); answers end with the model's EOS.
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
CHAT = "chat"  # the layout that a tokenizer's chat template makes


def check(name: str | None) -> None:
    """Raise BadInput for anything but the name or the file of a layout, or None, the model's own."""
    if name is not None:
        known_layout(name)


def known_layout(name: str) -> Layout | None:
    """Return a layout by name or from a JSON file; None for "chat". Raises BadInput for anything else."""
    if name == CHAT or name in LAYOUTS:
        return LAYOUTS.get(name)
    if not is_file(name):
        allowed = f"{', '.join([*LAYOUTS, CHAT])} (the tokenizer's own) or a JSON file of a layout"
        raise BadInput(f"unknown layout {format_value(name)}: allowed are {allowed}")
    try:
        record = json_text.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise BadInput(f"layout file {name} is not JSON: {problem}") from None
    record = record.get("layout", record) if isinstance(record, dict) else record  # also in the form of workbench.json
    if not isinstance(record, dict):
        raise BadInput(f"layout file {name} holds {type(record).__name__}; a JSON object of a layout is needed")
    try:
        return Layout.from_json(record)
    except BadInput as problem:
        raise BadInput(f"layout file {name}: {problem}") from None
