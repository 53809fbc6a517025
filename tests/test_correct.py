"""Corrections, attention rules and positions that passages share: each against a second, plain implementation."""

from dataclasses import replace
from functools import cache
from math import ceil

import pytest
import torch

from tests.by_hand import forward
from tests.random_models import Letters, model_of, prompt_of, stitched
from tests.refusals import refused
from workbench.core import rope
from workbench.core.blocks import Prompt
from workbench.core.masks import causal, visible
from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.plan import Site
from workbench.core.rope import rotate
from workbench.engine.assembly import assemble, empty
from workbench.engine.attention_backends import choice, listed_columns
from workbench.engine.attention_backends.attention import over_tiles
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.trials import budget
from workbench.kernels._anchors import in_torch, meeting
from workbench.kernels._pages import apart
from workbench.kernels._pages.case import case
from workbench.kernels.question_attention import reference
from workbench.methods import attend, correct, finish, select
from workbench.methods.config import MethodConfig
from workbench.methods.correct._anchors import Anchor
from workbench.methods.correct.kvcomm import Kvcomm
from workbench.methods.engines import pages_of
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes import superposition
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.link0 import Link0
from workbench.methods.presets import METHODS
from workbench.metrics.cost import charged_share
from workbench.models.spec import attach
from workbench.store import MemoryStore

SIZES = (4, 9, 7, 12, 5)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels do not take tensors of the CPU")
PROMPT = prompt_of(*SIZES)
END = PROMPT.starts[-1]
OTHER = prompt_of(*SIZES, seed=1)


def logits_of(model, method, prompt=PROMPT):
    (ready,) = method.begin(model, [prompt])
    return finish(model, [ready])[0]


@pytest.fixture(scope="module", params=["contiguous", "paged"])
def logits(model, request):
    one, store = SamplingParams(max_new_tokens=1), MemoryStore(1 << 30)
    return cache(lambda method: answer(model, Letters(), [PROMPT], method, store, one, request.param).logits[0])


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({"correct": correct.from_spec("agent_kv_shift")}, True),
        ({"correct": correct.from_spec("agent_kv_shift"), "select": select.from_spec("prophet_kv")}, True),
        ({"correct": correct.from_spec("fuse(theta=1)"), "select": select.from_spec("a3")}, True),
        ({"correct": correct.from_spec("fuse"), "select": select.from_spec("a3")}, False),
        ({"correct": correct.from_spec("kvcomm(most=0)")}, False),
        ({"attend": attend.from_spec("relax_kv"), "select": select.from_spec("prophet_kv")}, True),
    ],
)
def test_all_tokens_are_full_attention_and_none_is_reuse(logits, changes, whole):
    if whole:
        everything = logits(Reuse(prepare=AfterSystem(), ratio=1.0, **changes))
        torch.testing.assert_close(everything, logits(Full()), atol=1e-3, rtol=1e-3)
    nothing = logits(Reuse(prepare=AfterSystem(), ratio=0.0, **changes))
    torch.testing.assert_close(nothing, logits(Reuse(prepare=AfterSystem())), atol=1e-4, rtol=1e-4)


# --- AgentKVShift


def shifted_by_hand(model, ratio: float) -> torch.Tensor:
    """Algorithm 1, layer by layer and token by token: every passage that ran to layer l anew gives the fresh rows."""
    stale, fresh = stitched(model, PROMPT), stitched(model, PROMPT)
    truth = forward(model, PROMPT.tokens, empty(model, len(PROMPT)), torch.arange(len(PROMPT))).kv
    probes, weights = {}, {}
    for part in ("keys", "values"):
        before, after = getattr(stale, part)[1], getattr(truth, part)[1]
        distance = [float((after[:, t] - before[:, t]).norm()) for t in range(END)]
        for begin, end in zip(PROMPT.starts[1:-1], PROMPT.starts[2:], strict=True):
            best = sorted(range(begin, end), key=lambda t: -distance[t])[: ceil(ratio * (end - begin))]
            probes[part, begin], weights[part, begin] = best, [min(distance[t], 1) for t in range(begin, end)]
    computed = sorted({t for each in probes.values() for t in each})
    for part in ("keys", "values"):
        for layer in (0, 1):
            getattr(fresh, part)[layer][:, :END] = getattr(truth, part)[layer][:, :END]
    rows = torch.tensor([*computed, *PROMPT.question.tolist()])
    out = forward(model, PROMPT.tokens, fresh, rows)  # layer 2 reads stale keys: what its probes compute is right
    for part in ("keys", "values"):
        cached, before = getattr(fresh, part)[2], getattr(stale, part)[2]
        for (name, begin), best in probes.items():
            if name == part:
                mean = sum(getattr(out.kv, part)[2][:, t] - before[:, t] for t in best) / len(best)
                for t, weight in enumerate(weights[part, begin], begin):
                    if t not in computed:
                        cached[:, t] = before[:, t] + weight * mean
    return forward(model, PROMPT.tokens, fresh, rows).logits[-1]


