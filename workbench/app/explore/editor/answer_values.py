"""Results of a prompt under a method and under full attention, as JSON for the browser."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from workbench.app.explore.editor import heat
from workbench.app.explore.editor.choices import EditorRequest
from workbench.app.explore.editor.heat import RecordingSparse
from workbench.app.explore.editor.text import PromptReader
from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Pass
from workbench.core.tiling.tiles import Tiles
from workbench.engine.assembly import assemble
from workbench.methods import ReadyRequest
from workbench.methods.modes.reuse import Reuse
from workbench.methods.request_report import WatchedStore, receipts_of
from workbench.metrics import cost
from workbench.metrics.answers import exact_match
from workbench.metrics.kv.kv_deviation import squared
from workbench.models.loading import Loaded

SHOWN = 6  # tokens of a distribution


@dataclass
class PromptAnswer:
    """An answer that is being decoded; `text` grows."""

    logits: Tensor  #: [V] fp32, after the prompt
    kv: KV
    seconds: float  #: to the first token
    attention: Tensor  #: [L, T] from the question
    queries: dict[int, Tensor]  #: layer → [Hq, R, D], of the rows below
    rows: Tensor  #: [R] positions
    text: str = ""
    done: bool = False
    compared: dict[str, Any] | None = None  #: first token compared with full attention's, once known


@dataclass
class MethodRun:
    """How a method processed a prompt, and its answer."""

    wanted: EditorRequest
    answer: PromptAnswer
    bill: dict[str, Any]
    method: Reuse
    cached: Sequence[KV]
    scores: Tensor | None
    chosen: Tensor
    tiles: dict[int, Tiles]

    def light(self, empty: KV) -> "MethodRun":
        """Return a copy without tensors."""
        answer = replace(self.answer, kv=empty, queries={})
        return replace(self, answer=answer, cached=(), scores=None, tiles={})


@dataclass
class Answers:
    """The answers to one prompt: by the chosen method, the compared ones, and full attention once computed."""

    prompt: Prompt
    expected: Sequence[str]
    runs: list[MethodRun | None]
    full: PromptAnswer | None = None
    timed_apart: bool = False  #: whether some were timed in an earlier request

    @property
    def method(self) -> MethodRun:
        """The chosen method."""
        assert self.runs[0] is not None
        return self.runs[0]


def bill(
    prompt: Prompt,
    ready: ReadyRequest,
    watched: WatchedStore,
    method: Reuse,
    seconds: float,
    shape: cost.ModelShape,
    chosen: RecordingSparse | None = None,
) -> dict[str, Any]:
    """Return token counts by treatment, operations and seconds to the first token, and those of full attention.

    A token that is encoded now and recomputed counts as recomputed in `rows`, and twice in `computed`. Operations cover
    the tiles that a sparse method selected, not the selection, whose `seconds` are separate on a CPU.
    """
    (receipt,) = receipts_of([prompt], [ready], watched.lookups, method.positions)
    rows = dict.fromkeys(("question", "recomputed", "encoded", "shifted", "reused"), 0)
    rows["question"] = receipt.question
    blocks = []
    for block in receipt.blocks:
        status = "encoded" if block.status == "encoded" else "shifted" if block.shift else "reused"
        rows["recomputed"] += block.recomputed
        rows[status] += block.tokens - block.recomputed
        blocks.append({"status": status, "shift": block.shift, "recomputed": block.recomputed})
    encoded = [block.tokens for block in receipt.blocks if block.status == "encoded"]
    spent = cost.of_passes(shape, ready.passes, ready.reused).flops
    kept = chosen.kept_share(len(shape.windows)) if chosen else 1.0
    spent -= (1 - kept) * cost.of_passes(shape, ready.passes[-1:], 0).attention
    full = cost.of_passes(shape, [Pass(range(len(prompt)), len(prompt))], 0).flops
    encoding = cost.encoding(shape, encoded).flops if encoded else 0.0
    return {
        "rows": rows,
        "blocks": blocks,
        "length": len(prompt),
        "computed": ready.computed + sum(encoded),
        "flops": {"method": spent + encoding, "encoding": encoding, "full": full},
        "seconds": {
            "method": seconds,
            "encoding": float(watched.seconds.get("encode", 0.0)),
            "choosing": chosen.seconds if chosen else 0.0,
        },
        "kept": kept,
    }


def bills(answers: Answers) -> dict[str, Any]:
    """Return the costs of the chosen method and of those compared with it."""
    return answers.method.bill | {"beside": [run and run.bill for run in answers.runs[1:]]}


def answer_values(answers: Answers, reader: PromptReader) -> dict[str, Any]:
    """Return all answers so far, their first-token distributions and distances from full attention."""
    full, beside = answers.full, [run and _answer(answers, run, reader) for run in answers.runs[1:]]
    said = _answer(answers, answers.method, reader) | {"beside": beside, "expected": list(answers.expected)}
    said["full"] = full and _said(full, answers.expected)
    return said | ({"seconds_full": full.seconds} if full else {})


def costs_and_answers(answers: Answers, reader: PromptReader) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the costs, then the answers, as (name, values)."""
    yield "bill", bills(answers)
    yield "answers", answer_values(answers, reader)


