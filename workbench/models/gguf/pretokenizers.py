"""How byte-level vocabularies split text before they merge bytes, by the name that GGUF files give it.

A GGUF file names the rule (`tokenizer.ggml.pre`) and does not hold it. A loader that does not know the name splits as
GPT-2 did, without a word: with SmolLM's vocabulary, two blanks before a number then become two tokens for one.
"""

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"


@dataclass(frozen=True)
class Splitting:
    """A rule: `pattern` None is GPT-2's own; `digits` splits numbers into digits before that."""

    pattern: str | None = None
    digits: bool = False
    whole_words: bool = False  #: a piece that is a token as a whole is not merged up to
    nfc: bool = False  #: text is brought to Unicode's form C first

    def apply(self, tokenizer: Tokenizer) -> None:
        """Make a byte-level BPE tokenizer split by this rule."""
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
