"""Where cached KV deviates from full attention, how much preprocessing removes, and which tokens are selected.

    python data/benchmarks/deviation.py --samples 200
    python data/benchmarks/deviation.py --model smollm2 --data nq=nq-test.jsonl --samples 500 --device cuda

    python data/benchmarks/deviation.py --together hotpotqa=hotpotqa_distractor_100.jsonl nq=nq-test.jsonl --samples 500

writes into the results folder --out: FusionRAG's figures 3, 7 and 8 and CompactAttention's figure 2a as numbers with n
and 95% bootstrap intervals over questions, and the agreement of selectors (Jaccard). Squared deviation (FusionRAG,
equation 7) of the second layer, of tokens behind the system prompt; blocks are cached behind the system prompt
(`after_system`), or behind ten neighbours. `--together`: only figure 7a, on files of retrieved passages:
the share of a question's passages with another of its passages among their n most similar ones in the file.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from script import mean_of, name_of, options, writer
from torch import Tensor

from workbench import data, models
from workbench.core.blocks import Prompt
from workbench.data.retrieval_corpus import Corpus, nearest_texts
from workbench.engine.assembly import assemble
from workbench.methods import prepare, select
from workbench.metrics.kv.kv_deviation import context_gaps, full_attention_kv
from workbench.metrics.kv.selection import agreement, by_offset, selection_mask
from workbench.metrics.tiles.key_rankings import rankings
from workbench.metrics.tiles.tile_states import dense_states
from workbench.models.loading import Loaded
from workbench.store import MemoryStore

SEED, PASSAGES = 60_000, 10
NUMBERS, EMBEDDERS = (1, 2, 5, 10, 15), ("tfidf", "minilm")
TOGETHER = 50  # questions whose KV is in memory at once
LAYER, RATIO, BUDGET, WINDOW, NEIGHBOURS = 1, 0.15, 0.25, 64, 10
SELECTORS = ("kv_deviation", "query_guided", "answer_guided")
Columns = tuple[tuple[str, Any], ...]
Numbers = dict[Columns, list[float]]  # one number per question


def outside(gap: Tensor) -> float:
    """Return the share of the deviation [T] outside the RATIO of tokens that deviate most."""
    worst = gap.sort(descending=True).values
    return float(worst[round(RATIO * len(worst)) :].sum() / worst.sum())


def later_half(values: Tensor, prompt: Prompt) -> float:
    """Return the mean of `values` [T of the context] over the later half of the passages, relative to all."""
    of = prompt.block_of[: prompt.starts[-1]]
    late = of > len(prompt.context) // 2
    return float(values[late].mean() / values[of > 0].mean())


def missed(loaded: Loaded, prompt: Prompt) -> float:
    """Return the keys that a mean ranking misses, mean over layers and heads (CompactAttention, figure 2a)."""
    ranked = rankings(dense_states(loaded.model, prompt.tokens), WINDOW)
    return float(np.mean([one.missed_share(BUDGET) for one in ranked]))


def together(samples: Sequence[data.Sample], prompts: Sequence[Prompt], corpus: Corpus, n: int) -> list[float]:
    """Return, per question, the share of its passages with another of its passages among their n neighbours."""
    table, shares = nearest_texts(corpus.texts, n, search="exact"), []
    for sample, prompt in zip(samples, prompts, strict=True):
        numbers = {corpus.place[block] for block in prompt.context[-len(sample.ctxs) :]}
        shares.append(float(np.mean([bool(numbers & set(table[number].tolist())) for number in numbers])))
    return shares


def columns(measure: str, **more: Any) -> Columns:
    """Return a number's columns besides its value: its measure and selectors."""
    return ("measure", measure), *more.items()


def agreements(choices: Mapping[str, Sequence[Tensor]]) -> Numbers:
    """Return, per question, the agreement of two selectors: rows that both select, over rows that either selects."""
    return {
        columns("agreement", select=one, ratio=RATIO, kind=other): [
            float(agreement({one: [a], other: [b]})[0, 1]) for a, b in zip(choices[one], choices[other], strict=True)
        ]
        for one, other in combinations(choices, 2)
    }


def measured(loaded: Loaded, asked: Sequence[data.Sample], corpus: Corpus) -> list[dict[str, Any]]:
    """Return `results.Count` rows of all measures on the questions, in batches."""
    numbers: Numbers = {}
    for at in range(0, len(asked), TOGETHER):
        for of, values in _some(loaded, asked[at : at + TOGETHER], corpus, ranked=at == 0).items():
            numbers.setdefault(of, []).extend(values)
        print(f"{min(at + TOGETHER, len(asked))} of {len(asked)} questions", flush=True)
    return [{**dict(of), **mean_of(values)} for of, values in numbers.items()]


