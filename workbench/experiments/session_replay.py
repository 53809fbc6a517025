"""What a session of prompts that share blocks takes, prompt by prompt, and how well it is answered."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.engine.forward import prefill_many
from workbench.experiments.sessions import SessionPrompt, prompts
from workbench.experiments.trial import Progress, batches
from workbench.methods import Method
from workbench.methods.generation import first_token, generate
from workbench.methods.incremental import REUSE_STATUSES, Revision, revise
from workbench.metrics.answers import exact_match, score
from workbench.metrics.latency import measure
from workbench.models.loading import Loaded
from workbench.models.spec import prepare_model
from workbench.store import MemoryStore, Store, fingerprint
from workbench.store.views import ReadOnlyStore


def follow(
    loaded: Loaded,
    steps: Sequence[SessionPrompt],
    store: Store | None = None,
    max_new_tokens: int = 8,
    repeats: int = 3,
    full_every: int = 1,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Send the prompts of a session through one store, in order; a flat record for each:

    step, kind, label           of the prompt
    tokens, question, computed  of the prompt, of its question, and what went through the model
    after_prefix                tokens that a prefix cache of the prompt before would have computed
    fates, moves, sizes, labels one entry a context block (`Revision`); `blocks_*` and `tokens_*`: sums by fate
    answer, right               with the store
    ttft                        seconds to the first token, encoding included: median of `repeats` (one for the first)
    ttft_anew, answer_anew      with every block encoded anew
    equal, logit_gap            whether both answers have the same tokens; largest absolute difference of the logits of
                                all question tokens
    ttft_full, answer_full, right_full      with full attention, in every `full_every`-th step, else None
    """
    if repeats < 1 or full_every < 1:
        raise BadInput(f"repeats is {repeats} and full_every is {full_every}: at least 1 is needed")
    made = prompts(steps, loaded, max_new_tokens)
    prepare_model(loaded[0])
    fingerprint(loaded[0])  # known before the clock runs
    store = MemoryStore() if store is None else store
    found: list[dict[str, Any]] = []
    for at, (step, prompt) in enumerate(zip(steps, made, strict=True)):
        seconds = _ttft(loaded[0], prompt, repeats if at else 1, store)
        revision = revise(loaded[0], prompt, store, made[at - 1] if at else None)
        record = {"step": at, "kind": step.kind, "label": step.label, **_counted(revision), "ttft": seconds}
        record |= _answered(loaded, step, revision, store, max_new_tokens)
        record |= _in_full(loaded, step, prompt, max_new_tokens, skip=at % full_every > 0)
        found.append(record)
        if progress:
            progress(at + 1, len(steps))
    return found


