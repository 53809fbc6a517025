"""Poisoned caches (HijackKV, arXiv:2607.19957): KV computed after an attacker's text.

    python data/benchmarks/poisoned.py --victims 64

writes counts of experiment "poisoned": lab questions, one per set of passages.

The attacker's text is the passage with another answer. Unlike HijackKV's 32 tokens it is not optimised, and it is not
in the victim's prompt: only the cached passage has attended to it. Three ways to get there:

keys of tokens     a store keyed by a block's tokens only serves the attacker's KV
content chains     keys of `store.keys` include the preceding content: the attacker's copy has another key
with neighbours    the attacker's text is in the corpus, and preprocessing conditions the passage on it

Each is compared with the same request without the attacker.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from attack_prompts import Victim, corpus, victims_of
from script import options, writer
from torch import Tensor

from workbench import data, models
from workbench.core.kv import KV
from workbench.core.utils.watched import Progress
from workbench.methods import select
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare import Prepare
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.with_neighbours import WithNeighbours
from workbench.metrics.answers import Records, bootstrap, exact_match, wilson
from workbench.metrics.fidelity import gold_answers, predict
from workbench.models.loading import Loaded
from workbench.store import UNLIMITED, MemoryStore, Store, fetch, fingerprint, key_of
from workbench.store.misses import Miss, identity_of

MODEL, SEED, PASSAGES, SAMPLES = "lab-full", 90_000, 10, 2_400
RATIOS, NEIGHBOURS = (0.0, 0.05, 0.15, 0.3, 0.5, 1.0), (1, 10)
TOKENS, CHAINS = "keys of tokens", "content chains"
Side = tuple[Prepare, Store]
Asked = tuple[list[str], list[Tensor]]  # greedy answers, logits of the correct ones
HARMLESS = "harmless copy"
MEASURES = ("kl", "toward", "changed", "right", "hijacked", "right_clean", "reached")


class TokenKeyStore:
    """A store keyed by a block's tokens only, as in caches that ignore the preceding content."""

    def __init__(self) -> None:
        self.store = MemoryStore(UNLIMITED)

    def get(self, key: str) -> KV | None:
        """Return the first block stored for these tokens, whatever it attended to."""
        return self.store.get(_tokens(key))

    def put(self, key: str, kv: KV) -> None:
        """Store a block, unless one of these tokens exists."""
        if _tokens(key) not in self.store:
            self.store.put(_tokens(key), kv)


def _tokens(key: str) -> str:
    identity = identity_of(key)
    return identity.block if identity else key


def attacked(loaded: Loaded, victims: Sequence[Victim], store: Store) -> Store:
    """Send the attacker's requests through `store`: each victim's passage is encoded after the attacker's text."""
    behind = [[victim.prompt.blocks[0], victim.poison_block] for victim in victims]
    fetch(loaded.model, [victim.passage for victim in victims], store, behind)
    return store


def misses(loaded: Loaded, victims: Sequence[Victim]) -> list[Miss]:
    """Return why the victims' passages are missed in a store of content chains filled by the attacker."""
    store = MemoryStore(UNLIMITED)
    attacked(loaded, victims, store)
    weights, dtype = fingerprint(loaded.model), loaded.model.dtype
    keys = [key_of(weights, dtype, victim.passage, victim.prompt.blocks[:1]) for victim in victims]
    return [store.miss_reason(key) for key in keys if store.get(key) is None]


@dataclass(frozen=True)
class Arm:
    """An attack, and the same request without it: preprocessing and store of each.

    `reached`: the share of victims whose served passage attended to the added text.
    """

    name: str
    clean: Side
    poisoned: Side
    reached: float


def arms(
    loaded: Loaded, victims: Sequence[Victim], neighbours: Sequence[int], search: Literal["faiss", "exact"] = "exact"
) -> list[Arm]:
    """Return the arms: both kinds of key and each number of neighbours, with attacking and harmless text."""
    alone = AfterSystem()
    clean: Side = (alone, MemoryStore(UNLIMITED))
    keyed: dict[str, Store] = {TOKENS: TokenKeyStore(), CHAINS: MemoryStore(UNLIMITED)}
    found = [
        Arm(name, clean, (alone, attacked(loaded, victims, store)), float(name == TOKENS))
        for name, store in keyed.items()
    ]
    honest = corpus(loaded, victims)
    added = {"": [victim.poison for victim in victims], f", {HARMLESS}": [victim.harmless for victim in victims]}
    tampered = {name: corpus(loaded, victims, passages) for name, passages in added.items()}
    for n in neighbours:
        beside: Side = (WithNeighbours(honest, n=n, search=search), MemoryStore(UNLIMITED))
        for name, with_added in tampered.items():
            prepare = WithNeighbours(with_added, n=n, search=search)
            reached = [bool(set(prepare.neighbours(v.passage)) - set(honest.place)) for v in victims]
            label = f"{n} neighbour{'s' * (n > 1)}{name}"
            found.append(Arm(label, beside, (prepare, MemoryStore(UNLIMITED)), float(np.mean(reached))))
    return found


