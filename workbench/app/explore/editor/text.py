"""The user's prompt as pieces of text, and the text of every token, which join to the piece."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from workbench.app.explore.editor.choices import PromptPiece
from workbench.core.blocks import Block, Prompt
from workbench.data import layouts
from workbench.data.layouts import Layout
from workbench.data.prompt_view import PromptView

UNFINISHED = "\ufffd"  # a token that ends within a character


class PromptReader:
    """Turns pieces into a `Prompt`. A piece given as tokens keeps them until its text is edited."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, layout: Layout):
        self.tokenizer, self.layout = tokenizer, layout
        self.known: dict[tuple[str, bool], tuple[int, ...]] = {}
        self._texts: dict[tuple[int, ...], list[str]] = {}

    def pieces(self, reading: PromptView) -> list[PromptPiece]:
        """Return the pieces of a prompt; blocks without text keep their tokens."""
        texts = reading.pieces or self._decoded(reading.prompt)
        first = "system" if self.layout.system and texts[0] == self.layout.system else "passage"
        kinds = [first, *["passage"] * (len(texts) - 2), "question"]
        return [
            PromptPiece(piece_id(number), text, kind)
            for number, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        ]

    def prompt(self, pieces: Sequence[PromptPiece]) -> Prompt:
        """Return the prompt of these pieces. Raises BadInput if a piece has no tokens."""
        made = layouts.prompts([[piece.text for piece in pieces]], self.tokenizer, bos=self.layout.bos)[0]
        blocks = []
        for number, (piece, block) in enumerate(zip(pieces, made.blocks, strict=True)):
            tokens = self.known.get((piece.text, number == 0))
            blocks.append(block if tokens is None else Block(tokens, block.label))
        return Prompt(tuple(blocks))

    def texts(self, block: Block) -> list[str]:
        """Return the text of every token of a block; joined, they are the block's text.

        A character of several tokens is assigned to the first.
        """
        if block.tokens not in self._texts:
            if len(self._texts) > 4096:
                self._texts.clear()
            self._texts[block.tokens] = self._split(block.tokens)
        return self._texts[block.tokens]

    def describe_prompt(self, pieces: Sequence[PromptPiece], prompt: Prompt) -> dict[str, Any]:
        """Return a prompt's text for the browser: its length, and its blocks with their tokens."""
        blocks = [
            {"id": piece.id, "kind": piece.kind, "text": piece.text, "start": start, "tokens": self.texts(block)}
            for piece, start, block in zip(pieces, prompt.starts, prompt.blocks, strict=True)
        ]
        return {"blocks": blocks, "length": len(prompt)}

    def token(self, number: int) -> str:
        """Return the text of a single token."""
        return str(self.tokenizer.decode([number], clean_up_tokenization_spaces=False))

    def _split(self, tokens: Sequence[int]) -> list[str]:
        texts: list[str] = []
        before: list[int] = []
        pending: list[int] = []
        for number in tokens:
            pending.append(number)
            context = self._decode(before)
            whole = self._decode([*before, *pending])
            new = whole[len(context) :] if whole.startswith(context) else self._decode(pending)
            if new.endswith(UNFINISHED) and len(pending) < 8:
                continue
            texts += [new, *[""] * (len(pending) - 1)]
            before, pending = pending, []
        return texts + ([self._decode(pending), *[""] * (len(pending) - 1)] if pending else [])

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)) if tokens else ""

    def _decoded(self, prompt: Prompt) -> list[str]:
        """Return the texts of a prompt's blocks; their tokens are kept."""
        start = self.tokenizer.bos_token_id
        texts = []
        for number, block in enumerate(prompt.blocks):
            written = block.tokens[1:] if number == 0 and block.tokens[0] == start else block.tokens
            texts.append("".join(self._split(written)))
            self.known[texts[-1], number == 0] = block.tokens
        return texts


def piece_id(number: int) -> str:
    """Return the id of block `number` of the original prompt."""
    return f"b{number}"