@pytest.mark.parametrize("ratio", [0.1, 0.3])
def test_agent_kv_shift_moves_what_it_does_not_compute_by_the_mean_of_its_probes(model, ratio):
    method = Reuse(prepare=AfterSystem(), correct=correct.from_spec("agent_kv_shift"), ratio=ratio)
    expected = shifted_by_hand(model, ratio)
    torch.testing.assert_close(logits_of(model, method), expected, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(expected, logits_of(model, Reuse(prepare=AfterSystem())), atol=1e-2)


# --- KVCOMM


def test_kvcomm_computes_anchors_in_full_and_then_moves_a_passage_as_its_like_moved(model):
    method = Reuse(prepare=AfterSystem(), correct=Kvcomm(temperature=1e-4))
    for prompt in (PROMPT, OTHER):
        (ready,) = method.begin(model, [prompt])
        assert ready.computed == len(prompt), "there are no two anchors yet"
        torch.testing.assert_close(finish(model, [ready])[0], logits_of(model, Full(), prompt), atol=1e-3, rtol=1e-3)
    (ready,) = method.begin(model, [PROMPT])
    assert ready.computed == len(PROMPT.question)
    torch.testing.assert_close(finish(model, [ready])[0], logits_of(model, Full()), atol=1e-3, rtol=1e-3)


def test_kvcomm_computes_in_full_what_is_like_all_anchors_alike_and_keeps_no_more_than_most(model):
    kept = Kvcomm(threshold=0, most=2)
    for prompt in (PROMPT, OTHER, prompt_of(*SIZES, seed=2), PROMPT):
        (ready,) = Reuse(prepare=AfterSystem(), correct=kept).begin(model, [prompt])
        assert ready.computed == len(prompt)
    assert {len(anchors) for anchors in kept.anchors.values()} == {2} and set(kept.anchors) == {1, 2, 3}


@pytest.mark.parametrize(("width", "rotary", "pairing"), [(16, 16, "neox"), (24, 16, "neox"), (16, 16, "interleaved")])
def test_passages_meet_their_anchors_by_kernels_as_in_torch(width, rotary, pairing):
    torch.manual_seed(0)
    keys, values = ([torch.randn(2, 64, width).to(DEVICE)[:, :60] for _ in range(3)] for _ in range(2))
    starts, lengths, kept = (4, 24, 29), (20, 5, 17), ((20, 33), (5, 9, 7), (17, 18))
    anchors = [
        [Anchor(*[tuple(torch.randn(6, n, width).to(DEVICE) for _ in "kv") for _ in range(2)]) for n in counts]
        for counts in kept
    ]
    tables = [1e4 ** (-torch.arange(0, rotary, 2, device=DEVICE) / rotary)] * 3
    copies = [x.clone() for x in keys], [x.clone() for x in values]
    assert meeting.fits(*copies, tables) and not meeting.fits(keys, copies[1], tables)
    for known in ([*anchors[:2], []], anchors):
        given = starts, lengths, known, tables, pairing
        by_kernel, by_torch = meeting.AnchorComparison(*copies, *given), in_torch.InTorch(keys, values, *given)
        expected = by_torch.token_distances()
        torch.testing.assert_close(by_kernel.token_distances(), expected, atol=1e-5, rtol=1e-4)
    weights = torch.rand(2, 3, 42).to(DEVICE) * expected[:1].isfinite()
    numbers, cached = torch.randperm(26).split((5, 2, 5, 5, 2, 5, 2)), (0, 7, 3)
    at = [(each[:, None] * 4 + torch.arange(4)).flatten() for each in numbers]  # pages of four tokens
    sides = [torch.cat([x[:n] for x, n in zip(some, lengths, strict=True)]) for some in (at[:3], at[3:6])]
    slots = [x.to(DEVICE) for x in (*sides, at[6])]
    back = (torch.tensor(cached) - torch.tensor(starts)).repeat_interleave(torch.tensor(lengths))
    pages = [torch.randn(2, 104, width, device=DEVICE) for _ in range(6)]

    def cached_parts():
        return *rope.rotate_layers([x[:, 4:46] for x in keys], back, tables, pairing), *[x[:, 4:46] for x in values]

    for pool, x in zip(pages, cached_parts(), strict=True):
        pool[:, slots[0]] = x
    before = [pool.clone() for pool in pages]
    paged = cached, *[[x.numpy() for x in some] for some in (numbers[:3], numbers[3:6])], 4
    over_pages = meeting.AnchorComparison(pages[:3], pages[3:], *given, paged)
    torch.testing.assert_close(over_pages.token_distances(), expected, atol=1e-5, rtol=1e-4)
    for one in (by_kernel, by_torch, over_pages):
        one.move(weights)
    torch.testing.assert_close(copies, (keys, values), atol=1e-5, rtol=1e-4)
    for pool, known, moved in zip(pages, before, cached_parts(), strict=True):
        torch.testing.assert_close(pool[:, slots[1]], moved, atol=1e-5, rtol=1e-4)
        assert torch.equal(pool[:, slots[0]], known[:, slots[0]]) and torch.equal(pool[:, slots[2]], known[:, slots[2]])


@INTERPRETED
def test_kvcomm_and_superposition_move_keys_by_kernels_on_a_gpu_as_elsewhere(model, monkeypatch):
    rule, spec = Kvcomm(system=1), attach(model)
    for prompt in (PROMPT, OTHER):
        rule(model, [prompt], [stitched(model, prompt)], None, None)
    parts = [
        superposition.PlacedTokens(stitched(model, PROMPT).slice(0, 9), 0, 1.5),
        superposition.PlacedTokens(stitched(model, OTHER), 20),
    ]
    found = []
    for kernels in (False, True):
        kv = stitched(model, PROMPT)
        assert meeting.fits(kv.keys, kv.values, spec.inv_freq)
        with monkeypatch.context() as patch:
            patch.setattr(choice, "on_gpu", lambda device, chosen=kernels: chosen)
            (done,) = rule(model, [PROMPT], [kv], None, None)
            found.append([*kv.tensors(), *superposition._place(spec, [parts[:1], parts], 2).kv(1).tensors()])
        assert not done.computed
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


READS = {"select": select.from_spec("kv_deviation(layer=1)"), "ratio": 0.3}  # a choice that reads a copy of the cache


@INTERPRETED
@pytest.mark.parametrize("few", [1024, 0], ids=["in steps", "over copies"])
@pytest.mark.parametrize("changes", [{}, {"prepare": AfterSystem(), "select": select.from_spec("first_k(k=2)")}, READS])
def test_kvcomm_corrects_cached_pages_into_pages_of_a_request_as_it_does_an_assembled_cache(
    model, changes, few, monkeypatch
):
    monkeypatch.setattr("workbench.methods.paged.request.LARGE", few)
    store, one = MemoryStore(1 << 30), SamplingParams(max_new_tokens=3)
    mixed = Prompt((*PROMPT.blocks[:2], OTHER.blocks[2], *PROMPT.blocks[3:]))
    batches = [PROMPT], [OTHER, PROMPT], [prompt_of(*SIZES, seed=2), PROMPT], [mixed, PROMPT]
    assembled, compared, found = list[int](), list[int](), []
    begin, meet = Reuse.begin_over, meeting.AnchorComparison
    monkeypatch.setattr(Reuse, "begin_over", lambda *given: assembled.append(len(given[2])) or begin(*given))
    monkeypatch.setattr(meeting, "AnchorComparison", lambda *given: compared.append(len(given[2])) or meet(*given))
    for engine in ("contiguous", "paged"):
        rule = Kvcomm(temperature=0.1, threshold=0.9)
        with monkeypatch.context() as patch:
            patch.setattr(choice, "on_gpu", lambda device, chosen=engine == "paged": chosen)
            given = Reuse(correct=rule, **changes), store, one, engine
            answers = [answer(model, Letters(), batch, *given) for batch in batches]
        said = [[(x.tokens, x.rows_computed) for x in each.generations] for each in answers]
        anchors = {place: [anchor.used for anchor in each] for place, each in rule.anchors.items()}
        caches = [x[:, : len(PROMPT)] for each in answers for ready in each.ready for x in ready.request.kv.tensors()]
        found.append((said, anchors, [*[row for each in answers for row in each.logits], *caches]))
    assert found[0][:2] == found[1][:2]
    torch.testing.assert_close(found[0][2], found[1][2], atol=1e-4, rtol=1e-4)
    full = sum(computed == len(PROMPT) for batch in found[0][0] for _, computed in batch)
    assert 2 <= full < 5 and assembled == [1, 2, 2, 2, *[1] * full], "blocks in pages are assembled where none is near"
    assert compared[0] == 3 and compared[-2:] == [3, 1], "a passage is compared once with the anchors of its place"
    assert not pages_of(model).of(model, 1)[1].pinned


@INTERPRETED
def test_two_rules_that_correct_the_same_passages_in_turn_compare_them_once_each(model, monkeypatch):
    compared, meet, store = list[int](), meeting.AnchorComparison, MemoryStore(1 << 30)
    monkeypatch.setattr(meeting, "AnchorComparison", lambda *given: compared.append(len(given[2])) or meet(*given))
    monkeypatch.setattr(choice, "on_gpu", lambda device: True)
    rules = [Kvcomm(temperature=0.1, threshold=0.9) for _ in range(2)]
    for prompt in (OTHER, PROMPT, PROMPT, PROMPT):
        for rule in rules:
            answer(model, Letters(), [prompt], Reuse(correct=rule), store, SamplingParams(max_new_tokens=1), "paged")
    assert compared == [3, 3]


def test_a_block_made_from_a_cached_one_is_found_again_until_that_one_goes_or_its_pages_are_needed(model):
    pool = Pool(model, 8, 4)
    blocks, kv = BlockPages(pool), stitched(model, PROMPT).slice(0, 8)
    (cached,) = blocks.place([kv])
    made, unkept = blocks.blank(8, 0), blocks.blank(4, 0)
    blocks.keep(made, cached)
    blocks.unpin([cached, made, unkept])
    assert (pool.free, blocks.available_pages, len(blocks)) == (3, 7, 2), "what is not kept goes with its request"
    assert blocks.pin_again(made) and blocks.pinned == 1 and not blocks.pin_again(unkept)
    blocks.make_room(5)
    assert len(blocks) == 1, "what a request reads stays, though the block that it was made from is dropped"
    del cached
    blocks.unpin([made])
    assert (pool.free, len(blocks)) == (7, 0) and not blocks.pin_again(made)


@pytest.mark.parametrize("method", [Reuse(prepare=AfterSystem(), correct=Kvcomm()), Superposition()])
def test_angles_are_taken_once_a_rotation_whatever_the_number_of_blocks_and_layers(model, method, monkeypatch):
    for prompt in (PROMPT, OTHER):
        method.begin(model, [prompt])
    taken = []
    monkeypatch.setattr(rope, "cos_sin", lambda *given, of=rope.cos_sin: taken.append(given) or of(*given))
    method.begin(model, [PROMPT])
    assert len(taken) == 2


# --- what rows attend to


def test_relax_kv_hides_what_matters_little_of_other_passages_from_recomputed_tokens_alone(model):
    scores = torch.cat((torch.full((4,), -torch.inf), -torch.arange(END - 4)))
    rows = torch.cat((torch.tensor([8, 15, 20]), PROMPT.question))
    sees = attend.from_spec("relax_kv(share=0.2)").plan(PROMPT, rows, scores)["sees"]
    columns = torch.arange(len(PROMPT) + 3)
    seen = [row.nonzero()[:, 0].tolist() for row in sees(rows[:, None], columns[None])]
    best = [4, 5, 6, 7, 8, 9]  # a fifth of 28 tokens
    assert seen[:3] == [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, *best, 13, 14, 15], [0, 1, 2, 3, *best, 15, 20]]
    assert seen[3:] == [list(range(row + 1)) for row in PROMPT.question.tolist()], "the question sees everything"
    assert bool(sees(torch.tensor([[len(PROMPT) + 2]]), columns[None]).all())


