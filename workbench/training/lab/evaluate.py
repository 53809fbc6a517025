"""The quality of a lab model on held-out worlds, and what reuse does to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workbench import data, models
from workbench.data.lab_corpus.style import named
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.engine.forward import all_rows, prefill, prefill_many
from workbench.experiments.trials.record import Record, device_name, versions
from workbench.experiments.trials.trial import Trial
from workbench.models.loading import Loaded
from workbench.training.lab.config import HELD_OUT

INDEPENDENT = "independent blocks, 10 passages"
LENGTHS = (1, 5, 10, 20, 40)  # passages of a context


def evaluate(
    model: str,
    samples: int = 1000,
    seed: int = HELD_OUT,
    device: str = "cpu",
    report: Callable[[str], None] = lambda line: None,
    corpus: str = "lab",
) -> dict[str, Any]:
    """Score a model on held-out worlds of a lab corpus; every score has n and a 95% interval.

    It is scored under full attention over contexts of 1 to 40 passages, and over 10 passages with every block
    cached independently (positions re-encoded) and with naive positions. `recompute_all` is of the function of that
    name.
    """
    named(corpus)  # refuses what is no lab corpus
    loaded = models.load(model, device, "float32")
    base = Trial(model, data=corpus, samples=samples, seed=seed, passages=10, device=device, timed=1, batch=64)
    where = device_name(loaded.model.device)
    by_name: dict[str, Any] = {"model": model, "data": corpus, "samples": samples, "seed": seed, "device": where}
    trials = {f"full, {passages} passages": replace(base, passages=passages) for passages in LENGTHS}
    trials[INDEPENDENT] = replace(base, mode="block")
    trials["naive positions, 10 passages"] = replace(base, mode="block", positions="naive")
    for name, trial in trials.items():
        record = trial.run(loaded=loaded)
        by_name[name] = scores(record)
        report(f"{name}: exact match {record.em:.3f} over {record.n} questions")
    return by_name | {"recompute_all": recompute_all(loaded, seed, corpus=corpus), "versions": versions()}


def scores(record: Record) -> dict[str, Any]:
    """Return the rows of a record by kind of question: n, exact match and F1 with their intervals."""
    return {row.pop("kind"): row for row in record.rows() if row.pop("mode")}


def recompute_all(loaded: Loaded, seed: int, samples: int = 20, corpus: str = "lab") -> dict[str, float]:
    """Compare logits of full attention with those over an assembled cache of which every token is recomputed.

    They must be the same: in `samples` prompts, how many are bit for bit, and the largest difference.
    """
    model, tokenizer, layout = loaded
    worst, same = 0.0, 0
    for sample in data.load(corpus, samples, seed, 10):
        prompt = layout.prompt(sample, tokenizer)
        request = all_rows(model, prompt.tokens)
        (full,) = (output.logits for output in prefill_many(model, [request]))
        kv = assemble(model, prompt, encode_many(model, prompt.context))
        for tensor in kv.tensors():
            tensor.fill_(float("nan"))  # no value of the cache may be read
        recomputed = prefill(model, prompt.tokens, request.plan, kv).logits
        assert full is not None and recomputed is not None
        worst = max(worst, float((full - recomputed).abs().max()))
        same += bool((full == recomputed).all())
    return {"samples": samples, "bit_identical": same, "max_difference": worst}
