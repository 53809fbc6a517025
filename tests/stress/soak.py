"""A soak: thousands of mixed requests over one pool, with blocks coming and going, checked as they pass.

    python -m tests.stress.soak --device cuda
    python -m tests.stress.soak --device cpu --requests 200 --out /tmp/soak

Most waves are read step by step, while others cancel, close, give blocks back and encode between the steps
(`between_steps`); every answer is compared. In one wave of eight requests differ in blocks, methods, options and
lengths; popular blocks come back, others are dropped by the store and leave their pages; one request in a hundred is
answered once more by the contiguous engine. After every wave no page may be missing and nothing may be pinned, and
pages of blocks that are shared keep their checksums. Ends behind `--requests` or `--seconds`; the results folder is
written again every ten seconds; exit status 1 where something is wrong.
"""

import argparse
import math
import resource
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from data.benchmarks.script import checksum
from tests.stress.between_steps import GROUP, LIMITS, BetweenSteps
from workbench import data, models
from workbench.core.blocks import Block, Prompt
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import Cached
from workbench.experiments.trials.record import device_name, versions
from workbench.methods import Method, engines, finish
from workbench.methods.engines import pages_of
from workbench.methods.generation import generate
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.modes.superposition import Superposition
from workbench.methods.paged.answers import PagedAnswers
from workbench.methods.paged.request import PageRequest, requests_of
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.select import from_spec as selector
from workbench.methods.sparse import from_spec as sparse
from workbench.metrics.fidelity import predict
from workbench.models.loading import Loaded
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER
from workbench.store import MemoryStore

NEAR = 8  # steps of the dtype between logits that rounding in the layers before may make
SHARE = 100  # one request in so many is checked
WAVE = 64
MIXED = 1 / 8  # of the waves are of mixed methods; the others are disturbed between their steps
PROMPTS = 64  # that are asked for in disturbed waves
OFTEN = 10.0  # seconds after which results are written again
FAULTS = ("pages lost", "pinned", "changed", "apart", "not refused", "refused wrongly")
CHECKED = 16  # blocks of which a checksum is taken again after every wave, and for the first time
STATUS = Path("/proc/self/statm")
METHODS: dict[str, tuple[int, Method]] = {  # how many of all, about
    "full": (2, Full()),
    "block": (8, Reuse()),
    "naive": (2, Reuse("naive")),
    "after system": (2, Reuse(prepare=AfterSystem())),
    "FusionRAG": (3, Reuse(select=selector("query_guided"), ratio=0.15)),
    "CacheBlend": (1, Reuse(select=selector("kv_deviation"), ratio=0.15)),
    "first tokens": (2, Reuse(select=selector("first_k"), ratio=0.1)),
    "BFLA": (1, Full(sparse=sparse("bfla(block=64,tile=32,flat=32)"))),
    "chunked": (1, Full(chunk=64)),
    "superposition": (1, Superposition(paths=2)),
}


