"""Figures that show how a method works, carried out on a tiny random model: mechanisms of `data/claims.json`.

No quality and no time is measured here: a figure holds or it does not.
"""

from itertools import pairwise

import pytest
import torch
from transformers import LlamaConfig

from workbench.core.blocks import Block, Prompt
from workbench.core.masks import block_attention, causal, visible
from workbench.core.plan import Plan
from workbench.core.tiling.tiles import Grid
from workbench.data.layouts import RELEASED
from workbench.data.sample import Passage, Sample
from workbench.data.sources.game import frames
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.experiments.simulation.store_replay import GB, Machine, replay, requests_of
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.sparse.bfla import Bfla
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.random import RandomTiles
from workbench.metrics import cost
from workbench.metrics.answers import bootstrap
from workbench.metrics.kv.kv_deviation import full_attention_kv
from workbench.metrics.kv.position_encoding import differences, tiny
from workbench.metrics.published_numbers import BLOCK_V2_TEXT, FUSION_FIGURE_6, LLAMA_3_8B, QUESTION, TABLE_3
from workbench.store import MemoryStore

EXAMPLE = Prompt(tuple(map(Block, FUSION_FIGURE_6["blocks"])))
ROWS = torch.cat((torch.tensor(FUSION_FIGURE_6["chosen"]), EXAMPLE.question))  # chosen tokens and the question
SYSTEM, *CHUNKS, ASKED = EXAMPLE.blocks
ROUNDING = 1e-4  # of fp32 numbers of a tiny model
GPU_HOST_DISK = Machine({"GPU": 1.4 * GB, "host": 1.4 * GB, "disk": 4 * GB}, per_second=20.0)


@pytest.fixture(scope="module")
def model():
    return tiny({"model_type": "llama"})


def states(tokens=256):
    draw = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(heads, tokens, 16, generator=draw) for heads in (4, 2))
    return queries, keys, torch.arange(tokens)


def test_block_attention_shows_no_passage_another_one_and_the_question_everything():
    rows, of = torch.arange(len(EXAMPLE)), EXAMPLE.block_of
    mask = visible(block_attention(EXAMPLE), rows, rows)
    asked = of == len(EXAMPLE.blocks) - 1
    assert not (mask & (of[:, None] != of) & ~asked[:, None]).any()
    assert torch.equal(mask[asked], visible(causal, rows, rows)[asked])


def test_reuse_computes_the_question_alone(model):
    (request,) = Reuse().begin(model, [EXAMPLE])
    assert set(request.request.plan.rows.tolist()) == set(EXAMPLE.question.tolist())
    assert differences(model, EXAMPLE)["logits"] < ROUNDING


def test_a_prompt_is_the_instruction_a_block_a_passage_and_the_question():
    sample = Sample("0", "Who?", ("A",), tuple(Passage(name, f"On {name}.") for name in "abc"))
    instruction, *passages, asked = RELEASED.pieces(sample)
    for ctx in sample.ctxs:
        assert [ctx.text in piece for piece in passages].count(True) == 1 and ctx.text not in instruction
    assert sample.question in asked and not any(sample.question in piece for piece in (instruction, *passages))


def test_operations_of_a_question_over_cached_passages_are_as_printed():
    length, parameters = TABLE_3["length"][-1], cost.shape(LlamaConfig(**LLAMA_3_8B)).convention
    full, block = (cost.convention(parameters, tokens) for tokens in (length, QUESTION))
    flops = TABLE_3["flops"]
    assert 1 - block / full == pytest.approx(1 - flops["block"][-1] / flops["full"][-1], abs=5e-4)


def test_little_of_a_game_changes_between_its_states():
    shares = []
    for before, now in pairwise(frames(40)):
        old, pieces = set(before.pieces()), now.pieces()
        shares.append(sum(len(piece) for piece in pieces if piece not in old) / sum(map(len, pieces)))
    ms = BLOCK_V2_TEXT["game_ttft_ms"]
    assert bootstrap(shares)[1] < ms["block"] / ms["full"]


