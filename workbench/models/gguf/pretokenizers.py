"""Pretokenizers of byte-level vocabularies, by their names in GGUF files.

A GGUF file names the rule (`tokenizer.ggml.pre`) but does not contain it. A loader that does not know the name silently
uses GPT-2's rule: with SmolLM's vocabulary, two spaces before a number then become two tokens instead of one.
"""

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"


@dataclass(frozen=True)
class Splitting:
    """A pretokenizer: the regular expression `pattern` (None: GPT-2's); `digits` first splits numbers into digits."""

    pattern: str | None = None
    digits: bool = False
    whole_words: bool = False  #: a piece that is a token is used without merges
    nfc: bool = False  #: text is first normalised to Unicode NFC

    def apply(self, tokenizer: Tokenizer) -> None:
        """Set this rule in a byte-level BPE tokenizer."""
        steps: list[pre_tokenizers.PreTokenizer]
        if self.pattern is None:
            steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        else:
            split = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
            steps = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        if self.digits:
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.normalizer = normalizers.NFC() if self.nfc else None
        tokenizer.model.ignore_merges = self.whole_words


_GPT2, _DIGITS = Splitting(), Splitting(digits=True)
_LLAMA3, _QWEN2 = Splitting(LLAMA3, whole_words=True), Splitting(QWEN2, nfc=True)

SPLITTINGS = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
}
