"""Small tokenizers that split text as those of well-known families do, with their published chat templates.

Vocabularies are learnt in the test; what matters is kept: pre-tokenization, special tokens, blanks, line breaks.
"""

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workbench import data
from workbench.data import chat_template

TEMPLATES = Path(__file__).with_name("chat_templates")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA, QWEN = Regex(WORDS % r"\p{N}{1,3}"), Regex(WORDS % r"\p{N}")
HEADERS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHATML, TURNS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
INST = ["<s>", "</s>", "[INST]", "[/INST]"]
PHI = ["<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def texts() -> list[str]:
    samples = data.load("lab", samples=6, seed=9)
    words = [chat_template.SYSTEM, chat_template.OPENING, chat_template.QUESTION.format(question="Who is it?")]
    return words + [chat_template.PASSAGE.format(title=p.title, text=p.text) for s in samples for p in s.ctxs]


def byte_level(special: list[str], split: pre_tokenizers.PreTokenizer, regex: bool) -> Tokenizer:
    """GPT-2's bytes behind a splitting rule of the family's own."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=regex)])
    core.decoder = decoders.ByteLevel()
    return learn(core, special, pre_tokenizers.ByteLevel.alphabet())


def pieces(special: list[str], blank: str, **rstrip: bool) -> Tokenizer:
    """SentencePiece in fast form; `blank`: whether a blank is written before a text: "none", "first" or "always"."""
    core = Tokenizer(models.BPE(fuse_unk=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[^▁\n]+|▁+|\n+"), "isolated")  # words and lines, to learn from
    core = learn(core, special, [chr(i) for i in range(32, 127)] + ["▁", "\n"], **rstrip)
    core.pre_tokenizer = None
    if blank == "always":
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif blank == "first":
        core.normalizer = None
        core.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    else:
        core.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 9)])
    return core


def learn(core: Tokenizer, special: list[str], alphabet: list[str], rstrip: bool = False) -> Tokenizer:
    tokens = [AddedToken(text, special=True, rstrip=rstrip) for text in special]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(texts(), trainer)
    return core


MAKERS = {
    "smollm2": lambda: byte_level(CHATML, pre_tokenizers.Digits(True), regex=True),
    "qwen2.5": lambda: byte_level(CHATML, pre_tokenizers.Split(QWEN, "isolated"), regex=False),
    "llama3": lambda: byte_level(HEADERS, pre_tokenizers.Split(LLAMA, "isolated"), regex=False),
    "gemma2": lambda: pieces(TURNS, "none"),
    "gemma3": lambda: pieces(TURNS, "none"),
    "mistral3": lambda: pieces(INST, "first"),
    "phi3": lambda: pieces(PHI, "always", rstrip=True),
}
NAMED = {
    "smollm2": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    "qwen2.5": {"eos_token": "<|im_end|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "gemma2": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "mistral3": {"bos_token": "<s>", "eos_token": "</s>"},
    "phi3": {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
}


@cache
def of(family: str) -> PreTrainedTokenizerFast:
    """The small tokenizer of a family; shared by all tests, which leave it as it is."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=MAKERS[family](), **NAMED[family])
    tokenizer.chat_template = (TEMPLATES / f"{family}.jinja").read_text()
    return tokenizer


def with_template(template: str | None, family: str = "qwen2.5") -> PreTrainedTokenizerFast:
    """A tokenizer of its own, with another template."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=MAKERS[family](), **NAMED[family])
    tokenizer.chat_template = template
    return tokenizer
