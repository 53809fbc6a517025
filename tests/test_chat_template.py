"""Prompt layouts from chat templates: the blocks of a prompt are the template's own rendering, cut at line breaks."""

import json
import resource
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import chat_tokenizers, tiny
from tests.refusals import refused
from workbench import generate, models
from workbench.data import Passage, Sample, chat_template
from workbench.data.chat_template import OPENING, QUESTION, SYSTEM, chat_message, layout, layout_named, render
from workbench.data.layouts import LAB, RELEASED, known_layout
from workbench.experiments.serving import sessions
from workbench.experiments.trials.trial import Trial

FAMILIES = list(chat_tokenizers.MAKERS)
JOINED = {"gemma2"}  # families that refuse a system turn
SAMPLE = Sample(
    "Who {is} it in 1984?",
    ("Ana",),
    (
        Passage("T é", "One {x}. It's 1,234!"),
        Passage("", "Two\n\nlines:  end"),
        Passage("U", "#"),
        Passage("V", "ab\tc"),
    ),
    id="1",
)
SMOLLM2 = "{% for m in messages %}{{'<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n'}}{% endfor %}"


def conversation(family: str, sample: Sample, replied: bool = False) -> list:
    """What the layout stands for, as messages."""
    passages = "".join(chat_template.PASSAGE.format(title=p.title, text=p.text) for p in sample.ctxs)
    asked = OPENING + passages + QUESTION.format(question=sample.question)
    reply = [chat_message("assistant", sample.answers[0])] if replied else []
    if family in JOINED:
        return [chat_message("user", f"{SYSTEM}\n\n{asked}"), *reply]
    return [chat_message("system", SYSTEM), chat_message("user", asked), *reply]