def test_full_reuse_caches_a_chunk_behind_the_system_prompt(model):
    (cached,) = AfterSystem()(model, [EXAMPLE], MemoryStore())
    for chunk, kv in zip(CHUNKS, cached[1:], strict=True):
        alone = full_attention_kv(model, Prompt((SYSTEM, chunk, ASKED))).slice(1, 1 + len(chunk))
        for ours, theirs in zip(kv.keys, alone.keys, strict=True):
            assert (ours - theirs).abs().max() < ROUNDING


def test_cache_fusion_has_the_mask_of_figure_6():
    mask = visible(Plan(ROWS).sees, ROWS, torch.arange(len(EXAMPLE)))
    assert torch.equal(mask, torch.arange(len(EXAMPLE)) < torch.tensor(FUSION_FIGURE_6["seen"])[:, None])


def test_a_chunk_is_found_behind_other_chunks_and_kept_once(model):
    (a, b), store, prepare = CHUNKS, MemoryStore(), AfterSystem()
    for earlier in ((SYSTEM, b, ASKED), (SYSTEM, a, b, ASKED)):
        prepare(model, [Prompt(earlier)], store)
    before = store.stats
    prepare(model, [Prompt((SYSTEM, b, a, ASKED))], store)
    assert store.stats.since(before).misses == 0 and store.stats.entries == 3


def test_recomputed_tokens_leave_the_shared_chunk_intact(model):
    store = MemoryStore()
    (cached,) = AfterSystem()(model, [EXAMPLE], store)
    before = [keys.clone() for kv in cached for keys in kv.keys]
    (request,) = Reuse(prepare=AfterSystem()).begin(model, [EXAMPLE], store)
    prefill_many(model, [PrefillRequest(EXAMPLE.tokens, Plan(ROWS), request.request.kv)])
    assert all(map(torch.equal, before, (keys for kv in cached for keys in kv.keys)))


@pytest.mark.parametrize(("mode", "overlaps"), [("sync", False), ("request", True)])
def test_loads_run_beside_the_engine_where_they_are_asynchronous(mode, overlaps):
    events = replay(requests_of(1.0, 24, 80, 6), GPU_HOST_DISK, mode, range(80)).events
    loads = [event for event in events if event.what == "load" and event.seconds > 0]
    runs = [event for event in events if event.what == "run"]
    beside = [load for load in loads for run in runs if load.at < run.end - 1e-9 and run.at < load.end - 1e-9]
    assert loads and bool(beside) == overlaps


def test_bfla_keeps_what_one_of_its_rules_keeps():
    queries, keys, rows = states()
    method = Bfla(block=64, tile=16, flat=16, mass=0.5, local=1)
    kept = method(queries, keys, rows).kept
    named = torch.stack(list(method.causes(queries, keys, rows).values())).any(0)
    own = Grid(rows, keys.shape[1], 16).own
    assert kept.any() and not (kept & ~named & ~own).any() and not (named & ~kept).any()


def test_the_union_of_blocks_is_what_was_selected():
    queries, keys, rows = states()
    over = RandomTiles(block=16, share=0.2)
    before, after = (method(queries, keys, rows) for method in (over, Compact(over)))
    own = Grid(rows, keys.shape[1], before.size).own
    selected = before.kept.unflatten(0, (2, -1)).any(1).any(1) | own.any(0)
    assert not (before.kept & ~after.kept).any()
    assert not (after.kept & ~selected.repeat_interleave(2, 0)[:, None]).any()


def test_every_kv_head_has_a_page_table_of_its_own():
    queries, keys, rows = states(1024)
    start, pages = Compact(RandomTiles(block=16, share=0.01))(queries, keys, rows[-32:]).pages(2)
    assert len({tuple(pages[a:b].tolist()) for a, b in pairwise(start.tolist())}) == 2
    page = 2 * 16 * keys.shape[-1] * keys.itemsize  # bytes of keys and values
    assert pages.itemsize * len(pages) + start.itemsize * len(start) < 0.01 * page * len(pages)
