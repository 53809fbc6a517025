"""Whatever makes a cached block another one gives another key or a refusal; what computed it stands in the manifest."""

import json
from itertools import product

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests import tiny
from tests.random_models import block_of
from tests.refusals import refused
from tests.store_blocks import kv_of
from workbench.core.blocks import Block
from workbench.methods import prepare
from workbench.methods.preprocessing.precompute import kind_of
from workbench.store import FolderStore, key_of
from workbench.store.files import scrub

BLOCK, BEFORE, NEIGHBOUR = block_of(4, 1), block_of(3, 2), block_of(5, 3)


def test_keys_of_many_descriptions_never_meet():
    """Of blocks cut, joined and put before one another in every way."""
    runs = [Block(tokens) for tokens in ((1,), (1, 1), (1, 1, 1), (2,), (1, 2), (2, 1))]
    pasts = [(), *((run,) for run in runs), *product(runs, repeat=2)]
    made = {}
    for block, after, over in product(runs, pasts, [None, *pasts[:8]]):
        description = block.tokens, tuple(each.tokens for each in after), over and tuple(each.tokens for each in over)
        if over == ():
            description = (*description[:2], ())
        made.setdefault(key_of("m", torch.float32, block, after, over), set()).add(description)
    assert len(made) == 6 * 43 * 9 and all(len(each) == 1 for each in made.values())


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"model": "n"}, "blocks of another model"),
        ({"dtype": "torch.float16"}, "blocks of another dtype"),
        ({"preparation": "after_system"}, "blocks of another preparation"),
        ({"corpus": "c"}, "blocks of another corpus"),
        ({"tokenizer": "u"}, "blocks of another tokenizer"),
        ({"format": 99}, "blocks of another format"),
    ],
)
def test_a_folder_of_another_kind_is_refused(tmp_path, changed, says):
    kind = {"model": "m", "dtype": "torch.float32", "preparation": "independent", "corpus": "any", "tokenizer": "t"}
    FolderStore(tmp_path / "a", kind, new=True).put("key", kv_of(1))
    assert len(FolderStore(tmp_path / "a", kind)) == 1
    refused(says, FolderStore, tmp_path / "a", kind | changed)


def test_a_folder_that_does_not_name_its_tokenizer_is_read(tmp_path):
    FolderStore(tmp_path / "a", {"model": "m"}, new=True)
    assert FolderStore(tmp_path / "a", {"model": "m", "tokenizer": "t"}).kind["model"] == "m"


def test_the_model_is_named_in_messages_and_its_name_is_never_compared(tmp_path, model):
    named = {"model": "a" * 64, "model_name": "first", "dtype": "torch.float32"}
    FolderStore(tmp_path / "a", named, new=True)
    assert len(FolderStore(tmp_path / "a", named | {"model_name": "copy"})) == 0
    both = refused("another model", FolderStore, tmp_path / "a", {**named, "model": "b" * 64, "model_name": "second"})
    assert f"first ({'a' * 16}…), and not second ({'b' * 16}…)" in both
    half = {**named, "model": "b" * 64, "dtype": "torch.bfloat16"}
    assert "another dtype: float32, and not bfloat16" in refused("dtype", FolderStore, tmp_path / "a", half)
    old = {name: value for name, value in named.items() if name != "model_name"}
    FolderStore(tmp_path / "b", old, new=True)
    assert "model_name" not in FolderStore(tmp_path / "b", named).kind
    assert "aaaa…, and not second (" in refused(
        "model", FolderStore, tmp_path / "b", named | {"model": "b" * 64, "model_name": "second"}
    )
    for path, name in (("/x/lab-full", "lab-full"), ("/h/models--o--n/snapshots/0a1b", "o/n"), ("", None)):
        model.config.name_or_path = path
        assert kind_of(model, prepare.from_spec("independent")).get("model_name") == name


def test_another_tokenizer_is_another_kind(model):
    words = tiny.tokenizer()
    policy = prepare.from_spec("independent")
    kind = kind_of(model, policy, words)
    assert kind == kind_of(model, policy, tiny.tokenizer()) and "tokenizer" not in kind_of(model, policy)
    changed = json.loads(words.backend_tokenizer.to_str())
    first, second = list(changed["model"]["vocab"])[5:7]
    vocabulary = changed["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(changed)))
    assert kind_of(model, policy, other)["tokenizer"] != kind["tokenizer"]


def test_manifest_and_files_say_what_computed_the_blocks(tmp_path):
    store = FolderStore(tmp_path / "a", {"model": "m"}, new=True)
    store.put("key", kv_of(1))
    begun = json.loads((tmp_path / "a" / "manifest.json").read_text())["made"]
    (made,) = scrub.describe(tmp_path / "a")["made"]
    assert begun["torch"] == made["torch"] == torch.__version__ and "transformers" in begun
    assert made["device"] == "cpu" and "made" not in store.kind