def differs(family: str, sample: Sample) -> tuple[list[int], list[int]]:
    """The tokens of a prompt, block by block, and those of the template's rendering as one text."""
    tokenizer = chat_tokenizers.of(family)
    whole = render(tokenizer, conversation(family, sample))
    tokens = layout(tokenizer).prompt(sample, tokenizer).tokens.tolist()
    return tokens, tokenizer(whole, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_blocks_joined_are_the_template_s_own_rendering_with_bos_once_or_never(family):
    tokenizer = chat_tokenizers.of(family)
    own = layout(tokenizer)
    bos = tokenizer.bos_token if own.bos else ""
    assert bos + "".join(own.pieces(SAMPLE)) == render(tokenizer, conversation(family, SAMPLE))
    tokens, expected = differs(family, SAMPLE)
    assert tokens == expected
    assert len(own.pieces(SAMPLE)) == 2 + len(SAMPLE.ctxs)
    assert own.bos is (family in ("llama3", "gemma2", "gemma3", "mistral3"))
    if own.bos:
        assert own.prompt(SAMPLE, tokenizer).tokens.tolist().count(tokenizer.bos_token_id) == 1
        assert tokenizer.bos_token not in own.system


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(data=st.data())
def test_cutting_at_blocks_changes_no_token(family, data):
    words = st.text("aé {}.\n'09#-", min_size=1, max_size=12).map(str.strip).filter(bool)
    ctxs = data.draw(st.lists(st.builds(Passage, words | st.just(""), words), min_size=1, max_size=4))
    tokens, expected = differs(family, Sample(data.draw(words), ("a",), tuple(ctxs), id="x"))
    assert tokens == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_passage_that_ends_blank_differs_at_its_border_only(family):
    tokenizer = chat_tokenizers.of(family)
    blank = Sample("Who?", ("a",), (Passage("T", "one \n"), Passage("U", "two")), id="x")
    tokens, expected = differs(family, blank)
    assert tokenizer.decode(tokens) == tokenizer.decode(expected)
    first = next((i for i, pair in enumerate(zip(tokens, expected, strict=False)) if pair[0] != pair[1]), None)
    if first is not None:
        starts = layout(tokenizer).prompt(blank, tokenizer).starts
        assert starts[2] - 3 <= first < starts[2]
        assert tokens[starts[2] :] == expected[len(expected) - len(tokens) + starts[2] :]


# end of a turn, answer template, what opens the user's next turn
ENDS = {
    "smollm2": ("<|im_end|>", "{answer}<|im_end|>", "\n<|im_start|>user\n"),
    "qwen2.5": ("<|im_end|>", "{answer}<|im_end|>", "\n<|im_start|>user\n"),
    "llama3": ("<|eot_id|>", "{answer}<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n"),
    "gemma2": ("<end_of_turn>", "{answer}<end_of_turn>", "\n<start_of_turn>user\n"),
    "gemma3": ("<end_of_turn>", "{answer}<end_of_turn>", "\n<start_of_turn>user\n"),
    "mistral3": ("</s>", " {answer}</s>", "[INST] "),
    "phi3": ("<|end|>", "{answer}<|end|>", "\n<|user|>\n"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_ends_where_the_template_ends_a_turn_or_at_a_line_break(family):
    tokenizer = chat_tokenizers.of(family)
    own = layout(tokenizer)
    assert (own.stop[0], own.answer, own.turn) == ENDS[family] and own.stop[1:] == ("\n",)
    if family != "mistral3":  # its system text moves away from an answered turn
        prompt = render(tokenizer, conversation(family, SAMPLE))
        whole = render(tokenizer, conversation(family, SAMPLE, replied=True), answer=False)
        assert whole.startswith(prompt + own.answer.format(answer="Ana"))


def test_where_a_system_turn_is_refused_or_dropped_its_text_opens_the_user_turn():
    assert layout(chat_tokenizers.of("gemma2")).system.startswith(f"<start_of_turn>user\n{SYSTEM}\n\n{OPENING}")
    drops = "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '</u>' }}{% endif %}{% endfor %}"
    assert layout(chat_tokenizers.with_template(drops)).system == f"<u>{SYSTEM}\n\n{OPENING}"


def test_today_is_always_the_same_day():
    assert "Today Date: 26 Jul 2024\n" in layout(chat_tokenizers.of("llama3")).system
    dated = "{{ strftime_now('%A, %B %-d, %Y') }}\n" + SMOLLM2
    assert layout(chat_tokenizers.with_template(dated)).system.startswith("Friday, July 26, 2024\n<|im_start|>system")


def test_reasoning_is_switched_off_and_a_template_without_generation_prompt_still_asks_for_an_answer():
    thinks = SMOLLM2 + (
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
    )
    own = layout(chat_tokenizers.with_template(thinks))
    assert own.question.endswith("assistant\n<think></think>") and own.answer == "{answer}<|im_end|>"
    own = layout(chat_tokenizers.with_template(SMOLLM2))
    assert own.question.endswith("<|im_end|>\n<|im_start|>assistant\n") and own.answer == "{answer}<|im_end|>"


def test_braces_of_a_template_stay_braces():
    braces = "{% for m in messages %}{{ '{' + m.role + '}' + m.content + '{/}' }}{% endfor %}{{ '{assistant}' }}"
    own = layout(chat_tokenizers.with_template(braces))
    assert own.pieces(SAMPLE)[-1] == "Question: Who {is} it in 1984?\nAnswer in a few words.{/}{assistant}"
    assert own.answer.format(answer="Ana") == "Ana{/}{assistant}"


@pytest.mark.parametrize(
    "template, message",
    [
        (
            "{{ messages[0]['role'] }}",
            "drops or changes what stands in a user turn; it cannot hold passages: choose an",
        ),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "it cannot hold passages"),
        ("{% for m in messages %}{{ m.content + m.content }}{% endfor %}", "it cannot hold passages"),
        ("{{ raise_exception('Only\n images') }}", "refuses a conversation: Only images; it cannot hold passages"),
        ("{% for %}", "refuses a conversation: Expected"),
        ("{{ 1 / 0 }}", "refuses a conversation: division by zero"),
        (None, "has no chat template: choose another layout: lab, released or a JSON file"),
    ],
)
def test_a_template_that_cannot_hold_passages_is_refused(template, message):
    refused(message, lambda: layout(chat_tokenizers.with_template(template)))


@pytest.mark.parametrize("family", ["smollm2", "qwen2.5", "llama3", "phi3"])
def test_a_conversation_reads_as_the_template_writes_it(family):
    tokenizer = chat_tokenizers.of(family)
    own = layout(tokenizer)
    turns = [Sample("Who?", ("Ana",), (Passage("T", "One."),), id="1"), Sample("When?", ("Now",), (), id="2")]
    messages = [
        chat_message("system", SYSTEM),
        chat_message("user", OPENING + "Title: T\nOne.\n" + QUESTION.format(question="Who?")),
    ]
    messages += [chat_message("assistant", "Ana"), chat_message("user", QUESTION.format(question="When?"))]
    last = sessions.of_chat(turns, own)[-1]
    assert "".join(last.pieces) == render(tokenizer, messages).removeprefix(tokenizer.bos_token if own.bos else "")


@pytest.fixture
def instruct(tmp_path):
    """A tiny checkpoint without a layout of its own, whose tokenizer has a chat template."""
    folder = tiny.checkpoint(tmp_path / "instruct", vocab_size=402)
    (folder / "workbench.json").unlink()
    words = tiny.tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    words.chat_template = chat_tokenizers.of("smollm2").chat_template
    words.save_pretrained(folder)
    return folder


def test_a_declared_layout_comes_before_the_template_and_the_released_one_last(instruct, tmp_path):
    assert models.layout_of(instruct) == layout(models.load(instruct).tokenizer)
    assert models.describe(instruct)["layout"] == "chat"
    (instruct / "workbench.json").write_text(json.dumps({"note": "four bits"}))
    assert models.load(instruct).layout.name == "chat"
    (instruct / "workbench.json").write_text(json.dumps({"layout": LAB.to_json()}))
    assert models.load(instruct).layout == LAB == models.layout_of(instruct)
    (instruct / "workbench.json").unlink()
    (instruct / "chat_template.jinja").unlink()
    assert models.load(instruct).layout == RELEASED == models.layout_of(instruct)


def test_a_layout_is_chosen_by_name_or_file(instruct, tmp_path):
    tokenizer = models.load(instruct).tokenizer
    for own in (LAB, layout(tokenizer)):
        (tmp_path / "own.json").write_text(json.dumps(own.to_json()))
        assert models.load(instruct, layout=str(tmp_path / "own.json")).layout == own
    (tmp_path / "own.json").write_text(json.dumps({"layout": RELEASED.to_json(), "note": "as in workbench.json"}))
    assert layout_named(str(tmp_path / "own.json"), tokenizer) == RELEASED == layout_named("released", tokenizer)
    assert models.load(instruct, layout="lab").layout == LAB == models.load(instruct, layout=LAB).layout
    assert layout_named("chat", tokenizer) == layout(tokenizer) and known_layout("chat") is None
    refused("no chat template", lambda: models.load(tiny.checkpoint(tmp_path / "base"), layout="chat"))


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "unknown layout '.*own.json': allowed are lab, released, chat"),
        ("{", "own.json is not JSON"),
        ("[]", "own.json holds list; a JSON object"),
        ("{}", "own.json: layout field 'name' is null; str is needed"),
    ],
)
def test_a_layout_file_that_is_none_is_refused_before_anything_is_read(tmp_path, text, message):
    if text is not None:
        (tmp_path / "own.json").write_text(text)
    refused(message, Trial, "no-such-model", layout=str(tmp_path / "own.json"))
    refused(message, lambda: models.load(tiny.checkpoint(tmp_path / "model"), layout=str(tmp_path / "own.json")))


