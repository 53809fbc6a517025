"""Find a method's sparsest setting that keeps a given share: among measured settings, or by search.

`compare` compares sparse methods with dense attention on a prompt: next tokens and answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput, not_allowed
from workbench.core.plan import Plan
from workbench.data.sample import Sample
from workbench.engine.chunked import check_chunk, prefill_chunked_many
from workbench.engine.decoding import by_request, decode, text_of
from workbench.engine.forward import all_rows, prefill_many
from workbench.methods import sparse
from workbench.methods.sparse import Sparse
from workbench.metrics.answers import Records, exact_match, wilson
from workbench.metrics.tiles.sparsity import Methods, compared
from workbench.metrics.tiles.tile_recall import select_by
from workbench.metrics.tiles.tile_states import States, dense_states
from workbench.models.loading import Loaded


@dataclass(frozen=True)
class Comparison:
    """One method on one prompt, compared with dense attention."""

    kl: float  #: divergence from dense attention, mean over the question's tokens, nats
    agree: float  #: share of the question's tokens with the same next token
    first: bool  #: the first token of the answer is that of dense attention
    text: str  #: the answer, greedy


def compare(
    loaded: Loaded, prompt: Prompt, methods: Methods, chunk: int | None = None, max_new_tokens: int = 24
) -> dict[str, Comparison]:
    """Compare each method, `ready` for the model, with dense attention on a prompt that is prefilled in chunks.

    Raises BadInput for a chunk smaller than a tile, before any work.
    """
    model, tokenizer, layout = loaded = Loaded(*loaded)
    for method in methods.values():
        check_chunk(Plan(torch.arange(1), sparse=method), chunk or method.size)
    rows, context = len(prompt.question), loaded.spec.context
    room = min(max_new_tokens, context - len(prompt)) if context else max_new_tokens
    (dense,) = prefill_many(model, [all_rows(model, prompt.tokens)], rows)
    requests = [all_rows(model, prompt.tokens, max(0, room), sparse=method) for method in methods.values()]
    longest = max((len(prompt) + method.size for method in methods.values()), default=1)  # the prompt in one chunk
    outputs = prefill_chunked_many(model, requests, chunk or longest, rows)
    kvs: list[Any] = [request.kv for request in requests]
    logits = [output.logits for output in outputs if output.logits is not None]
    steps = decode(model, kvs, logits, max_new_tokens, stop=layout.stop, tokenizer=tokenizer)
    texts = [text_of(tokenizer, tokens, layout.stop).strip() for tokens in by_request(steps, len(requests))]
    results = zip(methods, outputs, texts, strict=True)
    return {name: Comparison(*compared(output, dense, rows), text) for name, output, text in results}


# measures that increase with the share of kept tiles
KEPT = ("em", "f1", "contains", "mass", "recall", "prefill_agree", "first")


def cheapest(
    table: pd.DataFrame,
    measure: str,
    keep: float,
    answers: pd.DataFrame | None = None,
    cost: str = "density",
    surely: bool = False,
) -> Records:
    """Find for each method of `table` (a row per setting) the setting of lowest `cost` that keeps enough of `measure`.

    Rows have {source, rule, sparse, density, union} and measures, as `results.scores` and
    `plots.marks.method_names.with_method_names` return them; dense attention has the rule "". A setting keeps enough if
    it reaches the share `keep` of dense attention's value. Methods without such a setting have `sparse` "". Records are
    {source, rule, sparse, density, union, value, low, high, n, sure}: `sure` if the 95% interval keeps enough too. With
    `answers` (rows of the result table), exact match is compared by question: the share that the method answers
    correctly, of those that dense attention does, has to reach `keep` by Wilson's interval. `surely` allows only
    settings that are sure. Sources without dense attention are left out.
    """
    if measure not in KEPT:
        raise not_allowed("measure", measure, KEPT)
    records: Records = []
    for source, own in table.dropna(subset=[measure]).groupby("source", sort=False):
        right = {} if answers is None else _matches(answers[answers.source == source])
        for dense in own[own.rule == ""].head(1).to_dict("records"):
            for rule, settings in own[own.rule != ""].groupby("rule", sort=False):
                enough = settings[settings[measure] >= keep * dense[measure] - 1e-9].sort_values(cost)
                sure = [_sure(setting, dense, measure, keep, right) for setting in enough.to_dict("records")]
                enough, sure = (enough.loc[sure], [True] * sum(sure)) if surely else (enough, sure)
                best = enough.iloc[0] if len(enough) else settings.sort_values(measure).iloc[-1]
                low, high = best.get(f"{measure}_low"), best.get(f"{measure}_high")
                record = {"source": source, "rule": rule, "sparse": best["sparse"] if len(enough) else ""}
                record |= {"density": best.density, "union": best.get("union"), "value": best[measure]}
                record |= {"low": low, "high": high, "n": best.get("n")}
                records.append(record | {"sure": any(sure[:1])})
    return sorted(records, key=lambda r: (r["sparse"] == "", r[cost]))


def _sure(
    setting: Mapping[str, Any], dense: Mapping[str, Any], measure: str, keep: float, right: Mapping[str, pd.Series]
) -> bool:
    """Return whether the 95% interval of a setting also keeps enough."""
    matches = _paired_matches(right, setting["sparse"], dense["sparse"]) if measure == "em" else []
    if matches:
        return wilson(sum(matches), len(matches))[0] >= keep
    low = setting.get(f"{measure}_low")
    return low is not None and bool(low >= keep * dense[measure] - 1e-9)


def _matches(answers: pd.DataFrame) -> dict[str, pd.Series]:
    """Return exact match per question for each sparse method."""
    full = answers[answers["mode"] == "full"].dropna(subset=["em"]).drop_duplicates(["sparse", "question"])
    return {str(spec): rows.set_index("question").em for spec, rows in full.groupby("sparse", sort=False)}


def _paired_matches(right: Mapping[str, pd.Series], method: str, dense: str) -> list[float]:
    """Return a method's exact match on questions that dense attention answers correctly; [] if either is missing."""
    if not {method, dense} <= right.keys():
        return []
    pairs = pd.concat([right[method], right[dense]], axis=1, keys=["own", "dense"]).dropna()
    return list(pairs.own[pairs.dense == 1])


