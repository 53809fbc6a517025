"""Sessions of consecutive prompts that share most of their blocks: the cost of each prompt, and its answer quality.

Sessions are those of Block-Attention, sections 2.2 and 3.1 and appendix A; their pieces become blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import fmean, median
from typing import Any

from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.utils.watched import Progress
from workbench.data import layouts, segment
from workbench.data.layouts import Layout
from workbench.data.sample import Sample
from workbench.data.sources.chat import Request
from workbench.data.sources.game import RULES, Frame
from workbench.engine.forward import prefill_many
from workbench.experiments.trials.trial import batches
from workbench.experiments.trials.trial_measures import scores
from workbench.methods import Method
from workbench.methods.answered import Generation
from workbench.methods.generation import first_token, generate
from workbench.methods.incremental import REUSE_STATUSES, Revision, revise
from workbench.metrics.answers import Records, exact_match
from workbench.metrics.latency import measure
from workbench.models.loading import Loaded
from workbench.store import UNLIMITED, MemoryStore, Store, fingerprint
from workbench.store.views import ReadOnlyStore


@dataclass(frozen=True)
class SessionPrompt:
    """One prompt of a session in pieces, the question last, with the aliases of its answer; `label` is its event."""

    pieces: tuple[str, ...]
    answers: tuple[str, ...]
    kind: str
    label: str


def of_game(frames: Sequence[Frame], layout: Layout) -> list[SessionPrompt]:
    """Return prompts of the rules, one block per leaf group of the state, and the question.

    In a chat layout, the rules follow the system prompt, inside the user's turn.
    """
    rules = (layout.system if layout.turn else "") + RULES
    pieces = [(rules, *frame.pieces(), layout.question.format(question=frame.question)) for frame in frames]
    return [SessionPrompt(text, f.answers, f.kind, f.event) for text, f in zip(pieces, frames, strict=True)]


def of_frames(states: Sequence[Sample], layout: Layout) -> list[SessionPrompt]:
    """Return prompts of the system block, one block per passage of the state, and the question."""
    return [SessionPrompt(tuple(layout.pieces(state)), state.answers, state.kind, state.id) for state in states]


def of_chat(turns: Sequence[Sample], layout: Layout, memory: int = 8) -> list[SessionPrompt]:
    """Return prompts of the system block, the last turns and the question.

    The last `memory` turns are included with their (correct) replies, one block each. A turn's block ends with the text
    that opens the user's next turn, so that it is the same at any position.
    """
    if memory < 1:
        raise BadInput(f"memory is {memory}: at least 1 turn is needed")
    system = {"role": "system", "content": layout.system or "\n"}
    questions = [{"role": "user", "content": _user_text(turn, layout)} for turn in turns]
    replies = [{"role": "assistant", "content": _reply(turn, layout)} for turn in turns]
    steps = []
    for at, turn in enumerate(turns):
        past = slice(max(0, at - memory), at)
        remembered = chain.from_iterable(zip(questions[past], replies[past], strict=True))
        pieces = segment.split_turns([system, *remembered, questions[at]], template="{content}")
        steps.append(SessionPrompt(tuple(pieces), turn.answers, turn.kind, turn.question))
    return steps


def of_demonstrations(requests: Sequence[Request], layout: Layout) -> list[SessionPrompt]:
    """Return prompts of the system block, one block per demonstration, and the question with its passage."""
    steps = []
    for request in requests:
        shots, asked = request.demonstrations, request.asked
        shown = [{"asked": _user_text(s, layout), "answer": _reply(s, layout)} for s in shots]
        pieces = [layout.system or "\n", *segment.examples(shown, "{asked}{answer}"), _user_text(asked, layout)]
        steps.append(SessionPrompt(tuple(pieces), asked.answers, asked.kind, asked.question))
    return steps


def prompts(steps: Sequence[SessionPrompt], loaded: Loaded, max_new_tokens: int = 0) -> list[Prompt]:
    """Tokenize the prompts of all steps. Raises BadInput if one leaves no room for its answer in the context."""
    loaded = Loaded(*loaded)
    tokenized = layouts.prompts([step.pieces for step in steps], loaded.tokenizer, bos=loaded.layout.bos)
    context = loaded.spec.context
    longest = max(map(len, tokenized), default=0)
    if context and longest + max_new_tokens > context:
        raise BadInput(
            f"a prompt of {longest} tokens and an answer of {max_new_tokens} are over the model's context of {context} "
            "tokens: ask for fewer tables, turns or demonstrations"
        )
    return tokenized


def _reply(sample: Sample, layout: Layout) -> str:
    """Return the answer, followed by the opening of the user's next turn."""
    return layout.answer.format(answer=sample.answers[0]) + layout.turn


