"""Reports of `workbench bench chunk_…`, `chunked` and `prefill` read back: how many times as fast as dense, by length.

Every function returns rows for figures, and none where its report is not committed. `low` and `high` are the
ends of one side over those of the other (`latency.ratio`): percentiles, or of few runs the least and the most.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.experiments import results
from workbench.metrics import latency
from workbench.metrics.answers import Records

Timed = Mapping[str, Any]  # {who, ms, p5, p95, runs, least, most}
UNIT = 1024  # tokens
PRINTED_AT = 128 * UNIT  # tokens at which CompactAttention prints its speed-ups
KEPT = ", means kept"  # from chunk to chunk, as the engine keeps them: a whole prefill does so
FLAT = 1.1  # times as long a token at the longest prompt as at the shortest, at most: it did not grow
METHODS = {  # label of a report → spec, as figures name it
    "ours": "compact(over=flash_prefill)",
    "ours, means kept from chunk to chunk": "compact(over=flash_prefill)" + KEPT,
    "ours over seer_attention": "compact(over=seer_attention)",
    "flash_prefill": "flash_prefill",
    "seer_attention": "seer_attention",
    "xattention": "xattention",
    "quoka": "quoka",
}
ALSO = "ours, dense"  # of a whole model: the same engine without a method


def works(name: str) -> list[Mapping[str, Any]]:
    """Return the workloads of a report; none where it is not committed."""
    readers = {
        "chunk_kernels": lambda: results.read("chunk_kernels"),
        "chunk_choices": lambda: results.read("chunk_choices"),
        "chunk_attention": lambda: results.read("chunk_attention"),
        "chunked": lambda: results.read("chunked"),
        "prefill": lambda: results.read("prefill"),
    }
    return list(readers[name]()["workloads"]) if name in results.names() else []


def gpu(name: str) -> str:
    """Return the GPU of a report; "" where it is not committed."""
    return str(results.read(name)["card"]) if name in results.names() else ""


def timed(work: Mapping[str, Any]) -> dict[str, Timed]:
    """Return the candidates of a workload that ran, by their names."""
    return {one["who"]: one for one in work["contestants"] if one.get("ms")}


def fastest_dense(candidates: Mapping[str, Timed]) -> Timed | None:
    """Return the fastest of the dense baselines that others made."""
    dense = [one for who, one in candidates.items() if who.endswith(", dense") and not who.startswith("ours")]
    return min(dense, key=lambda one: float(one["ms"]), default=None)


def ratio(slow: Timed, fast: Timed) -> dict[str, float]:
    """Return {mean, low, high, runs}: how many times as long `slow` takes as `fast`."""
    mean, low, high = latency.ratio(slow, fast)
    return {"mean": mean, "low": low, "high": high, "runs": int(min(slow["runs"], fast["runs"]))}


def equal_sparsity() -> Records:
    """Return rows {name, of, density, against, mean, low, high, runs}: figure 1b of CompactAttention."""
    rows = []
    for work in works("chunk_kernels"):
        candidates, shape = timed(work), work["shape"]
        dense = fastest_dense(candidates)
        whole = shape["rows"] == shape["keys"]
        for who in ("ours", "ours, pages of a union"):
            if dense and who in candidates:
                about = {"name": who, "of": "one pass" if whole else f"a chunk of {shape['rows']:,}"}
                about |= {"whole": whole, "keys": shape["keys"], "density": shape["density"], "against": dense["who"]}
                rows.append(about | ratio(dense, candidates[who]))
    return rows


def searches() -> Records:
    """Return rows {name, way, at, ms, low, high, …}: figure 1c, choices in one pass and summed over chunks."""
    rows = []
    for work in works("chunk_choices"):
        for who, one in timed(work).items():
            name, _, way = who.partition(", ")
            numbers = {key: one.get(key) for key in ("ms", "p5", "p95", "runs", "least", "most")}
            low, high = latency.spread(one) or (one["p5"], one["p95"])
            about = {"name": name, "way": way, "at": work["shape"]["tokens"], "low": low, "high": high}
            rows.append({**about, **numbers})
    return sorted(rows, key=lambda row: row["at"])


def attention() -> Records:
    """Return rows {name, at, against, mean, low, high, runs}: figure 5, attention of the last chunk."""
    return sorted(_over_dense("chunk_attention", "keys", None), key=lambda row: row["at"])


def whole_prefill() -> Records:
    """Return rows {name, at, against, mean, low, high, runs}: figure 5, the whole prompt in chunks."""
    return sorted(_over_dense("chunked", "tokens", ALSO), key=lambda row: row["at"])


def _over_dense(report: str, length: str, against: str | None) -> Iterator[dict[str, Any]]:
    for work in works(report):
        candidates = timed(work)
        beside = candidates.get(against) if against else fastest_dense(candidates)
        for who, spec in METHODS.items():
            one = candidates.get(who)
            if one and (dense := one.get("dense") or beside):  # of its own run, where the report holds several
                about = {"name": spec, "at": work["shape"][length], "against": dense["who"]}
                yield about | ratio(dense, one) | {"density": one.get("density")}


def untimed() -> list[str]:
    """List the methods whose attention is timed in chunks (figure 5) and whose whole prefill is not."""
    whole = {row["name"] for row in whole_prefill()}
    names = dict.fromkeys(row["name"].removesuffix(KEPT) for row in attention())
    return [name for name in names if whole and name not in whole]


def flat() -> list[str]:
    """List the methods whose whole prefill takes as long a token at the longest prompt as at the shortest.

    Attention over more keys takes longer, so the GPU waits there for the host that launches its kernels.
    """
    rates: dict[str, list[float]] = {}
    for work in sorted(works("chunked"), key=lambda work: float(work["shape"]["tokens"])):
        for who, one in timed(work).items():
            rates.setdefault(who, []).append(one["ms"] / work["shape"]["tokens"])
    return [METHODS[who] for who, of in rates.items() if who in METHODS and len(of) > 1 and of[-1] < FLAT * of[0]]


def one_pass(name: str = "ours") -> Records:
    """Return rows {at, density, mean, low, high, runs}: dense attention over BFLA by length (BFLA, tables 1 and 2)."""
    rows = []
    for work in works("prefill"):
        candidates = timed(work)
        if name in candidates and ALSO in candidates:
            about = {"at": work["shape"]["tokens"], "density": candidates[name].get("density")}
            rows.append(about | ratio(candidates[ALSO], candidates[name]))
    return sorted(rows, key=lambda row: row["at"])


def missing(names: Sequence[str]) -> list[str]:
    """List the reports of these that are not committed."""
    return [name for name in names if not works(name)]
