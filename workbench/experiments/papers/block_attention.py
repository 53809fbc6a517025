"""Block-Attention in both versions: "block1" (Low-Latency RAG) and "block2" (Efficient Prefilling)."""

from functools import partial
from typing import Any

from transformers import LlamaConfig

from workbench import results as tables
from workbench.experiments.papers import block_attention_real as real
from workbench.experiments.papers import structure
from workbench.experiments.papers.evidence import block_gap, card, counted, faster, gap, scored_gap, times
from workbench.experiments.papers.verdicts import Findings, Item, item_of
from workbench.metrics import cost
from workbench.metrics.published_numbers import (
    BLOCK_V1_TABLE_1,
    BLOCK_V1_TEXT,
    BLOCK_V2_GENERAL,
    BLOCK_V2_TEXT,
    LLAMA_3_8B,
    QUESTION,
    TABLE_2,
    TABLE_3,
)

VANILLA = "fine-tuned in full mode alone"
TUNED, UNTUNED, FULL = "block fine-tuned", "block, not fine-tuned", "full attention"
ACCURACY, LLAMA = TABLE_2["accuracy"], BLOCK_V1_TABLE_1["accuracy"]["Llama-3-8B"]
MS, FLOPS = TABLE_3["ttft_ms"], TABLE_3["flops"]
GAME = BLOCK_V2_TEXT["game_ttft_ms"]


def widest(accuracy: dict[str, Any]) -> float:
    """Return the largest loss of fine-tuned block attention against full attention that a table prints, a share."""
    return max(full - tuned for full, tuned in zip(accuracy[FULL], accuracy[TUNED], strict=True)) / 100


def quality(loss: float, accuracy: dict[str, Any]) -> Findings:
    """Compare fine-tuned and untuned block attention with full attention, on lab questions and on real ones.

    loss      the largest that is printed, of fine-tuned block attention
    accuracy  the printed scores, of which the share that fine-tuning wins back is taken
    """
    full, plain, tuned = (sum(accuracy[name][:4]) for name in (FULL, UNTUNED, TUNED))
    return [
        block_gap("not fine-tuned against full attention", UNTUNED, FULL, "below", 0.0),
        block_gap("fine-tuned against full attention", TUNED, FULL, "above", -loss),
        *real.quality((tuned - plain) / (full - plain)),
    ]


def baselines() -> Findings:
    """Compare what version 2 adds: positions, both modes in one model, PromptCache, Superposition."""
    without = "fine-tuned without positions"
    return [
        *quality(widest(ACCURACY), ACCURACY),
        block_gap("without position re-encoding against with it", without, TUNED, "below", 0.0),
        *real.positions(),
        block_gap("full mode of the fine-tuned model against full", f"{TUNED}, full mode", FULL, "above", -0.01),
        *real.both_modes(),
        block_gap("PromptCache against fine-tuned", "PromptCache", TUNED, "below", 0.0),
        block_gap("Superposition against fine-tuned", "Superposition", TUNED, "below", 0.0),
        *vanilla(),
    ]


def vanilla() -> Findings:
    """Compare fine-tuning in full mode alone, read as blocks, with block fine-tuning."""
    return [block_gap("fine-tuned in full mode alone against block fine-tuned", VANILLA, TUNED, "below", 0.0)]


def in_context() -> Findings:
    """Compare blocks with full attention behind demonstrations, for models whose full attention answers enough."""
    named, shots = BLOCK_V2_GENERAL["accuracy"], BLOCK_V2_GENERAL["shots"]  # in context: tasks with examples
    bar = max(full - ours for full, ours, n in zip(named[FULL], named[TUNED], shots, strict=True) if n) / 100
    return _both_modes("demonstrations", "behind four demonstrations", -bar)


def game() -> Findings:
    """Compare what of a state is encoded anew, and answers about states where full attention answers enough.

    States are those of the card game, and of a lab world in which one fact changes at a time.
    """
    found = structure.game(GAME["block"] / GAME["full"])
    for task, what in (("game", "about states of a game"), ("frames", "about states of a lab world")):
        found += _both_modes(task, what, -0.01)
    return found


LEAST = 0.1  # of the questions that full attention has to answer, for a comparison of answers to say anything


def _telling(task: str) -> dict[str, list[list[float]]]:
    """Return {model: [over blocks, under full attention]}, exact match a question, of models that answer enough."""
    rows = tables.read().answers("session").query("data == @task")
    by_model = {
        model: [
            list(own[own["mode"] == mode].sort_values("question", key=lambda q: q.astype(int)).em)
            for mode in ("block", "full")
        ]
        for model, own in rows.groupby("model", sort=False)
    }
    return {model: pair for model, pair in by_model.items() if sum(pair[1]) >= LEAST * len(pair[1])}