def _user_text(sample: Sample, layout: Layout) -> str:
    """Return passages and the question as one text."""
    return "".join(segment.passages(sample.ctxs, layout.passage)) + layout.question.format(question=sample.question)


def follow(
    loaded: Loaded,
    steps: Sequence[SessionPrompt],
    store: Store | None = None,
    max_new_tokens: int = 8,
    repeats: int = 3,
    full_every: int = 1,
    progress: Progress | None = None,
) -> Records:
    """Send the prompts of a session through one store, in order, and return a flat record for each.

    step, kind, label           of the prompt
    tokens, question, computed  tokens of the prompt, of its question, and computed tokens
    after_prefix                tokens that a prefix cache of the preceding prompt would have computed
    fates, moves, sizes, labels one entry per context block: reuse status, shift (`Revision`), tokens, label; `blocks_*`
                                and `tokens_*` are sums by reuse status
    answer, right               with the store
    ttft                        seconds to the first token, encoding included: median of `repeats` (one for the first)
    ttft_anew, answer_anew      with every block encoded within the request
    equal, logit_gap            whether both answers have the same tokens; largest absolute difference of the logits of
                                all question tokens
    ttft_full, answer_full, right_full      with full attention, in every `full_every`-th step, else None
    """
    if repeats < 1 or full_every < 1:
        raise BadInput(f"repeats is {repeats} and full_every is {full_every}: at least 1 is needed")
    loaded = Loaded(*loaded)
    tokenized = prompts(steps, loaded, max_new_tokens)
    fingerprint(loaded.model)  # computed before timing starts
    store = MemoryStore() if store is None else store
    records: Records = []
    for at, (step, prompt) in enumerate(zip(steps, tokenized, strict=True)):
        seconds = _ttft(loaded.model, prompt, repeats if at else 1, ReadOnlyStore(store))
        revision = revise(loaded.model, prompt, store, tokenized[at - 1] if at else None)
        record = {"step": at, "kind": step.kind, "label": step.label, **_counted(revision), "ttft": seconds}
        record |= _answered(loaded, step, revision, store, max_new_tokens)
        record |= _in_full(loaded, step, prompt, max_new_tokens, skip=at % full_every > 0)
        records.append(record)
        if progress:
            progress(at + 1, len(steps))
    return records


def answer_session(
    loaded: Loaded,
    steps: Sequence[SessionPrompt],
    modes: Sequence[str] = ("full", "block"),
    max_new_tokens: int = 24,
    batch: int = 16,
    progress: Progress | None = None,
) -> Records:
    """Answer all steps in each mode, keeping blocks between prompts; one row of `results.Answer` per step and mode.

    `agree`: whether the answer has the same tokens as that of the first mode.
    """
    tokenized = prompts(steps, loaded, max_new_tokens)
    rows: Records = []
    first: list[Generation] = []
    for mode in modes:
        store, generated = MemoryStore(UNLIMITED), list[Generation]()
        for group in batches([len(prompt) for prompt in tokenized], batch):
            generated += _generated(loaded, [tokenized[i] for i in group], mode, store, max_new_tokens)
            if progress:
                progress(len(rows) + len(generated), len(tokenized) * len(modes))
        first = first or generated
        for number, (step, prompt, one, same) in enumerate(zip(steps, tokenized, generated, first, strict=True)):
            about = {"method": mode, "mode": mode, "question": str(number), "kind": step.kind, "tokens": len(prompt)}
            rows.append(about | scores(one.text.strip(), step.answers) | {"agree": float(one.tokens == same.tokens)})
    return rows


