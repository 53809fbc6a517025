"""`workbench verify`: verdicts hold for every family, and fail where something is broken."""

import json
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from tests.commands import refused_command
from tests.random_models import FAMILIES, model_of
from tests.refusals import refused
from workbench.app import cli
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.engine.assembly import assemble
from workbench.experiments.trials import verification
from workbench.experiments.trials.verification import random_prompts, verify_model
from workbench.models.spec import attach
from workbench.store import MemoryStore

LLAMA = model_of()
PROMPTS = random_prompts(LLAMA, count=1, blocks=3, length=12)


def run(*words):
    return CliRunner().invoke(cli.app, ["verify", *words])


def failing(page):
    return {verdict.name for verdict in page.verdicts if not verdict.holds}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_verdict_holds_for_a_random_model_of_every_family(name):
    model = model_of(name)
    page = verify_model(model, random_prompts(model, count=1, blocks=3, length=12))
    assert page.all_hold, [str(verdict) for verdict in page.verdicts if not verdict.holds]
    assert {"rotation", "100% recomputed", "rounding", "first reuse"} <= {verdict.name for verdict in page.verdicts}
    assert 0 < page.floor < 1e-4


def test_half_precision_has_its_own_noise_floor():
    model = model_of().to(torch.bfloat16)
    page = verify_model(model, PROMPTS)
    assert page.all_hold and 1e-4 < page.floor < 0.3 and page.dtype == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_that_are_not_rotated_fail(monkeypatch, dtype):
    monkeypatch.setattr(verification, "assemble", partial(assemble, positions="naive"))
    assert {"rotated keys", "rotation"} == failing(verify_model(model_of().to(dtype), PROMPTS))


def test_a_store_that_serves_another_block_fails(monkeypatch):
    class Wrong(MemoryStore):
        def get(self, key):
            kv = super().get(key)
            return None if kv is None else next(iter(self._entries.values())) if len(kv) == 12 else kv

    monkeypatch.setattr(verification, "MemoryStore", Wrong)
    assert {"first reuse", "first move"} <= failing(verify_model(LLAMA, PROMPTS))


def test_a_store_that_forgets_fails(monkeypatch):
    monkeypatch.setattr(verification, "MemoryStore", lambda _: MemoryStore(1))
    assert failing(verify_model(LLAMA, PROMPTS)) == {"misses"}


def test_logits_that_are_no_numbers_fail_and_can_be_written_as_json():
    model = model_of()
    attach(model)  # which refuses a model that is broken from the start
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    page = verify_model(model, PROMPTS)
    assert "finite" in failing(page) and "full prefill" in failing(page)
    assert json.loads(json.dumps(page.to_json(), allow_nan=False))["whole"] is False


def test_too_few_blocks_and_no_prompts_are_refused_before_any_work():
    refused("no prompts", verify_model, LLAMA, [])
    with pytest.raises(BadInput, match="a prompt has 1 blocks before its question: a system prompt and two passages"):
        verify_model(LLAMA, [Prompt((Block((1,)), Block((2,))))])


def test_the_command_writes_its_page_and_its_json(folder, tmp_path):
    page = tmp_path / "page.html"
    ended = run("--model", str(folder), "--samples", "1", "--passages", "2", "--json", "--html", str(page))
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["whole"] is True and len(found["verdicts"]) == 10 and all(one["holds"] for one in found["verdicts"])
    text = page.read_text()
    assert text.count('class="holds"') == 11 and "http" not in text and "noise floor" in text


def test_a_verdict_that_fails_is_exit_code_1(folder, monkeypatch):
    monkeypatch.setattr(verification, "assemble", partial(assemble, positions="naive"))
    ended = run("--model", str(folder), "--samples", "1", "--passages", "2")
    assert ended.exit_code == 1 and "FAILS" in ended.stdout
    assert "cannot be reused exactly" in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "no-such-model"], "no-such-model"),
        (["--html", "/no/such/folder/page.html"], "--html '/no/such/folder/page.html': a file in a folder that exists"),
        (["--dtype", "int8"], "int8"),
        (["--data", "no-such-file.json"], "no-such-file.json"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence):
    assert sentence in refused_command("verify", *words)
