"""The methods that are measured on a real model, by group: choices of reuse, ratios, sparse prefill, the few."""

from dataclasses import replace

from workbench.methods.config import MethodConfig

RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3)  # besides MAIN
MAIN = 0.15
NEIGHBOURS = (1, 2, 4, 10)
SELECTORS = (
    "random first_k kv_deviation kv_deviation(part=v) "
    "query_guided query_guided(layers=all) query_guided(tokens=last) answer_guided"
).split()
WHOLE = ("oracle", "inter_attention")  # they compute the whole context to score it
Configs = dict[str, MethodConfig]
BLOCK = MethodConfig(mode="block")
BFLA = "bfla(block={}, tile=64, flat={}, mass={})"
SPARSE = (  # spec, and rows of a chunk
    *((BFLA.format(block, block // 4, mass), None) for block in (64, 128, 256) for mass in (0.9, 0.99)),
    *((f"flash_prefill(alpha={alpha})", None) for alpha in (0.02, 0.1, 0.3)),
    *((f"xattention(threshold={share})", None) for share in (0.5, 0.7, 0.9)),
    *((f"vertical_slash(vertical={n}, slash={2 * n})", None) for n in (100, 300, 1000)),
    *((f"quoka(keep={keep})", chunk) for keep in (0.1, 0.25) for chunk in (256, 1024)),
    *((f"compact(over=flash_prefill(alpha={alpha}))", chunk) for alpha in (0.1, 0.3) for chunk in (256, 1024)),
    *((f"random(block=64, share={share}, local=8)", None) for share in (0.05, 0.1, 0.2, 0.4)),
    *((f"oracle(mass={mass})", None) for mass in (0.8, 0.95)),
)
# where there is a gate
SEER = tuple(f"seer_attention(threshold={share})" for share in (0.05, 0.02, 0.01, 0.005, 0.002))


def choices(minilm: str | None) -> dict[str, MethodConfig]:
    """Return preparations, selectors, and both, by a name that says them."""
    listed = {
        "full": MethodConfig(),
        "naive positions": replace(BLOCK, positions="naive"),
        "independent": BLOCK,
        "after_system": replace(BLOCK, prepare="after_system"),
    }
    listed |= {with_neighbours(n): replace(BLOCK, prepare=with_neighbours(n)) for n in NEIGHBOURS}
    for n in (4, 10) if minilm else ():
        listed[f"with_neighbours(n={n}, embedder=minilm)"] = replace(BLOCK, prepare=with_neighbours(n, minilm))
    pairs = [("after_system", select) for select in (*SELECTORS, *WHOLE)]
    pairs += [(TEN, select) for select in (*SELECTORS[:3], *SELECTORS[4:6], "answer_guided")]
    pairs += [("independent", select) for select in ("first_k", "kv_deviation", "query_guided", "answer_guided")]
    pairs += [(with_neighbours(4), "answer_guided")]
    listed |= dict(chosen(*pair, MAIN) for pair in pairs)
    return listed | dict([chosen("after_system", "cache_craft", None)])


def ratios(minilm: str | None) -> dict[str, MethodConfig]:
    """Return the selectors at the other ratios."""
    pairs = [("after_system", select) for select in (*SELECTORS, *WHOLE)] + [
        (TEN, "query_guided"),
        (TEN, "answer_guided"),
    ]
    return dict(chosen(*pair, ratio) for ratio in RATIOS for pair in pairs)


def sparse(minilm: str | None) -> dict[str, MethodConfig]:
    """Return sparse prefills, at once or in chunks."""
    return {"full": MethodConfig()} | {
        spec + (f" in chunks of {chunk}" if chunk else ""): MethodConfig(sparse=spec, chunk=chunk)
        for spec, chunk in (*SPARSE, *((spec, None) for spec in SEER))
    }


def few(minilm: str | None) -> dict[str, MethodConfig]:
    """Return what a fine-tuned model is measured with."""
    every = choices(minilm)
    return {name: every[name] for name in every if name in FEW}


def chosen(prepare: str, select: str, ratio: float | None) -> tuple[str, MethodConfig]:
    """Return a method of both choices with its name."""
    name = f"{prepare}, {select}" + ("" if ratio is None else f" {ratio:.0%}")
    return name, replace(BLOCK, prepare=prepare, select=select, ratio=ratio)


def with_neighbours(n: int, embedder: str | None = None) -> str:
    """Return the preparation behind the n passages most alike."""
    written = embedder and (embedder if embedder.isidentifier() else repr(embedder))
    return f"with_neighbours(n={n}, search=exact{f', embedder={written}' if written else ''})"


TEN = with_neighbours(10)
FEW = {
    "full",
    "naive positions",
    "independent",
    "after_system",
    TEN,
    "independent, kv_deviation 15%",
    "independent, first_k 15%",
}
FEW |= {f"{p}, {s} 15%" for p in ("independent", "after_system", TEN) for s in ("answer_guided", "query_guided")}
GROUPS = {"choices": choices, "ratios": ratios, "sparse": sparse, "few": few}