def _ttft(model: PreTrainedModel, prompt: Prompt, repeats: int, store: Store) -> float:
    """Measure the median seconds from token ids to the first token; blocks missing in `store` are encoded."""
    job = partial(first_token, model, prompt, "block", store)
    return measure([job] * repeats, model.device, warm_up=0).p50


def _counted(revision: Revision) -> dict[str, Any]:
    prompt = revision.prompt
    record: dict[str, Any] = {"tokens": len(prompt), "question": len(prompt.question), "computed": revision.computed}
    record |= {"after_prefix": len(prompt) - revision.prefix, "fates": list(revision.statuses)}
    record |= {"moves": list(revision.shifts), "sizes": [len(block) for block in prompt.context]}
    record["labels"] = [block.label for block in prompt.context]
    for status in REUSE_STATUSES:
        record |= {f"blocks_{status}": revision.blocks(status), f"tokens_{status}": revision.tokens(status)}
    return record


def _answered(loaded: Loaded, step: SessionPrompt, revision: Revision, store: Store, most: int) -> dict[str, Any]:
    """Answer with the store and with every block encoded within the request, and compare the two."""
    model, prompt = loaded.model, revision.prompt
    empty = MemoryStore(UNLIMITED)
    seconds = _ttft(model, prompt, 1, empty)  # fills `empty` with all blocks
    requests = [revision.request, revise(model, prompt, empty).request]
    cached, fresh = (output.logits for request in requests for output in prefill_many(model, [request]))
    assert cached is not None and fresh is not None
    (answer,) = _generated(loaded, [prompt], "block", store, most)
    (other,) = _generated(loaded, [prompt], "block", empty, most)
    text = answer.text.strip()
    record = {"answer": text, "right": bool(exact_match(text, step.answers)), "ttft_anew": seconds}
    record |= {"answer_anew": other.text.strip(), "equal": answer.tokens == other.tokens}
    return record | {"logit_gap": float((cached.float() - fresh.float()).abs().max())}


def _in_full(loaded: Loaded, step: SessionPrompt, prompt: Prompt, most: int, skip: bool) -> dict[str, Any]:
    if skip:
        return {"ttft_full": None, "answer_full": None, "right_full": None}
    (answer,) = _generated(loaded, [prompt], "full", None, most)
    text = answer.text.strip()
    return {"ttft_full": answer.ttft, "answer_full": text, "right_full": bool(exact_match(text, step.answers))}


def _generated(
    loaded: Loaded, prompts: Sequence[Prompt], mode: Method | str, store: Store | None, most: int
) -> list[Generation]:
    """Generate greedy answers of at most `most` tokens."""
    model, tokenizer, layout = loaded
    return generate(model, tokenizer, prompts, mode, store, max_new_tokens=most, stop=layout.stop)


def later_prompts(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise a session whose prompts have the same blocks, from the second prompt on.

    blocks                      number of blocks in a prompt
    repeated                    share of them that is not encoded again
    computed, tokens, after_prefix      of `follow`, mean per prompt
    ttft_ms, ttft_full_ms       median milliseconds to the first token; full attention's includes the first prompt
    """
    later, blocks = records[1:], len(records[0]["fates"])
    full = [record["ttft_full"] for record in records if record["ttft_full"] is not None]
    summary = {"blocks": blocks, "repeated": 1 - fmean(record["blocks_encoded"] for record in later) / blocks}
    summary |= {field: fmean(record[field] for record in later) for field in ("computed", "tokens", "after_prefix")}
    return summary | {"ttft_ms": median(r["ttft"] for r in later) * 1e3, "ttft_full_ms": median(full) * 1e3}
