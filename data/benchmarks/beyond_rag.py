"""Blocks that are no passages: answers over cached blocks beside full attention, question by question.

    python data/benchmarks/beyond_rag.py --model lab-block
    python data/benchmarks/beyond_rag.py --model smollm2 --frames 60 --tasks demonstrations game

leaves beyond-MODEL.json (_ for - in its name) for Block-Attention's table 2 (in-context learning) and figure 5
(states of a game): of both modes a digit a question ("1": right), whether both answers have the same tokens, and of
what kind a question is. Questions about one hall of cards are those of successive frames, each leaf group of its state
a block; `frames` are states of a lab world in which one fact changes at a time, a passage a block; demonstrations are
blocks of a passage, its question and its answer. Tasks that the file holds for the same settings are kept.
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lab_frames

from workbench import models
from workbench.data import demonstrations, game
from workbench.experiments import beyond_rag, results, sessions
from workbench.experiments.record import device_name, versions
from workbench.experiments.sessions import SessionPrompt
from workbench.experiments.trial import batches
from workbench.methods.answered import Generation
from workbench.methods.generation import generate
from workbench.metrics.answers import exact_match
from workbench.models.loading import Loaded
from workbench.store import MemoryStore
from workbench.training.tuning.output import TUNING

HERE = Path(__file__).parent
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


def compared(loaded: Loaded, steps: Sequence[SessionPrompt]) -> dict[str, Any]:
    """Return {full, block: right answers, equal: the same tokens}, a digit a question, and the tokens of a prompt."""
    answers = {mode: generations(loaded, steps, mode) for mode in ("full", "block")}
    right = {
        mode: "".join(
            str(int(exact_match(one.text.strip(), step.answers))) for one, step in zip(of, steps, strict=True)
        )
        for mode, of in answers.items()
    }
    pairs = zip(*answers.values(), strict=True)
    lengths = [len(prompt) for prompt in sessions.prompts(steps, loaded, TOKENS)]
    equal = "".join(str(int(one.tokens == other.tokens)) for one, other in pairs)
    return {**right, "equal": equal, "tokens": sum(lengths) / len(lengths)}


def kinds_of(steps: Sequence[SessionPrompt]) -> dict[str, str]:
    """Return a digit a question for every kind that a task has: "1" where the question is of that kind."""
    kinds = dict.fromkeys(step.kind for step in steps if step.kind)
    return {kind: "".join(str(int(step.kind == kind)) for step in steps) for kind in kinds}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-block")
    parser.add_argument("--requests", type=int, default=500, help="questions behind demonstrations")
    parser.add_argument("--frames", type=int, default=200, help="frames of the game and of the world, a question each")
    parser.add_argument("--tables", type=int, default=1, help="tables of the game, 56 blocks each")
    parser.add_argument("--tasks", nargs="+", choices=list(beyond_rag.TASKS), default=list(beyond_rag.TASKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    loaded = models.load(args.model, args.device)
    path = Path(args.model)
    name = path.parent.name if path.name == "model" else path.name
    about = {"model": name, "seed": SEED, "shots": SHOTS, "tables": args.tables}
    about |= {"device": device_name(loaded.model.device), "versions": versions()}
    if (folder := models.folder(args.model)) and (folder / TUNING).is_file():
        tuned = json.loads((folder / TUNING).read_text())
        about["tuned"] = {"base": tuned["base"]["name"], "data": tuned["data"]["identity"], "steps": tuned["steps"]}
        about["tuned"] |= {"mode": tuned["recipe"]["mode"], "seed": tuned["recipe"]["seed"]}
    steps_of = {
        "demonstrations": lambda: sessions.of_demonstrations(
            demonstrations.requests(args.requests, SEED, SHOTS), loaded.layout
        ),
        "frames": lambda: sessions.of_frames(lab_frames.samples(args.frames, SEED), loaded.layout),
        "game": lambda: sessions.of_game(game.frames(args.frames, SEED, args.tables), loaded.layout),
    }
    file = args.out / f"beyond-{name.replace('-', '_')}.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    same = all(before.get(key, value) == value for key, value in about.items() if key != "versions")
    measured: dict[str, Any] = before.get("tasks", {}) if same else {}
    for task in args.tasks:
        if task in measured:
            continue
        steps = steps_of[task]()
        measured[task] = compared(loaded, steps) | {"kinds": kinds_of(steps)}
        results.write_json(file, {**about, "tasks": measured})
        counts = {mode: measured[task][mode].count("1") for mode in ("full", "block", "equal")}
        print(f"{task}: {counts} of {len(steps)}", flush=True)


if __name__ == "__main__":
    main()