def search(
    model: PreTrainedModel, prompts: Sequence[Prompt], methods: Methods, keep: float, chunk: int | None = None
) -> Records:
    """Find the sparsest threshold of each method that keeps the share `keep` of the attention mass of the prompts.

    Records {method, option, value, density, mass, steps}, means over layers, heads and prompts. The search is a
    bisection over the states of dense attention that tries `steps` values. `value` is None if even the last value keeps
    less. Single columns count as the tiles that contain them. Raises BadInput for a chunk that is not a multiple of the
    tile.
    """
    if not 0 < keep <= 1:
        raise BadInput(f"keep is {keep}: it is a share, above 0 to 1")
    states = [dense_states(model, prompt.tokens) for prompt in prompts]
    records = []
    for name, method in methods.items():
        option, values = method.threshold_steps
        low, high = 0, len(values) - 1
        known: dict[int, tuple[float, float]] = {}
        while low < high:
            middle = (low + high) // 2
            known[middle] = _kept(states, method.with_threshold(values[middle]), chunk)
            low, high = (low, middle) if known[middle][1] >= keep else (middle + 1, high)
        known[low] = known.get(low) or _kept(states, method.with_threshold(values[low]), chunk)
        density, mass = known[low]
        value = values[low] if mass >= keep else None
        row = {"method": name, "option": option, "value": value, "density": density, "mass": mass}
        records.append(row | {"steps": len(known)})
    return sorted(records, key=lambda r: (r["value"] is None, r["density"]))


def _kept(states: Sequence[States], method: Sparse, chunk: int | None) -> tuple[float, float]:
    """Return density and attention mass, mean over prompts, layers and heads."""
    choices = [select_by(state, layer, method, chunk=chunk) for state in states for layer in state.layers]
    density = torch.stack([choice.density() for choice in choices]).mean()
    mass = torch.stack([choice.mass_kept() for choice in choices]).mean()
    return float(density), float(mass)


def search_and_answer(
    loaded: Loaded,
    samples: Sequence[Sample],
    prompts: Sequence[Prompt],
    specs: Sequence[str],
    keep: float,
    chunk: int | None = None,
) -> Records:
    """Run `search` on `prompts` and answer with the thresholds found: its records with {agree, kl, right}, dense last.

    agree   share of the question's tokens with the next token of dense attention, mean over prompts
    kl      divergence of the next token from that of dense attention (nats), mean over prompts
    right   answers that match those of `samples`; all three are None if no threshold keeps enough
    """
    records = search(loaded[0], prompts, {spec: sparse.from_spec(spec) for spec in specs}, keep, chunk)
    values = {r["method"]: r["value"] for r in records if r["value"] is not None}
    settings = {spec: sparse.from_spec(spec).with_threshold(value) for spec, value in values.items()}
    settings["dense"] = sparse.from_spec("dense")
    outcomes = [compare(loaded, prompt, settings, chunk) for prompt in prompts]
    dense = {"method": "dense", "option": "", "value": None, "density": 1.0, "mass": 1.0}
    return [r | _answers([o[r["method"]] for o in outcomes if r["method"] in o], samples) for r in [*records, dense]]


def _answers(outcomes: Sequence[Comparison], samples: Sequence[Sample]) -> dict[str, Any]:
    if not outcomes:
        return {"agree": None, "kl": None, "right": None}
    count = len(outcomes)
    right = [exact_match(outcome.text, sample.answers) for outcome, sample in zip(outcomes, samples, strict=True)]
    agree, kl = sum(o.agree for o in outcomes) / count, sum(o.kl for o in outcomes) / count
    return {"agree": agree, "kl": kl, "right": sum(right)}
