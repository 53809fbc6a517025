"""SeerAttention's gate: what it computes, what it learns from, and that it belongs to one model."""

import json

import pytest
import torch

from tests.commands import refused_command, told
from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from tests.tiny import checkpoint
from workbench import data, models
from workbench.core.kv import Derived
from workbench.core.plan import Plan, Site
from workbench.core.rope import rotate
from workbench.core.tiling.tiles import Grid
from workbench.engine.assembly import empty
from workbench.engine.chunked import prefill_chunked
from workbench.engine.forward import PrefillRequest, prefill
from workbench.methods import seer_gate, sparse
from workbench.methods.sparse.seer_attention import SeerAttention
from workbench.training.distill import GateConfig, distill, divergence, losses_of, target

MODEL = model_of("llama")
ROWS = [torch.arange(75), torch.arange(37, 70), torch.tensor([0, 3, 4, 17, 18, 40, 41, 42, 43, 66, 74])]


@pytest.fixture(scope="module")
def gate():
    torch.manual_seed(0)
    return seer_gate.new_gate(MODEL, 8, 16)


@pytest.mark.parametrize("rows", ROWS, ids=["whole", "unaligned", "scattered"])
@torch.no_grad()
def test_a_gate_pools_what_stood_there_before_rope(gate, rows):
    """Mean queries; maximum, minimum and mean of keys; a linear map a head; RoPE where the block begins; 1/√width."""
    torch.manual_seed(1)
    raw_q, raw_k = torch.randn(4, len(rows), 16), torch.randn(2, int(rows[-1]) + 1, 16)
    freq = seer_gate.attach(MODEL).inv_freq[1]
    queries, keys = rotate(raw_q, rows, freq), rotate(raw_k, torch.arange(raw_k.shape[1]), freq)
    ours = gate(1, queries, keys, Grid(rows, raw_k.shape[1], 8))
    own = 10_000.0 ** -(torch.arange(0, 16, 2) / 16)
    for head in range(4):
        for i, at in enumerate(torch.arange(len(rows)).split(8)):
            q = raw_q[head, at].mean(0) @ gate.query[1][head]
            q = rotate(q[None, None], int(rows[at[0]]), own)[0, 0]
            for j, cols in enumerate(torch.arange(raw_k.shape[1]).split(8)):
                part = raw_k[head // 2, cols]
                k = torch.cat((part.max(0).values, part.min(0).values, part.mean(0))) @ gate.key[1][head // 2]
                k = rotate(k[None, None], 8 * j, own)[0, 0]
                expected = q @ k / 4 if 8 * j <= rows[at[-1]] else torch.tensor(-torch.inf)
                torch.testing.assert_close(ours[head, i, j], expected, atol=1e-4, rtol=1e-4)


def test_the_target_is_the_largest_attention_of_a_tile():
    torch.manual_seed(1)
    q, k = torch.randn(4, 20, 16), torch.randn(2, 20, 16)
    ours = target(q, k, Grid(torch.arange(20), 20, 8))
    for head in range(4):
        share = (q[head] @ k[head // 2].T / 4).masked_fill(~torch.ones(20, 20).tril().bool(), -torch.inf).softmax(-1)
        tall = torch.stack([torch.stack([tile.max() for tile in part.split(8, 1)]) for part in share.split(8)])
        torch.testing.assert_close(ours[head], tall / tall.sum(1, keepdim=True))


def test_the_loss_is_kl_without_the_first_quarter():
    rows = ([0.5, 0.5], [0.2, 0.3, 0.5], [0.1, 0.2, 0.3, 0.4])
    wanted = torch.tensor([[[1.0, 0, 0, 0], *(row + [0.0] * (4 - len(row)) for row in rows)]])
    logits = torch.zeros(1, 4, 4).masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf)
    by_hand = [sum(p * torch.tensor(p * len(row)).log() for p in row) for row in rows]
    torch.testing.assert_close(divergence(wanted, logits), sum(by_hand) / 3)


def test_a_gate_learns_and_is_repeatable():
    config = GateConfig(steps=25, batch=1, lr=3e-3, warmup=2, block=8, width=16)
    prompts = [prompt_of(30, 60, seed=seed).tokens for seed in range(6)]
    before = {name: x.clone() for name, x in MODEL.state_dict().items()}
    told = []
    gate, losses = distill(MODEL, prompts[:5], config, lambda step, loss: told.append((step, loss)))
    again, _ = distill(MODEL, prompts[:5], config)
    assert told == list(enumerate(losses, 1)) and all(
        torch.equal(a, b) for a, b in zip(gate.state_dict().values(), again.state_dict().values(), strict=True)
    )
    untrained = seer_gate.new_gate(MODEL, 8, 16)
    held_out = [losses_of(MODEL, one, prompts[5:]).mean().item() for one in (untrained, gate)]
    assert held_out[1] < 0.8 * held_out[0], "also on text that it has not seen"
    assert all(torch.equal(x, before[name]) for name, x in MODEL.state_dict().items()), "the model is read only"


def test_blocks_by_threshold_or_by_number_and_the_last_rows_in_full(gate):
    torch.manual_seed(2)
    rows = torch.arange(37, 70)
    q, k = torch.randn(4, 33, 16), torch.randn(2, 70, 16)
    grid = Grid(rows, 70, 8)
    with torch.no_grad():
        share = gate(2, q, k, grid).softmax(-1)
    for threshold in (0.02, 0.2):
        kept = SeerAttention(threshold=threshold, tail=0, block=8, trained=gate)(q, k, rows, Site(2)).kept
        assert torch.equal(kept, ((share >= threshold) | grid.own_tiles) & grid.causal)
    kept = SeerAttention(top=3, tail=0, block=8, trained=gate)(q, k, rows, Site(2)).kept
    best = torch.zeros_like(kept).scatter_(-1, share.topk(3).indices, True)
    assert torch.equal(kept, (best | grid.own_tiles) & grid.causal)
    for length, full in ((70, [2, 3, 4]), (80, [3, 4]), (None, [2, 3, 4]), (200, [])):  # rows 53-60, 61-68, 69
        kept = SeerAttention(threshold=1.0, tail=2, block=8, trained=gate)(q, k, rows, Site(2, length)).kept
        assert [i for i in range(5) if torch.equal(kept[:, i], grid.causal[i].expand(4, -1))] == full


@torch.no_grad()
def test_a_chunk_pools_its_own_keys_alone_and_those_that_were_changed(gate, monkeypatch):
    torch.manual_seed(3)
    q, keys, derived, pooled = torch.randn(4, 90, 16), torch.randn(2, 90, 16), Derived(), []
    whole = seer_gate.pooled
    monkeypatch.setattr(seer_gate, "pooled", lambda k, block: pooled.append(k.shape[1]) or whole(k, block))

    def asked(begin, end):
        rows, part = torch.arange(begin, end), keys[:, :end]
        found = gate(1, q[:, begin:end], part, Grid(rows, end, 8), Site(1, derived=derived))
        counts, pooled[:] = pooled[:], []
        torch.testing.assert_close(found, gate(1, q[:, begin:end], part, Grid(rows, end, 8)), atol=1e-5, rtol=1e-5)
        pooled.clear()
        return counts

    assert asked(0, 30) == [30] and asked(30, 64) == [40]  # the last block of the first chunk was not whole
    assert asked(40, 64) == [] and asked(64, 90) == [26]
    keys[:, 50:60] += 1
    derived.mark_stale(50)
    assert asked(80, 90) == [42]
    assert asked(5, 20) == [4], "a shorter prompt over the same keys"


def test_a_saved_gate_is_read_back_for_its_model_alone(gate, tmp_path):
    path = tmp_path / "made" / "gate.safetensors"
    gate.save(path, {"steps": 3})
    assert [file.name for file in path.parent.iterdir()] == ["gate.safetensors"]
    back = seer_gate.load(path, MODEL)
    assert back.shape == gate.shape
    for a, b in zip(gate.state_dict().values(), back.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    ready = SeerAttention(gate=str(path), block=8).for_model(MODEL)
    prompt = prompt_of(40, 30)
    request = PrefillRequest(prompt.tokens, Plan(torch.arange(70), sparse=ready), empty(MODEL, 70))
    assert prefill_chunked(MODEL, request, 16).logits is not None
    assert (
        sparse.from_spec(f"compact(over=seer_attention(gate='{path}', block=8))").for_model(MODEL).inner.trained
        is not None
    )
    refused("was trained for another model than llama", seer_gate.load, path, model_of("llama", seed=1))
    refused("is for blocks of 8 tokens, not of 64", lambda: SeerAttention(gate=str(path)).for_model(MODEL))
    refused("there is no gate", seer_gate.load, tmp_path / "none", MODEL)
    path.write_bytes(path.read_bytes()[:200])
    refused("is no gate, or a damaged one", seer_gate.load, path, MODEL)


def test_a_gate_in_half_the_bytes_is_read_back_in_fp32_within_its_rounding(gate, tmp_path):
    gate.save(tmp_path / "whole", {"steps": 3})
    gate.save(tmp_path / "half", {"steps": 3}, half=True)
    assert seer_gate.training(tmp_path / "half") == {"steps": 3}
    assert (tmp_path / "half").stat().st_size < 0.7 * (tmp_path / "whole").stat().st_size
    back = seer_gate.load(tmp_path / "half", MODEL).state_dict()
    for name, a in gate.state_dict().items():
        assert back[name].dtype == torch.float32 and torch.equal(a.half().float(), back[name])


def test_a_gate_keeps_how_it_was_trained(gate, tmp_path):
    about = {"data": "lab", "seed": 3, "samples": 2, "prompts": [seer_gate.digest(prompt_of(20, 9).tokens)]}
    gate.save(tmp_path / "gate", about)
    assert seer_gate.training(tmp_path / "gate") == about
    (tmp_path / "broken").write_bytes(b"none")
    for name, sentence in (("broken", "does not say how it was trained"), ("none", "there is no gate")):
        refused(sentence, seer_gate.training, tmp_path / name)


def test_a_model_keeps_its_identity_in_another_number_format():
    other = model_of("llama")
    same = seer_gate.identity(other)
    assert seer_gate.identity(other.bfloat16()) == same == seer_gate.identity(other.bfloat16().float())
    other.model.layers[1].self_attn.k_proj.weight.data[0, 0] += 1
    assert seer_gate.identity(other) != same


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GateConfig(steps=0), "steps is 0"),
        (lambda: GateConfig(lr=0), "lr 0"),
        (lambda: seer_gate.new_gate(MODEL, 8, 7), "width 7"),
        (lambda: distill(MODEL, [torch.arange(9), torch.arange(8)], GateConfig(block=8)), "more than 8 tokens"),
        (lambda: distill(MODEL, [], GateConfig()), "more than 64 tokens"),
        (lambda: distill(MODEL, [torch.arange(5, 200)], GateConfig(block=8)), "not all in the model's vocabulary"),
    ],
)
def test_a_training_that_cannot_be(make, sentence):
    refused(sentence, make)


def test_the_command_line_fits_and_the_methods_read(tmp_path):
    folder = checkpoint(tmp_path / "model")
    common = ["--model", folder, "--samples", "2", "--passages", "2", "--json"]
    small = ["--steps", "2", "--block", "16", "--width", "8"]
    record = json.loads(told("sparse", "distill", "--out", tmp_path / "gate", *common, *small))
    assert record["steps"] == 2 and record["held_out_loss"] > 0 and record["seconds"] > 0
    trained = seer_gate.training(tmp_path / "gate")
    assert trained.items() > record.items() and trained["samples"] == len(trained["prompts"]) == 2
    _, tokenizer, layout = models.load(folder)
    prompts = [p.tokens for p in layout.prompts(data.load("lab", 3, 0, 2), tokenizer)]
    assert trained["prompts"] == [*map(seer_gate.digest, prompts[:2])]
    taus = told("sparse", "profile", "--out", tmp_path / "taus", *common, "--block", "16", "--stride", "4")
    assert 0 < json.loads(taus)["median"] <= 1
    model, _, _ = models.load(folder)
    tokens = torch.arange(5, 105)
    for spec in (f"seer_attention(gate='{tmp_path}/gate', block=16)", f"xattention(16, 4, '{tmp_path}/taus')"):
        spec = spec.replace("(16, 4, ", "(block=16, stride=4, threshold=")
        plan = Plan(torch.arange(100), sparse=sparse.from_spec(spec).for_model(model))
        assert prefill(model, tokens, plan, empty(model, 100)).logits is not None
    assert set(told("sparse", "names").split()) == set(sparse.names())
    for words, sentence in (
        (("distill", "--out", str(tmp_path / "no" / "gate")), "there is no folder"),
        (("distill", "--out", str(tmp_path / "a"), "--steps", "0"), "steps is 0"),
        (("distill", "--out", str(tmp_path / "a"), "--samples", "0"), "samples is 0"),
        (("distill", "--out", str(tmp_path / "a"), "--data", "lab-sample", "--samples", "999"), "8 of them held out"),
        (("profile", "--out", str(tmp_path / "a"), "--stride", "48"), "block 128 is no multiple of stride 48"),
        (("profile", "--out", str(tmp_path / "a"), "--cover", "2"), "cover is 2.0"),
    ):
        assert sentence in refused_command("sparse", *words) and not (tmp_path / "a").exists()