def scores(
    loaded: Loaded,
    steps: Sequence[SessionPrompt],
    modes: Sequence[str] = ("full", "block"),
    max_new_tokens: int = 24,
    batch: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Answer all steps in every mode; rows {mode, kind, n, em, em_low, em_high, f1, …}, the kind "all" first."""
    made = prompts(steps, loaded, max_new_tokens)
    kinds = list(dict.fromkeys(step.kind for step in steps))
    rows: list[dict[str, Any]] = []
    for mode in modes:
        store, said = MemoryStore(), []
        for group in batches([len(prompt) for prompt in made], batch):
            said += _generated(loaded, [made[i] for i in group], mode, store, max_new_tokens)
            if progress:
                progress(len(said) + len(made) * modes.index(mode), len(made) * len(modes))
        for kind in ("all", *kinds):
            of = [i for i, step in enumerate(steps) if kind in ("all", step.kind)]
            found = score([said[i][0] for i in of], [steps[i].answers for i in of], seed)
            rows.append({"mode": mode, "kind": kind, **asdict(found)})
    return rows


def _ttft(model: PreTrainedModel, prompt: Prompt, repeats: int, store: Store) -> float:
    """Median seconds from token ids to the first token; what `store` lacks is encoded within each of them."""
    job = partial(first_token, model, prompt, "block", ReadOnlyStore(store))
    return measure([job] * repeats, model.device, warm_up=0).p50


def _counted(revision: Revision) -> dict[str, Any]:
    prompt = revision.prompt
    record: dict[str, Any] = {
        "tokens": len(prompt),
        "question": len(prompt.question),
        "computed": revision.computed,
        "after_prefix": len(prompt) - revision.prefix,
        "fates": list(revision.statuses),
        "moves": list(revision.shifts),
        "sizes": [len(block) for block in prompt.context],
        "labels": [block.label for block in prompt.context],
    }
    for status in REUSE_STATUSES:
        record |= {f"blocks_{status}": revision.blocks(status), f"tokens_{status}": revision.tokens(status)}
    return record


def _answered(loaded: Loaded, step: SessionPrompt, revision: Revision, store: Store, most: int) -> dict[str, Any]:
    """The answer with the store, and how it compares with encoding everything anew."""
    model, prompt = loaded[0], revision.prompt
    empty = MemoryStore(1 << 62)
    seconds = measure([partial(first_token, model, prompt, "block", empty)], model.device, warm_up=0).p50
    anew = revise(model, prompt, empty)
    one, other = (prefill_many(model, [each.request])[0].logits for each in (revision, anew))
    assert one is not None and other is not None
    (mine,), (theirs,) = (_generated(loaded, [prompt], "block", each, most) for each in (store, empty))
    return {
        "answer": mine[0],
        "right": bool(exact_match(mine[0], step.answers)),
        "ttft_anew": seconds,
        "answer_anew": theirs[0],
        "equal": mine[1] == theirs[1],
        "logit_gap": float((one.float() - other.float()).abs().max()),
    }


def _in_full(loaded: Loaded, step: SessionPrompt, prompt: Prompt, most: int, skip: bool) -> dict[str, Any]:
    if skip:
        return {"ttft_full": None, "answer_full": None, "right_full": None}
    model, tokenizer, layout = loaded
    (answer,) = generate(model, tokenizer, [prompt], "full", max_new_tokens=most, stop=layout.stop)
    text = answer.text.strip()
    return {"ttft_full": answer.ttft, "answer_full": text, "right_full": bool(exact_match(text, step.answers))}


def _generated(
    loaded: Loaded, asked: Sequence[Prompt], mode: Method | str, store: Store | None, most: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Text and tokens of greedy answers."""
    model, tokenizer, layout = loaded
    found = generate(model, tokenizer, asked, mode, store, max_new_tokens=most, stop=layout.stop)
    return [(answer.text.strip(), answer.tokens) for answer in found]


def total(records: Sequence[Mapping[str, Any]], field: str) -> Any:
    """Return the sum of one field over records."""
    return sum(record[field] for record in records)


def mean_em(rows: Sequence[Mapping[str, Any]], mode: str) -> float:
    """Return the exact match of one mode over all questions of rows {mode, kind, n, em} of single kinds."""
    of_mode = [row for row in rows if row["mode"] == mode]
    return sum(row["em"] * row["n"] for row in of_mode) / total(of_mode, "n")


def by_number(rows: Sequence[Mapping[str, Any]], shots: int) -> list[dict[str, Any]]:
    """Return the `scores` of single kinds, named for requests with `shots` demonstrations."""
    return [{**row, "kind": f"{row['kind']}, {shots}", "shots": shots} for row in rows if row["kind"] != "all"]


def later_prompts(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise a session whose prompts have the same blocks, after the first of them.

    blocks                      of a prompt
    repeated                    share of them that is not encoded again
    computed, tokens, after_prefix      of `follow`, mean of a prompt
    ttft_ms, ttft_full_ms       median milliseconds to the first token; those of full attention count the first prompt
    """
    later, blocks = records[1:], len(records[0]["fates"])
    full = [record["ttft_full"] for record in records if record["ttft_full"] is not None]
    return {
        "blocks": blocks,
        "repeated": 1 - total(later, "blocks_encoded") / (blocks * len(later)),
        **{field: total(later, field) / len(later) for field in ("computed", "tokens", "after_prefix")},
        "ttft_ms": median(record["ttft"] for record in later) * 1e3,
        "ttft_full_ms": median(full) * 1e3,
    }


def without_blocks(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of `follow` without the entries that have one value a block."""
    return [{k: v for k, v in record.items() if k not in ("fates", "moves", "sizes", "labels")} for record in records]
