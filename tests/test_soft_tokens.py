"""Soft tokens around passages: KV Packet's header and trailer, KVLink's links, trained, saved, loaded and reused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_models import Letters, model_of, prompt_of
from self_teacher import CONFIG, LORA, question_files, sharp_model, tuned

from tests.refusals import refused
from workbench import data, models
from workbench.core.blocks import Prompt
from workbench.experiments.leaderboard.measuring import plan_trials
from workbench.experiments.trials.trial import Trial
from workbench.methods import finish
from workbench.methods.config import MethodConfig
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.packet import Packet
from workbench.methods.presets import METHODS
from workbench.methods.select.first_k import FirstK
from workbench.models.checkpoints import base_folder, weights_of
from workbench.models.weights import soft_tokens
from workbench.models.weights.adapters import digest_of, files_of
from workbench.store import UNLIMITED, MemoryStore
from workbench.training.tuning.attention import forward, masks_of
from workbench.training.tuning.output import save_adapter
from workbench.training.tuning.scores import fidelity
from workbench.training.tuning.start import start
from workbench.training.tuning.teacher import pack_taught
from workbench.training.tuning.text.examples import Data

PACKET = replace(CONFIG, steps=30, batch=8, lr=1e-2, mode="block", header=3, trailer=2)
LINKS = replace(PACKET, header=0, trailer=0, links=5)
PROMPT = prompt_of(4, 9, 7, 12, 5)


def grown(*counts):
    model = model_of("llama")
    torch.manual_seed(1)
    soft_tokens.grow(model, soft_tokens.sample_embeddings(model, counts))
    return model


def logits_of(model, method, prompt=PROMPT):
    return finish(model, method.begin(model, [prompt], MemoryStore(UNLIMITED)))[0]


def test_no_soft_tokens_are_block_mode_exactly_and_full_attention_never_sees_any():
    plain, none, some = model_of("llama"), grown(0, 0, 0), grown(3, 2, 2)
    assert torch.equal(logits_of(none, Reuse(prepare=Packet())), logits_of(plain, Reuse()))
    assert torch.equal(logits_of(some, Full()), logits_of(plain, Full()))
    assert torch.equal(logits_of(some, Reuse()), logits_of(plain, Reuse()))
    assert (logits_of(some, Reuse(prepare=Packet())) - logits_of(plain, Reuse())).abs().max() > 0.1


def test_soft_tokens_stand_around_passages_alone_and_once():
    model, packet = grown(2, 1, 1), Packet()
    (wrapped,) = packet.with_soft_tokens(model, packet.with_soft_tokens(model, [PROMPT]))
    ids = (97, 98), (99,), (100,)
    assert soft_tokens.soft_tokens(model).ids == ids
    expected = [PROMPT.blocks[0].tokens, *((97, 98, *block.tokens, 99, 100) for block in PROMPT.context[1:])]
    assert [block.tokens for block in wrapped.blocks] == [*expected, PROMPT.blocks[-1].tokens]
    (all_of,) = Packet(system=0).with_soft_tokens(model, [PROMPT])
    assert len(all_of) == len(PROMPT) + 16


def test_links_alone_are_recomputed_and_read_what_is_before_them():
    model = grown(0, 0, 2)
    method = Reuse(prepare=Packet(), select=FirstK(k=2, last=True), ratio=None)
    (ready,) = method.begin(model, [PROMPT])
    (wrapped,) = Packet().with_soft_tokens(model, [PROMPT])
    rows, tokens = ready.request.plan.rows, ready.request.tokens
    assert tokens[rows[: -len(PROMPT.question)]].tolist() == [97, 98] * 3
    assert ready.reused == len(PROMPT) - 5 and ready.computed == 6 + 5 and len(tokens) == len(wrapped)
    before = [layer[:, rows[2]].clone() for layer in ready.request.kv.values]
    finish(model, [ready])
    assert torch.equal(before[0], ready.request.kv.values[0][:, rows[2]]), "layer 0 reads nothing yet"
    assert not torch.equal(before[-1], ready.request.kv.values[-1][:, rows[2]])


@pytest.mark.parametrize("name", ["kv-packet", "kvlink"])
def test_pages_and_contiguous_caches_answer_alike(name):
    model, one = grown(2, 1, 1), SamplingParams(max_new_tokens=3)
    method, asked = MethodConfig(**METHODS[name].fields).method(), [PROMPT, prompt_of(4, 30, 7, 5)]
    answers = [answer(model, Letters(), asked, method, None, one, engine) for engine in ("contiguous", "paged")]
    for first, second in zip(*(each.logits for each in answers), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    assert [g.tokens for g in answers[0].generations] == [g.tokens for g in answers[1].generations]
    for found in answers:
        kept = [[(block.status, block.tokens) for block in g.receipt.blocks] for g in found.generations]
        assert kept[0] == [("encoded", 4), ("encoded", 9 + 4), ("encoded", 7 + 4), ("encoded", 12 + 4)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soft")
    return sharp_model(folder), question_files(folder)["train"]


@pytest.mark.parametrize(("config", "name"), [(PACKET, "kv-packet"), (LINKS, "kvlink")])
def test_training_brings_block_mode_nearer_and_leaves_the_base_as_it_was(config, name, texts, tmp_path):
    base, file = texts
    begun, source = start(config, base, Data(file), tmp_path / "begun")
    run, progress = tuned(config, base, file, tmp_path / "run")
    examples = [source[i] for i in range(8)]
    early, late = (fidelity(r.model, r.teacher, examples, config, r.windows) for r in (begun, run))
    assert late["block"]["kl"] < 0.9 * early["block"]["kl"] and late["full"]["kl"] == early["full"]["kl"] == 0
    save_adapter(run, progress, tmp_path / "adapter")
    plain, loaded = models.load(base), models.load(tmp_path / "adapter")
    about = models.describe(tmp_path / "adapter")
    assert about["type"] == f"adapter of {base}" and about["parameters"] == 32 * sum(config.soft)
    assert "Soft tokens around each passage" in (tmp_path / "adapter" / "README.md").read_text()
    table = soft_tokens.embeddings(loaded.model).weight
    assert torch.equal(table[: -sum(config.soft)], soft_tokens.embeddings(plain.model).weight)
    assert torch.equal(table, soft_tokens.embeddings(run.loaded.model).weight)
    same = dict(plain.model.named_parameters())
    assert all(torch.equal(x, same[k]) for k, x in loaded.model.named_parameters() if "embed" not in k)

    # what the engine computes of a request is what was trained
    example = examples[0]
    batch = pack_taught([example], config).student
    trained = forward(run.model, batch, masks_of(batch, run.windows, "parts"))
    samples = [s for s in data.load(file, answered=False) if s.id == example.id]
    prompt: Prompt = loaded.layout.prompts(samples[:1], loaded.tokenizer)[0]
    first = (batch.answers >= 0).nonzero()[0, 0]
    found = logits_of(loaded.model, MethodConfig(**METHODS[name].fields).method(), prompt)
    torch.testing.assert_close(found, trained[first].detach(), rtol=1e-3, atol=1e-3)


def test_links_are_trained_beside_an_adapter(texts, tmp_path):
    pytest.importorskip("peft")
    base, file = texts
    run, progress = tuned(replace(LORA, header=1, links=1), base, file, tmp_path / "run")
    save_adapter(run, progress, tmp_path / "adapter")
    loaded = models.load(tmp_path / "adapter")
    assert soft_tokens.soft_tokens(loaded.model).counts == (1, 0, 1)
    assert not torch.equal(
        loaded.model.model.layers[0].self_attn.q_proj.weight,
        models.load(base).model.model.layers[0].self_attn.q_proj.weight,
    )


def test_soft_tokens_are_trained_over_an_adapter_and_loaded_over_it(texts, tmp_path):
    pytest.importorskip("peft")
    base, file = texts
    lora, soft = tmp_path / "lora", tmp_path / "soft"
    save_adapter(*tuned(replace(LORA, lr=5e-2), base, file, tmp_path / "one"), lora)
    run, progress = tuned(replace(PACKET, steps=4), str(lora), file, tmp_path / "two")
    save_adapter(run, progress, soft)
    assert files_of(soft) == [soft / soft_tokens.FILE] and base_folder(soft) == base_folder(lora) == Path(base)
    below, loaded = models.load(lora), models.load(soft)
    assert models.describe(soft)["type"] == f"adapter of {lora}"
    assert torch.equal(logits_of(below.model, Full()), logits_of(loaded.model, Full()))
    assert not torch.equal(logits_of(loaded.model, Full()), logits_of(models.load(base).model, Full()))
    assert soft_tokens.soft_tokens(loaded.model).counts == PACKET.soft
    again, _ = start(replace(PACKET, links=1), str(lora), Data(file), tmp_path / "three")
    assert again.base["weights"] == run.base["weights"] != digest_of(weights_of(Path(base)))
    refused("has soft tokens already", start, PACKET, str(soft), Data(file), tmp_path / "five")
    save_adapter(*tuned(replace(LORA, lr=1e-3), base, file, tmp_path / "four"), tmp_path / "other")
    lora.rename(tmp_path / "before")
    (tmp_path / "other").rename(lora)
    refused("was trained on other weights", models.load, soft)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda base: logits_of(model_of("llama"), Reuse(prepare=Packet())), "has no soft tokens: .*`workbench tune`"),
        (lambda base: replace(PACKET, teacher="gold", mode="full"), "trained by adamw: mode 'full' has none"),
        (lambda base: replace(PACKET, optimizer="muon"), "optimizer 'muon' is for matrices"),
        (lambda base: replace(PACKET, links=-1), "links is -1: at least 0"),
        (lambda base: soft_tokens.grow(model_of("llama"), [torch.zeros(1, 3)]), r"soft tokens are \(1, 3\)"),
        (lambda base: soft_tokens.grow(grown(1, 0, 0), []), "has soft tokens already"),
        (lambda base: Trial(base, mode="block", prepare="packet", samples=2).run(), "has no soft tokens"),
    ],
)
def test_what_cannot_be_is_refused(call, why, texts):
    refused(why, call, texts[0])


def test_a_leaderboard_leaves_out_what_a_model_has_no_soft_tokens_for(texts):
    plan = plan_trials(Trial(texts[0], samples=2, passages=2), ["block", "full-reuse", "kv-packet", "kvlink"])
    assert [case.method for case in plan.cases] == ["full", "block", "full-reuse"]
    assert len(plan.left_out) == 2 and all("has no soft tokens" in why for why in plan.left_out)
