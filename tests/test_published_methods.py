"""Every published method, over both engines, on a GPU if there is one: it is full attention at 100%, its reuse at 0."""

from dataclasses import fields
from functools import cache

import pytest
import torch

from tests import tiny
from tests.random_models import Letters, model_of, prompt_of
from tests.refusals import refused
from workbench import models
from workbench.core.masks import MaskRule
from workbench.experiments.trials.trial import Trial
from workbench.methods import registry
from workbench.methods.config import MethodConfig
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.prepare.packet import Packet
from workbench.methods.presets import METHODS
from workbench.models.weights import soft_tokens
from workbench.store import MemoryStore

PROMPT = prompt_of(4, 9, 7, 12, 5)
END = PROMPT.starts[-1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLAIN = {"block", "prompt-cache", "full-reuse", "ape", "turborag", "link0", "kv-packet"}  # they recompute nothing
OTHERWISE = {"superposition"}  # joins paths: it has neither limit (`test_methods` holds it against its definition)
CONTIGUOUS = {"sam-kv"}  # what it does not recompute is hidden from the answer, too
HERE = {  # what a random model of four layers, without a corpus, has in place of their own
    "fusionrag": {"prepare": "after_system"},
    "cacheclip": {"select": "cache_clip"},
}
ALL = {  # by which everything is recomputed, where that is not a ratio alone; what bends attention besides is off
    "full": {},
    "cache-craft": {"select": "cache_craft(alpha=1e6)"},
    "mepic": {"select": "first_k(k=100)"},
    "kvlink": {"select": "first_k(k=100, last=True)"},
    "sam-kv": {"select": "sam_kv(first=100)", "correct": "fuse(theta=1)"},
    "psr": {"ratio": 1.0, "attend": "ape(temperature=1, scale=1)"},
    "kvcomm": {},  # a prompt without two anchors
}
NONE = {
    "full": {},
    "kvcomm": {"correct": "kvcomm(most=0)"},
    "psr": {"ratio": 0.0, "attend": "ape(temperature=1, scale=1)"},
    "ape": {"attend": "ape(temperature=1, scale=1)"},
    "cacheblend-gradual": {"ratio": 0.0, "select": "kv_deviation(stages=(0.3, 0.2))"},  # else its stages stay fresh
    "cacheblend-code": {"ratio": 0.0, "select": "kv_deviation(part=v)"},
} | {name: {} for name in PLAIN - {"ape"}}
BENT = ("select", "correct", "attend", "ratio")  # fields of what comes on top of reuse


@pytest.fixture(scope="module", params=["contiguous", "paged"])
def logits(request):
    return _logits(request.param)


@cache
def _logits(engine):
    model, one = model_of("llama", num_hidden_layers=4), SamplingParams(max_new_tokens=1)
    torch.manual_seed(1)
    soft_tokens.grow(model, soft_tokens.sample_embeddings(model, (2, 1, 2)))
    model.to(DEVICE)

    def of(method, wrapped=False):
        prompt = Packet().with_soft_tokens(model, [PROMPT])[0] if wrapped else PROMPT
        return answer(model, Letters(), [prompt], method, MemoryStore(1 << 30), one, engine).logits[0]

    return of


def made(name, **changes):
    return MethodConfig(**{**METHODS[name].fields, **HERE.get(name, {}), **changes}).method()


def wrong(name, helper):
    """Fields of a trial of a method, one of which is not allowed, and what the sentence names; `helper` is a model."""
    own = METHODS[name].fields | ({"select": f"cache_clip(helper={helper})"} if name == "cacheclip" else {})
    shares = {"charged": (0.0, 1.5, float("nan")), "ratio": (-0.1, 1.5, float("nan"))}
    yield from ((key, {**own, key: value}) for key, values in shares.items() for value in values)
    for folder in ("mode", "prepare", "select", "correct", "attend"):
        spec = {"block": "reuse"}.get(str(own.get(folder)), str(own.get(folder, "none")))
        package = "workbench.methods.modes" if folder == "mode" else f"workbench.methods.{folder}"
        if spec in ("none", "reuse", "full"):  # a mode is a name alone
            continue
        policy, _ = registry.find_policy(package, spec)
        choice = registry.parse(spec)[0]
        for option in ("nope", *(field.name for field in fields(policy) if field.init and field.name != "corpus")):
            yield option, {**own, folder: f"{choice}({option}=-1.5)"}


@pytest.mark.parametrize("name", METHODS)
def test_a_wrong_share_option_or_value_is_refused_before_anything_is_loaded(name, folder, monkeypatch):
    monkeypatch.setattr(models, "load", None)
    for named, given in wrong(name, folder):
        refused(named, Trial, "lab-full", **given)


@pytest.mark.parametrize(
    ("file", "held", "sentence"),
    [
        ("tokenizer.json", None, "helper has no tokenizer: one of tokenizer.json"),
        ("tokenizer.json", "{", "tokenizer.json is corrupt"),
        ("config.json", None, "config.json is missing"),
    ],
)
def test_a_helper_that_cannot_read_is_refused_before_anything_is_loaded(file, held, sentence, tmp_path, monkeypatch):
    helper = tiny.checkpoint(tmp_path / "helper")
    (helper / file).unlink() if held is None else (helper / file).write_text(held)
    monkeypatch.setattr(models, "load", None)
    refused(sentence, Trial, "lab-full", **METHODS["cacheclip"].fields | {"select": f"cache_clip(helper={helper})"})


@pytest.mark.parametrize(
    ("name", "config", "changes", "sentence"),
    [
        *((name, {}, {}, "has no soft tokens") for name in ("kv-packet", "kvlink")),
        *((name, {"bos_token_id": None}, {}, "texts begin with no token") for name in ("link0", "psr")),
        *((name, {"num_hidden_layers": 1}, {}, "the model has 1 layers") for name in ("cacheblend", "agentkvshift")),
        ("cacheblend-gradual", {}, {}, "the model has layers 0 to 1"),
        ("cacheclip", {}, {"select": "cache_clip(helper=no-such)"}, "no-such"),
    ],
)
def test_a_model_that_cannot_run_a_method_is_refused_before_it_answers(name, config, changes, sentence, tmp_path):
    folder, answered = tiny.checkpoint(tmp_path / "model", **config), []
    given = {**METHODS[name].fields, **changes, "samples": 2, "passages": 3}
    refused(sentence, lambda: Trial(str(folder), **given).run(lambda *done: answered.append(done)))
    assert not answered


def engine_fits(name, logits):
    if name in CONTIGUOUS and logits is _logits("paged"):
        refused("engine 'paged' cannot answer: attend=chosen", logits, made(name))
        pytest.skip("it answers from contiguous caches")


@pytest.mark.parametrize("name", sorted(METHODS.keys() - PLAIN - OTHERWISE))
def test_a_method_that_recomputes_everything_is_full_attention(name, logits):
    engine_fits(name, logits)
    found = logits(made(name, **ALL.get(name, {"ratio": 1.0})))
    torch.testing.assert_close(found, _logits("contiguous")(Full(), name == "kvlink"), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - OTHERWISE))
def test_a_method_that_recomputes_nothing_is_its_reuse(name, logits):
    engine_fits(name, logits)
    found = logits(made(name, **NONE.get(name, {"ratio": 0.0})))
    plain = {key: value for key, value in METHODS[name].fields.items() if key not in BENT}
    reuse = MethodConfig(**plain | {k: v for k, v in HERE.get(name, {}).items() if k not in BENT}).method()
    if name in CONTIGUOUS:  # of the passages nothing is left
        reuse = Full(lambda prompt: MaskRule(lambda r, c: (c <= r) & ((c < 4) | (c >= END)), "no passage"))
    torch.testing.assert_close(found, _logits("contiguous")(reuse), atol=1e-4, rtol=1e-4)
