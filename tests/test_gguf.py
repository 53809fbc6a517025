"""A GGUF file becomes an ordinary checkpoint with the same logits and the same tokens, or one clear refusal."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests import tiny, tiny_gguf
from tests.refusals import refused
from workbench import models
from workbench.core.errors import BadInput
from workbench.core.utils.files import digest
from workbench.models.gguf import conversion as from_gguf
from workbench.models.gguf import header as gguf_header
from workbench.models.gguf.pretokenizers import SPLITTINGS

IDS = torch.arange(40)[None] % 30 + 5


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture(scope="module")
def quantised(tmp_path_factory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf", kind=Kind.Q4_1)


@pytest.fixture(scope="module")
def converted(quantised) -> Path:
    return from_gguf.convert(quantised, quantised.parent / "tiny")


@pytest.mark.parametrize("architecture", tiny_gguf.FAMILIES)
def test_unquantised_weights_of_every_family_arrive_as_they_were(tmp_path, architecture):
    source = tiny_gguf.model(architecture)
    folder = from_gguf.convert(tiny_gguf.write(tmp_path / "a.gguf", source, architecture), tmp_path / "a")
    before, after = source.state_dict(), load_file(folder / "model.safetensors")
    assert set(before) - set(after) <= {"lm_head.weight"}
    assert all(weight.equal(before[name].bfloat16()) for name, weight in after.items())


def test_logits_after_conversion_are_those_of_the_model_that_transformers_dequantises(quantised, converted):
    options = {"gguf_file": quantised.name, "dtype": torch.bfloat16}
    expected = logits(AutoModelForCausalLM.from_pretrained(quantised.parent, **options))
    assert logits(models.load(converted, dtype="bfloat16").model).equal(expected)
    assert not torch.allclose(expected.float(), logits(tiny_gguf.model()), atol=1e-3), "quantised weights differ"


def test_a_converted_folder_is_an_ordinary_checkpoint(converted):
    assert {path.name for path in converted.iterdir()} == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "workbench.json",
    }
    config = json.loads((converted / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and "quantization_config" not in config
    assert AutoTokenizer.from_pretrained(converted).chat_template == tiny_gguf.TEMPLATE
    assert models.load(converted).model.generation_config.eos_token_id == 1


def test_folder_and_card_say_that_the_weights_were_quantised(quantised, converted):
    note = "4-bit weights (Q4_1) dequantised to bf16: its numbers are those of the quantised model."
    assert models.note_of(converted) == note
    card = (converted / "README.md").read_text()
    assert note in card and digest(quantised) in card and quantised.name in card


@pytest.mark.parametrize(
    "kind, note", [(Kind.BF16, ""), (Kind.F16, "F16 weights rounded"), (Kind.Q8_0, "8-bit weights (Q8_0)")]
)
def test_a_note_tells_what_was_lost(tmp_path, kind, note):
    told = gguf_header.read_header(tiny_gguf.write(tmp_path / "a.gguf", kind=kind)).note
    assert told.startswith(note) and bool(told) == bool(note)


def test_frequencies_of_llama_3_are_found_again_from_their_factors(tmp_path):
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    source = tiny_gguf.model(rope_parameters=rope)
    factors = factors_of(source.config)
    file = tiny_gguf.write(tmp_path / "a.gguf", source, tensors={"rope_freqs.weight": factors})
    folder = from_gguf.convert(file, tmp_path / "a")
    assert json.loads((folder / "config.json").read_text())["rope_parameters"] == rope
    assert logits(models.load(folder).model).allclose(logits(source), atol=0.05)
    file = tiny_gguf.write(tmp_path / "b.gguf", source, tensors={"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(BadInput, match=r"b\.gguf cannot be converted: its RoPE factors are not those of Llama 3"):
        from_gguf.convert(file, tmp_path / "b")


def factors_of(config):
    scaled = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(len(scaled)) / len(scaled))
    return (plain / scaled).numpy()


# Pieces by every rule, as the tokenizers of the models split that name it.
TEXT = "in  1984,\n  it's ÉTÉ"
PIECES = {
    "gpt-2": ["in", "Ġ", "Ġ1984", ",", "ĊĠ", "Ġit", "'s", "ĠÃīTÃī"],
    "smollm": ["in", "ĠĠ", "1", "9", "8", "4", ",", "ĊĠ", "Ġit", "'s", "ĠÃīTÃī"],
    "llama-bpe": ["in", "Ġ", "Ġ", "198", "4", ",Ċ", "Ġ", "Ġit", "'s", "ĠÃīTÃī"],
    "qwen2": ["in", "Ġ", "Ġ", "1", "9", "8", "4", ",Ċ", "Ġ", "Ġit", "'s", "ĠÃīTÃī"],
}


@pytest.mark.parametrize("name", PIECES)
def test_a_vocabulary_splits_text_by_the_rule_its_file_names(name):
    words = tiny.tokenizer().backend_tokenizer
    SPLITTINGS[name].apply(words)
    assert [piece for piece, _ in words.pre_tokenizer.pre_tokenize_str(TEXT)] == PIECES[name]


def test_the_rule_of_the_file_reaches_the_converted_tokenizer(converted):
    words = AutoTokenizer.from_pretrained(converted)
    assert [piece for piece, _ in words.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)] == PIECES["smollm"]
    assert words.decode(words(TEXT).input_ids) == TEXT
    assert words.tokenize("<s>a</s>") == ["<s>", "a", "</s>"]


def test_a_sentencepiece_vocabulary_arrives_with_its_merges_and_bytes(tmp_path):
    pieces = ["▁ab", "ab", "▁a", "▁", "a", "b", "c"]
    folder = from_gguf.convert(tiny_gguf.write(tmp_path / "a.gguf", pieces=pieces), tmp_path / "a")
    words = AutoTokenizer.from_pretrained(folder)
    encoded = words("ab aé<s>cab", add_special_tokens=False).input_ids
    assert words.convert_ids_to_tokens(encoded)[:5] == ["▁ab", "▁a", "<0xC3>", "<0xA9>", "<s>"]
    assert words.convert_ids_to_tokens(encoded)[-2:] == ["c", "ab"]
    assert words.decode(words("ab aé", add_special_tokens=False).input_ids) == "ab aé"


REFUSED = {  # metadata of the file: what is said of it
    "an architecture": ({"general.architecture": "mamba"}, "its architecture is 'mamba', supported are gemma3, llama"),
    "no architecture": ({"general.architecture": None}, "its architecture is None"),
    "a tokenizer": ({"tokenizer.ggml.model": "bert"}, "its tokenizer is 'bert', supported are gpt2, llama"),
    "no tokenizer": ({"tokenizer.ggml.model": None}, "its tokenizer is None"),
    "a splitting rule": ({"tokenizer.ggml.pre": "nonesuch"}, "by the rule 'nonesuch', known are codeshell"),
    "scaled RoPE": ({"llama.rope.scaling.type": "yarn"}, r"its RoPE is scaled \(yarn\)"),
    "one of many parts": ({"split.count": 3}, "it is one of 3 parts"),
}


@pytest.mark.parametrize("values, said", REFUSED.values(), ids=REFUSED)
def test_a_file_that_cannot_be_converted_is_refused_before_anything_is_written(tmp_path, values, said):
    file = tiny_gguf.write(tmp_path / "a.gguf", values=values)
    refused(rf"a\.gguf cannot be converted: .*{said}", from_gguf.convert, file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.1, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_refused(quantised, tmp_path, share):
    whole = quantised.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: int(len(whole) * share)])
    refused(r"cut\.gguf is damaged or cut short: ", from_gguf.convert, tmp_path / "cut.gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["cut.gguf"]


def test_weights_that_are_missing_or_not_finite_are_refused(tmp_path):
    source = tiny_gguf.model()
    with torch.no_grad():
        source.model.norm.weight[3] = torch.nan
    with pytest.raises(BadInput, match=r"nan\.gguf is damaged: model\.norm\.weight holds numbers that are not finite"):
        from_gguf.convert(tiny_gguf.write(tmp_path / "nan.gguf", source), tmp_path / "out")
    file = tiny_gguf.write(tmp_path / "few.gguf", values={"llama.block_count": 3})
    with pytest.raises(BadInput, match=r"few\.gguf is not whole: 9 weights are missing, first model\.layers\.2\."):
        from_gguf.convert(file, tmp_path / "out")


def test_what_is_no_gguf_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"there is no file .*none\.gguf: a GGUF file is needed"):
        from_gguf.convert(tmp_path / "none.gguf", tmp_path / "out")
    (tmp_path / "text.gguf").write_text("GUFF")
    with pytest.raises(BadInput, match=r"text\.gguf is no GGUF file: it does not begin with GGUF"):
        from_gguf.convert(tmp_path / "text.gguf", tmp_path / "out")


def test_a_folder_that_is_there_is_left_alone(quantised, converted):
    refused("tiny is there already: a new folder is needed", from_gguf.convert, quantised, converted)


def test_a_disk_without_room_is_refused_before_the_weights_are_read(quantised, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100_000))
    refused(rf"out needs 0 MB and 0 MB are free in {tmp_path}", from_gguf.convert, quantised, tmp_path / "a" / "out")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_nothing_behind(quantised, tmp_path, monkeypatch):
    def full(self, folder):
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(BadInput, match="out cannot be written: No space left on device; nothing is left of it"):
        from_gguf.convert(quantised, tmp_path / "out")
    assert not list(tmp_path.iterdir())