def measured(
    loaded: Loaded,
    victims: Sequence[Victim],
    ratios: Sequence[float],
    neighbours: Sequence[int] = (1, 10),
    progress: Progress | None = None,
) -> Records:
    """Return one `results.Count` row per arm (`method`), ratio of recomputed tokens (query-guided) and measure.

    kl         KL(clean ‖ poisoned) at the correct answer's tokens, nats per token, mean over questions
    toward     gain of the attacker's target over the correct answer: log-odds at the first differing token, in nats
    changed    share of greedy answers that differ from those without the attacker
    hijacked   share of greedy answers equal to the attacker's target
    right, right_clean      exact match with and without the attacker
    reached    share of victims whose served passage attended to the added text
    Intervals are 95%: bootstrap over questions, Wilson of shares.
    """
    loaded = Loaded(*loaded)
    rows: Records = []
    known: dict[tuple[int, float], Asked] = {}  # clean requests, shared by arms
    for arm in arms(loaded, victims, neighbours):
        for ratio in ratios:
            mark = id(arm.clean), ratio
            known[mark] = known.get(mark) or _asked(loaded, victims, arm.clean, ratio)
            compared = _compared(loaded, victims, known[mark], _asked(loaded, victims, arm.poisoned, ratio))
            about = {"method": arm.name, "ratio": ratio, "n": len(victims)}
            rows += [{**about, **row} for row in [*compared, {"measure": "reached", "value": arm.reached}]]
            if progress:
                progress(len(rows), (2 + 2 * len(neighbours)) * len(ratios) * len(MEASURES))
    return rows


def _asked(loaded: Loaded, victims: Sequence[Victim], side: Side, ratio: float) -> Asked:
    """Return greedy answers, and the logits [A, V] of the correct answer's tokens."""
    (prepare, store), (model, tokenizer, layout) = side, loaded
    method = Reuse(prepare=prepare, select=select.from_spec("query_guided") if ratio else None, ratio=ratio or None)
    gold = gold_answers([victim.sample for victim in victims], layout, tokenizer)
    prompts = [victim.prompt for victim in victims]
    params = SamplingParams(max(map(len, gold)) + 4, stop=layout.stop)
    ended = answer(model, tokenizer, prompts, method, store, params)
    return [one.text.strip() for one in ended.generations], predict(model, ended.ready, ended.logits, gold)


def _compared(loaded: Loaded, victims: Sequence[Victim], clean: Asked, poisoned: Asked) -> Records:
    odds = [_odds(loaded, victims, logits) for _, logits in (clean, poisoned)]
    means = {
        "kl": [_kl(one, other) for one, other in zip(clean[1], poisoned[1], strict=True)],
        "toward": [after - before for before, after in zip(*odds, strict=True)],
    }
    flags: Mapping[str, list[bool]] = {
        "changed": [one != other for one, other in zip(clean[0], poisoned[0], strict=True)],
        "right": [bool(exact_match(said, v.sample.answers)) for said, v in zip(poisoned[0], victims, strict=True)],
        "hijacked": [bool(exact_match(said, [v.target])) for said, v in zip(poisoned[0], victims, strict=True)],
    }
    right = [exact_match(said, victim.sample.answers) for said, victim in zip(clean[0], victims, strict=True)]
    intervals = {name: bootstrap(values) for name, values in means.items()}
    intervals |= {name: wilson(sum(values), len(values)) for name, values in flags.items()}
    values = {**means, **flags}
    found: Records = [
        {"measure": name, "value": float(np.mean(values[name])), "low": low, "high": high}
        for name, (low, high) in intervals.items()
    ]
    return [*found, {"measure": "right_clean", "value": float(np.mean(right))}]


def _kl(one: Tensor, other: Tensor) -> float:
    """Return the mean KL(one ‖ other) of logits [A, V], in nats."""
    p, q = (torch.log_softmax(logits.double(), -1) for logits in (one, other))
    return float((p.exp() * (p - q)).sum(-1).clamp_min(0).mean())


def _odds(loaded: Loaded, victims: Sequence[Victim], logits: Sequence[Tensor]) -> list[float]:
    """Return log p(target) - log p(answer) of every victim at the first token in which the two differ."""
    _, tokenizer, layout = loaded
    aimed = [replace(victim.sample, answers=(victim.target,)) for victim in victims]
    pairs = zip(
        gold_answers([victim.sample for victim in victims], layout, tokenizer),
        gold_answers(aimed, layout, tokenizer),
        logits,
        strict=True,
    )
    found = []
    for gold, target, of_tokens in pairs:
        at = next(i for i, (one, other) in enumerate(zip(gold, target, strict=False)) if one != other)
        found.append(float(of_tokens[at, target[at]] - of_tokens[at, gold[at]]))
    return found


def main() -> None:
    """Measure and write."""
    args = options(__doc__, victims=64, device="cpu")
    loaded = models.load(MODEL, args.device)
    victims = victims_of(loaded, data.load("lab", SAMPLES, SEED, PASSAGES), args.victims)
    first = victims[0]
    example = {"question": first.sample.question, "answer": first.sample.answers[0]}
    example |= {"target": first.target, "text": first.poison.text}
    about: dict[str, Any] = {"data": "lab", "seed": SEED, "passages": PASSAGES, "select": "query_guided"}
    about |= {"model": MODEL, "setting": {"example": example}}
    reasons = Counter(miss.reason for miss in misses(loaded, victims))
    missed = {"method": CHAINS, "measure": "misses", "n": len(victims)}
    with writer(args, f"poisoned@{MODEL}", loaded.model.device, **about) as out:
        out.counts({**missed, "kind": why, "value": float(count)} for why, count in reasons.items())
        out.counts(measured(loaded, victims, RATIOS, NEIGHBOURS, lambda at, of: print(f"{at} of {of}", flush=True)))


if __name__ == "__main__":
    main()
