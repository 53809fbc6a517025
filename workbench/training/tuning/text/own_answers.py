"""The model's own greedy answers, under full attention: drawn once before training and kept beside the run."""

import json
from pathlib import Path
from typing import Any

from workbench.core.utils.files import write_text
from workbench.methods.generation import generate
from workbench.training.common import phase
from workbench.training.tuning.run import TuneRun
from workbench.training.tuning.text.examples import Files, Source

CACHE = "own_answers.json"
BATCH = 64  # questions answered together


def draw(run: TuneRun, source: Source) -> None:
    """Let the base model answer what the source leaves to it, or read what it answered before, from `run.out`."""
    if not isinstance(source, Files) or source.own is None or not source.unanswered():
        return
    path, own = run.out / CACHE, source.own
    settings = {"base": run.base["fingerprint"], "data": source.identity, "which": own.which, "tokens": own.tokens}
    if run.accelerator.is_main_process and _read(path, settings) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with phase(run.say, "own answers") as facts:
            facts.append(f"{len(source.unanswered()):,} of {len(source.samples):,} samples")
            answers = _answers(run, source, own.tokens)
        write_text(path, json.dumps(settings | {"answers": answers}) + "\n")
    run.accelerator.wait_for_everyone()
    said = _read(path, settings) or {}
    source.answered([tuple(said.get(str(i), ())) for i in range(len(source.samples))])


def _read(path: Path, settings: dict[str, Any]) -> dict[str, list[int]] | None:
    saved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return saved["answers"] if saved and all(saved.get(name) == settings[name] for name in settings) else None


def _answers(run: TuneRun, source: Files, tokens: int) -> dict[str, list[int]]:
    """Return {number of a sample: token ids}."""
    assert run.teacher is not None
    model: Any = run.teacher.model
    waiting, answers, training = source.unanswered(), dict[str, list[int]](), model.training
    prompts = source.layout.prompts([source.alone(i) for i in waiting], source.tokenizer)
    model.eval()
    with run.teacher.off():
        for begin in range(0, len(waiting), BATCH):
            part = slice(begin, begin + BATCH)
            said = generate(model, source.tokenizer, prompts[part], max_new_tokens=tokens, stop=source.layout.stop)
            answers |= {str(i): list(each.tokens) for i, each in zip(waiting[part], said, strict=True)}
    model.train(training)
    run.teacher.attend()
    return answers