def _both_modes(task: str, what: str, bar: float) -> Findings:
    """Compare answers over cached blocks with those of full attention."""
    return [
        gap(f"{model} {what}, blocks against full attention", *pair, "above", bar, "lab" if "lab" in model else "real")
        for model, pair in _telling(task).items()
    ]


NO_GAME = "equal accuracy on states of a card game: no model at hand answers enough of them under full attention"


def tuning(loss: float) -> Findings:
    """Compare both modes before and after block fine-tuning."""
    first = card("lab-block", "tuning")["scores"][0]
    return [
        scored_gap("block against full mode at step 0", first["block"], first["full"], "below", 0.0),
        block_gap("block against full mode at the end", TUNED, f"{TUNED}, full mode", "above", -loss),
        *real.tuning(),
    ]


def first_token() -> Findings:
    """Count operations at the longest printed length, and read the measured times beside 32K."""
    length, parameters = TABLE_3["length"][-1], cost.shape(LlamaConfig(**LLAMA_3_8B)).convention
    full, block = (cost.convention(parameters, tokens) for tokens in (length, QUESTION))
    printed = 1 - FLOPS["block"][-1] / FLOPS["full"][-1]
    timed = times("question", context=length)
    bar = MS["full"][-1] / MS["block"][-1]
    return [
        counted(f"operations saved at {length:,} tokens", round(1 - block / full, 3), 1, round(printed, 3), form=".1%"),
        *faster(f"{QUESTION} tokens over {length:,} cached against full prefill", timed, "transformers, full", bar),
    ]


REDUCED = f"32K: {MS['full'][-1]:,} → {MS['block'][-1]} ms (−98.7%), operations −99.8%"


def methods(paper: str) -> list[Item]:
    """Return the figures of both versions that show how the method works."""
    item = partial(item_of, paper)
    return [
        item("fig-1", "Passages see themselves alone; only the last block sees all.", find=structure.block_masks),
        item("fig-2", "Cached blocks are moved to their place; only the last is computed.", find=structure.pipeline),
        item("fig-3", "The prompt: instruction, a block a passage, question.", find=structure.prompt_format),
    ]


def items() -> list[Item]:
    """Return the figures and tables of both versions."""
    shared = [item for paper in ("block1", "block2") for item in methods(paper)]
    averages, general = BLOCK_V2_TEXT["average"], BLOCK_V2_GENERAL
    saved = "With every passage cached, time and operations to the first token hardly grow with the length."
    apart = (
        f"full attention {LLAMA[FULL][-1]}, block not tuned {LLAMA[UNTUNED][-1]}, tuned {LLAMA[TUNED][-1]} (average)"
    )
    loss = max(LLAMA[FULL][i] - LLAMA[TUNED][i] for i in range(4)) / 100
    return [
        *shared,
        Item(
            "block1-fig-4",
            "Block mode starts far behind and meets full attention within a few hundred steps.",
            f"about {BLOCK_V1_TEXT['steps']} steps",
            partial(tuning, loss),
        ),
        Item(
            "block1-table-1",
            "Block attention without fine-tuning loses much; fine-tuned it is as good as full attention.",
            apart,
            partial(quality, loss, BLOCK_V1_TABLE_1["accuracy"]["Llama-3-8B"]),
        ),
        Item("block1-table-2", saved, REDUCED, first_token),
        Item(
            "block2-fig-4",
            "Block and full mode meet while the model is tuned, and it keeps both.",
            f"about {BLOCK_V2_TEXT['steps']} steps",
            partial(tuning, widest(ACCURACY)),
        ),
        Item(
            "block2-fig-5",
            "States of a game repeat almost wholly from one to the next, so little is encoded anew.",
            f"> {BLOCK_V2_TEXT['repeated_between_frames']:.1%} repeats; {GAME['full']:,} → {GAME['block']} ms",
            game,
            lambda: "" if _telling("game") else NO_GAME,
        ),
        Item(
            "block2-table-1",
            "Fine-tuned block attention is as good as full attention; untuned, without positions or by PromptCache or "
            "Superposition it is worse.",
            f"average {averages[UNTUNED]} untuned, {averages[TUNED]} tuned; at most {widest(ACCURACY):.1%} below full",
            baselines,
        ),
        Item(
            "block2-table-2",
            "The block fine-tuned model keeps its general and in-context abilities.",
            "; ".join(f"{name} {general['accuracy'][TUNED][i]}" for i, name in enumerate(general["data"])),
            find=in_context,
            missing="these benchmarks ask for an instruction-tuned model of billions of parameters and its SFT data; "
            "in-context learning is measured on lab questions",
        ),
        Item("block2-table-3", saved, REDUCED, first_token),
    ]