@dataclass
class Soak:
    """Requests over blocks of `texts` (token ids, the first one the system block), drawn by `seed`."""

    loaded: Loaded
    texts: Sequence[Block]
    questions: Sequence[Block]
    budget: int = 1 << 24  # bytes of the store: what does not fit is dropped, and encoded again when it is asked for
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    alone: dict[Prompt, tuple[int, ...]] = field(default_factory=dict)  # answers of the contiguous engine

    def run(
        self, count: int, tell: Callable[[dict[str, Any]], None], seconds: float = math.inf, mixed: float = MIXED
    ) -> dict[str, Any]:
        """Answer `count` requests, or as many as begin in `seconds`; `tell` is given the report after every wave."""
        random, store = Random(self.seed), MemoryStore(self.budget)
        sums: dict[int, tuple[Cached, int]] = {}
        begin, first, report = perf_counter(), self._bytes(), dict[str, Any]()
        asked = [self._prompt(random) for _ in range(PROMPTS)]
        while self.counts["requests"] < count and (not report or perf_counter() - begin < seconds):
            size = min(WAVE, count - self.counts["requests"])
            kind = self._mixed if random.random() < mixed else self._disturbed
            pool, blocks = kind(size, random, store, asked)
            self._check(pool, blocks, sums, random)
            self.counts["requests"] += size
            if self.counts["waves"] == 5:
                first = self._bytes()
            self.counts["waves"] += 1
            report = self._report(pool, store, perf_counter() - begin, first)
            tell(report)
        return report

    def _mixed(self, size: int, random: Random, store: MemoryStore, asked: Sequence[Prompt]) -> tuple[Pool, BlockPages]:
        """Answer a wave of mixed methods; one request in a hundred is compared."""
        wave = [self._draw(random) for _ in range(size)]
        requests = [self._request(*one, store) for one in wave]
        answers = PagedAnswers(self.loaded.model, requests, most=random.choice((1, 4, 16)))
        self._answer(answers, random)
        for number, ((_, prompt, method, params), request) in enumerate(zip(wave, requests, strict=True)):
            if (self.counts["requests"] + number) % SHARE == 0 and request.ended is not None:
                self._compare(prompt, method, params, request, answers)
        return answers.pool, answers.blocks

    def _disturbed(
        self, size: int, random: Random, store: MemoryStore, asked: Sequence[Prompt]
    ) -> tuple[Pool, BlockPages]:
        """Answer a wave that is disturbed between its steps; every answer is compared."""
        model, page = self.loaded.model, engines.PAGE
        longest = max(sum(-(-len(block) // page) for block in prompt.blocks) for prompt in asked)
        runner, blocks = pages_of(model).of(model, GROUP * (longest + -(-max(LIMITS) // page)))
        wave = BetweenSteps(
            self.loaded, runner, blocks, self.texts, random, lambda: random.choice(asked), self._judge, self.counts
        )
        wave.run(size)
        return runner.pool, blocks

    def _judge(self, prompt: Prompt, said: Sequence[int], limit: int) -> None:
        """Count how an answer of at most `limit` tokens compares with that of the contiguous engine."""
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        if prompt not in self.alone:
            (alone,) = generate(model, tokenizer, [prompt], Reuse(), engine="contiguous", max_new_tokens=max(LIMITS))
            self.alone[prompt] = tuple(alone.tokens)
        expected = self.alone[prompt][:limit]
        self.counts["compared"] += 1
        equal = expected == tuple(said)
        self.counts["equal" if equal else difference(model, prompt, Reuse(), expected, said)] += 1

    def _draw(self, random: Random) -> tuple[str, Prompt, Method, SamplingParams]:
        names = list(METHODS)
        name = random.choices(names, [METHODS[name][0] for name in names])[0]
        prompt = self._prompt(random)
        options: dict[str, Any] = {"max_new_tokens": random.choice((1, 2, 5, 12, 24))}
        if random.random() < 0.2:
            options |= {"temperature": 0.8, "top_p": 0.9, "seed": random.randrange(1000)}
        if random.random() < 0.2:
            options |= {"stop": self.loaded.layout.stop or "."}
        return name, prompt, METHODS[name][1], SamplingParams(**options)

    def _prompt(self, random: Random) -> Prompt:
        popular = int(len(self.texts) * random.random() ** 3)  # a few are asked for often
        chosen = [
            self.texts[(popular + int(40 * random.random() ** 2)) % len(self.texts)]
            for _ in range(random.randint(1, 6))
        ]
        return Prompt((self.texts[0], *chosen, random.choice(self.questions)))

    def _request(
        self, name: str, prompt: Prompt, method: Method, params: SamplingParams, store: MemoryStore
    ) -> PageRequest:
        self.counts[f"method {name}"] += 1
        (request,) = requests_of(self.loaded.model, self.loaded.tokenizer, [prompt], method, store, params)
        return request

    def _answer(self, answers: PagedAnswers, random: Random) -> None:
        """Answer a wave; one in twenty is left in the middle, as a caller does that hangs up."""
        leave = random.randrange(1, WAVE) if random.random() < 0.05 else None
        running = answers.run()
        for number, _ in enumerate(running):
            self.counts["tokens"] += 1
            if number == leave:
                self.counts["waves left"] += 1
                break
        running.close()

    def _compare(
        self, prompt: Prompt, method: Method, params: SamplingParams, request: PageRequest, answers: PagedAnswers
    ) -> None:
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        (alone,) = generate(model, tokenizer, [prompt], method, engine="contiguous", **vars(params))
        self.counts["compared"] += 1
        said = tuple(request.tokens)
        if said == alone.tokens:
            self.counts["equal"] += 1
        elif params.temperature:
            self.counts["drawn otherwise"] += 1  # a draw amplifies what rounds otherwise
        else:
            self.counts[difference(self.loaded.model, prompt, method, alone.tokens, said)] += 1

    def _check(self, pool: Pool, blocks: BlockPages, sums: dict[int, tuple[Cached, int]], random: Random) -> None:
        """Count pages without an owner, blocks that are still pinned, and checksums that have changed."""
        there = list(blocks)
        self.counts["pages lost"] += pool.pages - 1 - pool.free - sum(len(cached.pages) for cached in there)
        self.counts["pinned"] += blocks.pinned
        live = {id(cached): cached for cached in there}
        self.counts["blocks gone"] += len(gone := [key for key in sums if key not in live])
        for key in gone:
            del sums[key]
        known, fresh = sorted(live.keys() & sums.keys()), sorted(live.keys() - sums.keys())
        looked = random.sample(known, min(CHECKED, len(known)))  # those that others may have written since
        looked += random.sample(fresh, min(CHECKED, len(fresh)))
        for key in looked:
            cached = live[key]
            now = checksum(pool, cached)
            if key in sums:
                self.counts["checksums"] += 1
                self.counts["changed"] += sums[key][1] != now
            else:
                self.counts["blocks come"] += 1
                sums[key] = cached, now

    def _report(self, pool: Pool, store: MemoryStore, seconds: float, first: dict[str, int]) -> dict[str, Any]:
        stats = store.stats
        runner, _ = pages_of(self.loaded.model).of(self.loaded.model, 1)
        return {
            "counts": dict(sorted(self.counts.items())),
            "seconds": seconds,
            "pages": pool.pages - 1,
            "store": {"hits": stats.hits, "misses": stats.misses, "evictions": stats.evictions},
            "captured": len(runner.captured),
            "bytes": {"after five waves": first, "now": self._bytes()},
        }

    def _bytes(self) -> dict[str, int]:
        """Return what the process has held at most, what it holds where the system tells, and what the device holds."""
        held = {"process, at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}
        with suppress(OSError):
            held["process"] = int(STATUS.read_text().split()[1]) * resource.getpagesize()
        if self.loaded.model.device.type == "cuda":
            held["device"] = torch.cuda.memory_allocated()
        return held


def difference(
    model: PreTrainedModel, prompt: Prompt, method: Method, said: Sequence[int], other: Sequence[int]
) -> str:
    """Return how far apart the first two tokens that differ are for the contiguous engine: "tie", "near" or "apart".

    A tie is at most one step of the model's dtype, near at most `NEAR`. An end stands for the likeliest other token.
    """
    at = next((i for i, pair in enumerate(zip(said, other, strict=False)) if len(set(pair)) > 1), None)
    at = min(len(said), len(other)) if at is None else at
    ready = method.begin(model, [prompt], None, at + 1)
    logits = predict(model, ready, finish(model, ready), [(*said[:at], 0)])[0][-1].float()
    likely = logits.topk(2).indices.tolist()
    ids = [answer[at] if at < len(answer) else None for answer in (said, other)]
    first, second = (next(x for x in likely if x not in ids) if one is None else one for one in ids)
    size = float(logits[[first, second]].abs().max())
    step = torch.finfo(model.dtype).eps * 2.0 ** (math.frexp(max(size, 1e-30))[1] - 1)
    steps = abs(float(logits[first] - logits[second])) / step
    return "tie" if steps <= 1 else "near" if steps <= NEAR else "apart"


def sound(report: dict[str, Any]) -> bool:
    """Return whether nothing leaked or changed, no compared answer differs by more than rounding, and steps over pages
    that somebody else has, only those, were refused."""
    return not any(report["counts"].get(name) for name in FAULTS)


def main() -> None:
    """Run the soak, and write as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-block")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--questions", type=int, default=100, help="of the lab, whose passages are drawn")
    parser.add_argument("--store-mib", type=int, default=32, help="of blocks that are kept; the others are dropped")
    parser.add_argument("--pool", type=int, default=8192, help="tokens of the pool, which does not hold all blocks")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no wave begins")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FOLDER, help="results folder")
    given = parser.parse_args()
    engines.TOKENS = given.pool
    loaded = models.load(given.model, given.device, given.dtype)
    prompts = loaded.layout.prompts(data.load("lab", given.questions, 0), loaded.tokenizer)
    texts: dict[Block, None] = dict.fromkeys(block for prompt in prompts for block in prompt.context)
    soak = Soak(loaded, list(texts), [prompt.blocks[-1] for prompt in prompts], given.store_mib << 20, given.seed)
    origin = {"model": given.model, "dtype": str(loaded.model.dtype)[6:], "versions": versions(), **this_run()}
    origin |= {"device": device_name(loaded.model.device)}
    origin["setting"] = {"blocks": len(texts), "store_mib": given.store_mib, "seed": given.seed}
    written = -OFTEN

    def tell(report: dict[str, Any]) -> None:
        nonlocal written
        if report["seconds"] >= written + OFTEN:
            written = report["seconds"]
            print(f"{report['counts']['requests']:,} requests, {written:.0f} s, sound: {sound(report)}", flush=True)
            write(report, given.out, origin)

    report = soak.run(given.requests, tell, given.seconds)
    write(report, given.out, origin)
    print(report["counts"], report["seconds"], report["captured"], sep="\n")
    sys.exit(0 if sound(report) else 1)


def write(report: dict[str, Any], out: Path, origin: dict[str, Any]) -> None:
    """Write a report as counts of a results folder, in the place of an earlier one."""
    numbers = report["counts"] | {"seconds": report["seconds"], "captured steps": report["captured"]}
    numbers |= {"sound": sound(report)} | {name: report["counts"].get(name, 0) for name in FAULTS}
    with Writer(out, "soak@requests", **origin) as rows:
        rows.counts({"measure": name, "value": float(value)} for name, value in numbers.items())
        rows.counts({"measure": name, "kind": "store", "value": float(v)} for name, v in report["store"].items())
        for when, held in report["bytes"].items():
            rows.counts({"measure": n, "kind": f"bytes, {when}", "value": float(v)} for n, v in held.items())


if __name__ == "__main__":
    main()