def _answer(answers: Answers, run: MethodRun, reader: PromptReader) -> dict[str, Any]:
    return _compared(run.answer, answers.full, reader) | {"method": _said(run.answer, answers.expected)}


def _said(one: PromptAnswer, expected: Sequence[str]) -> dict[str, Any]:
    right = bool(exact_match(one.text, expected)) if one.done and expected else None
    return {"text": one.text, "done": one.done, "right": right}


def _compared(one: PromptAnswer, full: PromptAnswer | None, reader: PromptReader) -> dict[str, Any]:
    """Return the most likely first tokens of an answer and of full attention, and the distance between them."""
    if one.compared is not None:
        return one.compared
    logs = {"method": one.logits.log_softmax(-1)} | ({"full": full.logits.log_softmax(-1)} if full else {})
    shown = {token for log in logs.values() for token in log.topk(min(SHOWN, len(log))).indices.tolist()}
    order = sorted(shown, key=lambda token: -max(float(log[token]) for log in logs.values()))[:SHOWN]
    first = [
        {"token": reader.token(token), **{name: float(log[token].exp()) for name, log in logs.items()}}
        for token in order
    ]
    if full is None:
        return {"first": first, "kl": None, "agree": None}
    kl = max(0.0, float((logs["full"].exp() * (logs["full"] - logs["method"])).sum()))
    agree = int(logs["full"].argmax()) == int(logs["method"].argmax())
    one.compared = {"first": first, "kl": kl, "agree": agree}
    return one.compared


def by_token(answers: Answers, loaded: Loaded) -> dict[str, Any]:
    """Return every per-token value under the chosen method and full attention, as bytes to paint."""
    assert answers.full is not None
    run = answers.method
    prompt, layers, length = answers.prompt, loaded.spec.layers, len(answers.prompt)
    truth = _first(answers.full.kv, length)
    before = squared(assemble(loaded.model, prompt, run.cached, run.method.positions), truth)
    before[prompt.starts[-1] :] = 0  # the question is not cached
    drawn = heat.tile_map(run.tiles, layers)
    return {
        "deviation": heat.deviation(before),
        "left": heat.deviation(squared(_first(run.answer.kv, length), truth)),
        "attention_full": heat.encode_heatmap(answers.full.attention, clip=0.99),
        "attention": heat.encode_heatmap(run.answer.attention, clip=0.99),
        "score": None if run.scores is None else heat.floats(run.scores),
        "tiles": heat.encode_heatmap(heat.kept_tokens(run.tiles, layers, length)) if run.tiles else None,
        "tile_map": heat.encode_heatmap(drawn) if drawn is not None else None,
        "chosen": run.chosen.tolist(),
        "layers": layers,
        "heads": loaded.model.config.get_text_config().num_attention_heads,
        "length": length,
        "system": prompt.starts[1] if run.wanted.system and run.wanted.prepare == "after_system" else 0,
    }


def _first(kv: KV, length: int) -> KV:
    """Return the prompt's part of a KV that includes an answer."""
    return KV([x[:, :length] for x in kv.keys], [x[:, :length] for x in kv.values], kv.start)