def _some(loaded: Loaded, asked: Sequence[data.Sample], corpus: Corpus, ranked: bool) -> Numbers:
    """Return one number per question and measure; key rankings if `ranked`."""
    prompts = loaded.layout.prompts(asked, loaded.tokenizer)
    store, truths = MemoryStore(1 << 34), [full_attention_kv(loaded.model, prompt) for prompt in prompts]
    specs = {"reuse": "after_system", "prepared": f"with_neighbours(n={NEIGHBOURS}, search=exact)"}
    kvs, gaps = {}, {}
    for name, spec in specs.items():
        cached = prepare.from_spec(spec, corpus=corpus)(loaded.model, prompts, store)
        kvs[name] = [assemble(loaded.model, *each) for each in zip(prompts, cached, strict=True)]
        gaps[name] = [gap[:, LAYER] for gap in context_gaps(kvs[name], truths, prompts)]
    documents = {n: [g[p.starts[1] :] for g, p in zip(of, prompts, strict=True)] for n, of in gaps.items()}
    heads = by_offset(gaps["reuse"], prompts)
    pairs = list(zip(documents["reuse"], documents["prepared"], strict=True))
    numbers = {
        columns("left_outside_15_percent"): [outside(gap) for gap in documents["reuse"]],
        columns("change_by_preparation"): [float(after.sum() / before.sum()) - 1 for before, after in pairs],
        columns("first_tenth_over_mean"): list(heads[:, 0] / heads.mean(1)),
        columns("later_half_over_mean"): [later_half(g, p) for g, p in zip(gaps["reuse"], prompts, strict=True)],
        columns("missed_by_mean_ranking"): [missed(loaded, prompt) for prompt in prompts] if ranked else [],
    }
    numbers |= {columns("together", at=float(n), kind="tfidf"): together(asked, prompts, corpus, n) for n in (2, 10)}
    choices = {spec: select.from_spec(spec).rows(loaded.model, prompts, kvs["reuse"], RATIO) for spec in SELECTORS}
    numbers |= agreements(choices)
    for spec, rows in choices.items():
        masks = [selection_mask(each, prompt) for each, prompt in zip(rows, prompts, strict=True)]
        places = by_offset(masks, prompts)
        of = {"select": spec, "ratio": RATIO}
        numbers[columns("first_tenth", **of)] = list(places[:, 0] / places.sum(1))
        numbers[columns("later_half", **of)] = [later_half(m, p) for m, p in zip(masks, prompts, strict=True)]
    return numbers


def retrieved_together(files: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Return how often similar passages were retrieved for the same question, of files NAME=FILE (FusionRAG, 7a)."""
    rows = []
    for name, _, file in (given.partition("=") for given in files):
        samples = [sample for sample in data.load(file, count) if len(sample.ctxs) > 1]
        texts = [[f"{passage.title}\n{passage.text}" for passage in sample.ctxs] for sample in samples]
        place = {text: number for number, text in enumerate(dict.fromkeys(text for own in texts for text in own))}
        of_questions = [{place[text] for text in own} for own in texts]
        passages = round(float(np.mean([len(own) for own in texts])))
        for embedder, n in product(EMBEDDERS, NUMBERS):
            table = nearest_texts(tuple(place), n, embedder, search="exact")
            shares = [float(np.mean([bool(own & set(table[i].tolist()) - {i}) for i in own])) for own in of_questions]
            about = {"data": name, "passages": passages, "kind": embedder, "at": float(n), "measure": "together"}
            rows.append({**about, **mean_of(shares)})
            print(name, embedder, n, rows[-1]["value"], flush=True)
    return rows


def main() -> None:
    """Measure and write."""
    args = options(__doc__, model="lab-full", data="lab", samples=200, device="cpu", together=[""])
    if args.together != [""]:
        with writer(args, "deviation@together", device="", seed=0) as out:
            out.counts(retrieved_together(args.together, args.samples))
        return
    data_name, _, file = args.data.partition("=")
    drawn = (file or data_name, args.samples, SEED, PASSAGES)
    loaded = models.load(args.model, args.device)
    corpus = Corpus.of(data.corpus(*drawn), loaded.layout, loaded.tokenizer)
    rows = measured(loaded, data.load(*drawn), corpus)
    setting = {"ratio": RATIO, "layer": LAYER, "budget": BUDGET, "window": WINDOW, "neighbours": NEIGHBOURS}
    model, about = name_of(args.model), {"data": data_name, "seed": SEED, "passages": PASSAGES, "setting": setting}
    with writer(args, f"deviation@{model}-{data_name}", loaded.model.device, model=model, **about) as out:
        out.counts(rows)
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