def test_what_is_not_chosen_is_dropped_for_the_answer_as_well(model):
    rows = torch.cat((torch.tensor([6, 20]), PROMPT.question))
    sees = attend.from_spec("chosen").plan(PROMPT, rows, None)["sees"]
    last = torch.tensor([[len(PROMPT) + 1]])
    seen = sees(last, torch.arange(len(PROMPT) + 3)[None])[0].nonzero()[:, 0].tolist()
    assert seen == [0, 1, 2, 3, 6, 20, *PROMPT.question.tolist(), len(PROMPT), len(PROMPT) + 1]


@INTERPRETED
@pytest.mark.parametrize("name", ["relax_kv(share=0.2)", "chosen"])
@pytest.mark.parametrize("computed", [[6, 8, 15, 20], [*range(4, 30)], []], ids=["some", "many", "the question alone"])
def test_listed_columns_by_kernels_are_those_of_the_mask(monkeypatch, name, computed):
    torch.manual_seed(0)
    monkeypatch.setattr(listed_columns, "ROWS", 4)  # several groups of a passage
    monkeypatch.setattr(choice, "PAGE", 16)
    choice.identity.cache_clear()
    rows = torch.cat((torch.tensor(computed, dtype=torch.int64), PROMPT.question))
    rule = attend.from_spec(name).plan(PROMPT, rows, torch.arange(END).float())["sees"]
    q, keys, values = torch.randn(4, len(rows), 16), torch.randn(2, len(PROMPT), 16), torch.randn(2, len(PROMPT), 16)
    seen = visible(rule, rows, torch.arange(len(PROMPT)))
    wide = (x.repeat_interleave(2, 0) for x in (keys, values))
    expected = torch.nn.functional.scaled_dot_product_attention(q, *wide, seen)
    found = rule.over_listed(q, keys, values, rows, rule, None, None)
    choice.identity.cache_clear()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@INTERPRETED
