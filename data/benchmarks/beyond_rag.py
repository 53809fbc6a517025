"""Blocks that are no passages: answers over cached blocks beside full attention, question by question.

    python data/benchmarks/beyond_rag.py --model lab-block
    python data/benchmarks/beyond_rag.py --model smollm2 --frames 60 --tasks demonstrations game

writes answers of both modes (experiment "session") for Block-Attention's table 2 (in-context learning) and figure 5
(states of a game): exact match, and in block mode whether both answers have the same tokens (`agree`).
Questions about one hall of cards are those of successive frames, each leaf group of its state a block; `frames` are
states of a lab world in which one fact changes at a time, a passage a block; demonstrations are blocks of a passage,
its question and its answer. Tasks that are there already are kept.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import lab_frames
from script import name_of, options, writer

from workbench import models
from workbench.data.sources import chat, game
from workbench.experiments.serving import sessions
from workbench.experiments.serving.sessions import SessionPrompt
from workbench.experiments.trials.trial import batches
from workbench.methods.answered import Generation
from workbench.methods.generation import generate
from workbench.metrics.answers import exact_match
from workbench.models.loading import Loaded
from workbench.store import MemoryStore

TASKS = ["demonstrations", "game", "frames"]
SEED, SHOTS, TOKENS, BATCH = 80_000, 4, 16, 16


def generations(loaded: Loaded, steps: Sequence[SessionPrompt], mode: str) -> list[Generation]:
    """Answer all prompts greedily in one mode, blocks kept from prompt to prompt."""
    model, tokenizer, layout = loaded
    prompts, store = sessions.prompts(steps, loaded, TOKENS), MemoryStore(1 << 33)
    answered = partial(generate, model, tokenizer, max_new_tokens=TOKENS, stop=layout.stop)
    done: list[Generation] = []
    for group in batches([len(prompt) for prompt in prompts], BATCH):
        done += answered([prompts[i] for i in group], mode, store)
    return done


def rows(loaded: Loaded, steps: Sequence[SessionPrompt]) -> Iterator[dict[str, Any]]:
    """Yield a row a question and mode."""
    answers = {mode: generations(loaded, steps, mode) for mode in ("full", "block")}
    lengths = [len(prompt) for prompt in sessions.prompts(steps, loaded, TOKENS)]
    for mode, said in answers.items():
        for number, (one, full, step) in enumerate(zip(said, answers["full"], steps, strict=True)):
            em, agree = exact_match(one.text.strip(), step.answers), float(one.tokens == full.tokens)
            about = {"method": mode, "mode": mode, "question": str(number), "kind": step.kind or ""}
            yield {**about, "em": em, "agree": agree, "tokens": lengths[number]}


def main() -> None:
    """Measure and write."""
    counts = {
        "requests": 500,
        "frames": 200,
        "tables": 1,
    }
    args = options(__doc__, model="lab-block", **counts, tasks=TASKS, device="cpu")
    loaded = models.load(args.model, args.device)
    layout, name = loaded.layout, name_of(args.model)
    steps_of = {
        "demonstrations": lambda: sessions.of_demonstrations(chat.requests(args.requests, SEED, SHOTS), layout),
        "frames": lambda: sessions.of_frames(lab_frames.samples(args.frames, SEED), layout),
        "game": lambda: sessions.of_game(game.frames(args.frames, SEED, args.tables), layout),
    }
    origin = {"model": name, "seed": SEED, "setting": {"shots": SHOTS, "tables": args.tables}}
    with writer(args, f"session@{name}", loaded.model.device, resume=True, **origin) as out:
        there = {row["data"] for row in out.there("answers")}
        for task in (task for task in args.tasks if task not in there):
            out.answers({"data": task, **row} for row in rows(loaded, steps_of[task]()))


if __name__ == "__main__":
    main()
