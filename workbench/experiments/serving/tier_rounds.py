"""Serve the same questions in three rounds: with empty tiers, with filled tiers, and with only the folder filled."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workbench.data import Sample
from workbench.methods.generation import generate
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.serving import Scheduler
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.metrics.answers import Records
from workbench.models.loading import Loaded
from workbench.store import FolderStore, HostTier, MemoryStore, StoreTier, TieredStore

ROUNDS = ("empty tiers", "again", "memory empty, folder full")


def answer_rounds(loaded: Loaded, samples: Sequence[Sample], max_new_tokens: int = 8) -> Records:
    """Return one row per round and question: {round, question, answer, equal, ttft_ms, seconds by stage, receipt}.

    `equal`: the answer has the tokens of `generate`, one question at a time, without scheduler and tiers.
    """
    loaded = Loaded(*loaded)
    model, tokenizer, layout = loaded
    prompts, method = layout.prompts(samples, tokenizer), Reuse(prepare=AfterSystem())
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": layout.stop}
    expected = [generate(model, tokenizer, [prompt], method, MemoryStore(), **options)[0] for prompt in prompts]
    rows: Records = []
    with TemporaryDirectory() as place:
        for name, store in zip(ROUNDS, _tiers(Path(place)), strict=True):
            engine = ContiguousEngine(model, tokenizer, store, method, stop=layout.stop)
            with closing(Scheduler(engine, "request", batch=len(prompts))) as scheduler:
                tickets = scheduler.run(prompts, max_new_tokens)
            for sample, ticket, other in zip(samples, tickets, expected, strict=True):
                result = ticket.result(0)
                row: dict[str, Any] = {"round": name, "question": sample.question, "answer": result.text.strip()}
                row |= {"equal": result.tokens == other.tokens, "ttft_ms": 1e3 * result.ttft, "receipt": result.receipt}
                rows.append(row)
    return rows


def _tiers(place: Path) -> Iterator[TieredStore]:
    """Yield the tiers of each round."""
    first = TieredStore([HostTier(), StoreTier(FolderStore(place / "blocks", new=True))], write="through")
    yield first
    yield first
    yield TieredStore([HostTier(), StoreTier(FolderStore(place / "blocks"))])


def flat(rows: Sequence[dict[str, Any]]) -> Records:
    """Return the rows with counts in place of receipts, for a table."""
    return [
        {name: value for name, value in row.items() if name != "receipt"}
        | {
            "reused": row["receipt"].count("reused"),
            "shifted": row["receipt"].rerotated,
            "recomputed": row["receipt"].recomputed,
            "encoded": row["receipt"].count("encoded"),
            "computed": row["receipt"].count("computed"),
            "bytes": sum(row["receipt"].bytes.values()),
            "tiers": ", ".join(f"{size / 1e6:.1f} {tier}" for tier, size in row["receipt"].bytes.items()) or "–",
            "misses": ", ".join(f"{n} {reason}" for reason, n in row["receipt"].misses.items()) or "–",
        }
        for row in rows
    ]