def test_a_digest_by_kernels_is_that_of_the_mask():
    torch.manual_seed(0)
    seen = torch.zeros(2, len(PROMPT), dtype=torch.bool)
    seen[:, END:] = seen[0, [1, 5, 20]] = seen[1, [0, 7, 8]] = True
    q, keys, values = torch.randn(4, 5, 16), torch.randn(2, len(PROMPT), 16), torch.randn(2, len(PROMPT), 16)
    for layer in range(2):
        tiles = listed_columns.ColumnsByLayer(seen)(q, keys, PROMPT.question, Site(layer))
        assert tiles.listed.tolist() == seen[layer].nonzero()[:, 0].tolist()
        expected = over_tiles(q, keys, values, PROMPT.question, tiles, None)
        found = listed_columns.over_columns(tiles.listed, q, keys, values, PROMPT.question, causal, tiles, None)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("temperature", "scale"), [(1.0, 1.0), (0.9, 0.9), (0.5, 2.0)])
def test_ape_merges_passages_and_the_rest_by_their_log_sum_exp(model, temperature, scale):
    """As `ape_llama.py` does: two attentions, then a softmax of their two log-sum-exps."""
    torch.manual_seed(0)
    q, keys, values = torch.randn(4, 6, 8), torch.randn(2, len(PROMPT), 8), torch.randn(2, len(PROMPT), 8)
    rows = torch.cat((torch.tensor([20]), PROMPT.question))
    backend = attend.from_spec(f"ape(temperature={temperature}, scale={scale})").plan(PROMPT, rows, None)["backend"]
    found = backend(q, keys, values, rows, lambda row, col: col <= row, None, None)
    for head in range(4):
        for i, row in enumerate(rows.tolist()):
            z, v = (keys[head // 2] @ q[head, i]) * 8**-0.5, values[head // 2]
            passages = torch.arange(len(PROMPT))
            inside = (passages >= SIZES[0]) & (passages < END) & (passages <= row)
            rest = ~inside & (passages <= row)
            bend = row >= END
            cold = z[inside] / (temperature if bend else 1)
            ends = torch.stack((cold.logsumexp(0) * (temperature * scale if bend else 1), z[rest].logsumexp(0)))
            outputs = torch.stack((cold.softmax(0) @ v[inside], z[rest].softmax(0) @ v[rest]))
            torch.testing.assert_close(found[head, i], ends.softmax(0) @ outputs, atol=1e-5, rtol=1e-4)


@INTERPRETED
@pytest.mark.parametrize("first", [0, 1], ids=["question alone", "with a recomputed token"])
def test_ape_by_kernels_merges_as_by_torch(monkeypatch, first):
    torch.manual_seed(0)
    rows = torch.cat((torch.tensor([20]), PROMPT.question))[1 - first :]
    length = len(PROMPT) + 200  # a cache with room, more than a page
    q, keys, values = torch.randn(4, len(rows), 16), torch.randn(2, length, 16), torch.randn(2, length, 16)
    backend = attend.from_spec("ape(temperature=0.5, scale=1.5)").plan(PROMPT, rows, None)["backend"]
    expected = backend(q, keys, values, rows, causal, None, None)
    monkeypatch.setattr(choice, "backend_for", lambda problem: choice.backend_named("question_attention"))
    torch.testing.assert_close(backend(q, keys, values, rows, causal, None, None), expected, atol=1e-5, rtol=1e-4)


def test_ape_at_one_is_plain_attention(logits):
    plain = Reuse(prepare=AfterSystem(), positions="shared")
    one, bent = (replace(plain, attend=attend.from_spec(name)) for name in ("ape(temperature=1, scale=1)", "ape"))
    torch.testing.assert_close(logits(one), logits(plain), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(bent), logits(plain), atol=1e-3)


@pytest.mark.parametrize("name", ["ape", "psr"])
@pytest.mark.parametrize("few", [1024, 0], ids=["in steps", "over copies"])
def test_ape_answers_over_pages_as_from_contiguous_caches(model, monkeypatch, name, few):
    monkeypatch.setattr("workbench.methods.paged.request.LARGE", few)
    method, prompts = MethodConfig(**METHODS[name].fields).method(), [PROMPT, prompt_of(3, 70, 5, 8, seed=2), OTHER]
    said = SamplingParams(max_new_tokens=4)
    there, here = (
        answer(model, Letters(), prompts, method, params=said, engine=one) for one in ("paged", "contiguous")
    )
    assert [one.tokens for one in there.generations] == [one.tokens for one in here.generations]
    torch.testing.assert_close(there.logits, here.logits, atol=1e-4, rtol=1e-4)
    asked = [(7, 3, 9)] * len(prompts)
    forced = there.force(asked)
    for ready, ids, found in zip(here.ready, asked, forced or [], strict=True):
        plan, end = ready.request.plan, len(ready.request.tokens)
        kv = ready.request.kv.slice(0, end).clone(2)
        kv.grow(2)
        rows = torch.arange(end, end + 2)
        tokens = torch.cat((ready.request.tokens, torch.tensor(ids[:2])))
        whole = prefill(model, tokens, replace(plan, rows=rows), kv)
        torch.testing.assert_close(found, whole.logits[-2:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("gain", [-0.2, 0.0, 0.5])
def test_two_lists_of_pages_by_kernels_are_merged_as_by_torch(gain):
    drawn = case(1, DEVICE, torch.float32, [[0, 1], [1]], [37, 20], [3, 5], recompute=0.2, pairing="neox")
    q, keys, values, rows, pages, inv_freq, pairing = drawn
    lists = [
        replace(pages, positions=pages.positions.masked_fill(hidden, INVALID_POS), partial_pages=True)
        for hidden in (pages.positions >= 25, pages.positions < 25)
    ]
    lists = [Paged.of(one.table, one.positions, one.shifts) for one in lists]
    told = (q, keys, values, rows, *lists, inv_freq, pairing, None, 0.8, gain)
    torch.testing.assert_close(apart.launch(*told), apart.reference(*told), atol=1e-5, rtol=1e-4)
    if not gain:
        plain = apart.launch(*told[:-2], 1.0, 0.0)
        torch.testing.assert_close(plain, reference(*drawn), atol=1e-5, rtol=1e-4)


# --- positions and preparations


def test_shared_positions_put_the_question_behind_the_longest_passage(model):
    """The same logits as a question that stands where the longest passage ends, over keys that lie as cached."""
    cached = encode_many(model, PROMPT.context, [(), *[PROMPT.context[:1]] * 3])
    kv = assemble(model, PROMPT, cached, "shared")
    longest, spec = SIZES[0] + max(SIZES[1:-1]), attach(model)
    for start, block in zip(PROMPT.starts, cached, strict=False):
        for layer, table in enumerate(spec.inv_freq):
            expected = rotate(block.keys[layer], END - longest, table, spec.pairing)
            torch.testing.assert_close(kv.keys[layer][:, start : start + len(block)], expected, atol=1e-5, rtol=1e-5)


def test_dummies_are_seen_by_a_passage_and_dropped(model):
    (cached,) = Link0(token=7)(model, [PROMPT], MemoryStore(1 << 30))
    passage = torch.tensor([7] * 4 + list(PROMPT.blocks[2].tokens))
    whole = forward(model, passage, empty(model, len(passage)), torch.arange(len(passage))).kv
    assert cached[2].start == 4 and len(cached[2]) == SIZES[2] and cached[0].start == 0
    for layer in range(3):
        torch.testing.assert_close(cached[2].keys[layer], whole.keys[layer][:, 4:], atol=1e-4, rtol=1e-4)
    assert torch.isfinite(logits_of(model, Reuse(prepare=Link0(token=7)))).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"positions": "shared", "select": select.from_spec("a3")}, "recomputed tokens need 're-encoded'"),
        ({"correct": correct.from_spec("kvcomm"), "chunk": 4}, "chunk is 4: a corrected cache"),
        ({"attend": attend.from_spec("relax_kv")}, "choose one with select"),
    ],
)
def test_choices_that_do_not_go_together_are_refused(options, sentence):
    refused(sentence, Reuse, **options)