def test_a_trial_takes_the_layout_it_names_and_results_say_so_only_then(instruct):
    loaded = models.load(instruct)
    options = {"samples": 2, "passages": 2, "timed": 1, "max_new_tokens": 2}
    record = Trial(str(instruct), **options).run(loaded=loaded)
    other = Trial(str(instruct), **options, layout="released").run(loaded=loaded)
    assert "layout" not in record.trial and other.trial["layout"] == "released"
    assert record.prompt_tokens != other.prompt_tokens
    assert Trial(str(instruct), **options, layout="chat").run().prompt_tokens == record.prompt_tokens


def test_an_answer_ends_at_a_special_token_that_is_no_end_of_text(instruct):
    model, tokenizer, own = models.load(instruct)
    prompt = own.prompt(SAMPLE, tokenizer)
    (free,) = generate(model, tokenizer, [prompt], max_new_tokens=4)
    end = tokenizer.convert_ids_to_tokens(free.tokens[1])
    tokenizer.add_special_tokens({"additional_special_tokens": [end]})
    (ended,) = generate(model, tokenizer, [prompt], max_new_tokens=4, stop=[end])
    assert ended.tokens == free.tokens[: free.tokens.index(free.tokens[1])]


ENDLESS = {
    "characters at once": "{{ 'a' * 10000000000 }}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "padding": "{{ '%10000000000d' | format(1) }}",
    "loops that write": "{% for i in range(99999) %}{% for j in range(99999) %}a{% endfor %}{% endfor %}",
    "loops that write nothing": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a long text": "{% for m in messages %}{{ m.content }}{% endfor %}{{ 'a' * 200000 }}",
}


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end_is_refused_in_bounded_time_and_memory(template, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    words = tiny.tokenizer()
    words.chat_template = template
    begun = resource.getrlimit(resource.RLIMIT_AS)
    refused("the chat template", layout, words)
    assert resource.getrlimit(resource.RLIMIT_AS) == begun and sys.gettrace() is None


def test_templates_of_two_threads_leave_no_bound_behind():
    begun, entered, ended = resource.getrlimit(resource.RLIMIT_AS), threading.Event(), threading.Event()

    def first():
        with chat_template.limited_execution(5, 1 << 30):
            entered.set()
            ended.wait(0.2)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(5)
    with chat_template.limited_execution(5, 1 << 29):
        ended.set()
        thread.join()
    assert resource.getrlimit(resource.RLIMIT_AS) == begun