def test_a_model_without_a_first_token_needs_a_dummy_by_id(model):
    bare = model_of("llama", bos_token_id=None)
    refused("token is None", lambda: Link0()(bare, [PROMPT], MemoryStore(1 << 30)))


def test_an_adjusted_plan_is_carried_out_before_its_rows_attend(model):
    kv, seen = stitched(model, PROMPT), []
    plan = Reuse().start(model, PROMPT, kv, PROMPT.question).request.plan
    object.__setattr__(plan, "adjust", lambda layer, keys, values: seen.append((layer, keys.shape[1])))
    prefill(model, PROMPT.tokens, plan, kv)
    assert seen == [(layer, len(PROMPT)) for layer in range(3)]


@pytest.mark.parametrize("charged", [0.3, 0.6, 0.95])
def test_a_charged_budget_is_kept_by_a_correction_that_chooses_its_tokens(model, charged):
    deep = model_of("llama", num_hidden_layers=12)  # of which two are computed in full to choose
    within = budget.fit_to_budget(deep, Reuse(correct=correct.from_spec("agent_kv_shift")), [PROMPT, OTHER], charged)
    ready = within.begin(deep, [PROMPT, OTHER])
    shares = [charged_share(one.passes, 12, len(one.request.tokens)) for one in ready]
    assert sum(shares) / 2 <= charged < sum(shares) / 2 + 0.35
    refused(
        "a method with a selector is needed", lambda: budget.fit_to_budget(deep, Reuse(correct=Kvcomm()), [PROMPT], 0.5)
    )
