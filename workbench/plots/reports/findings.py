"""Phrases for sentences about ratios and lists."""

from collections.abc import Sequence


def compared(one: str, other: str, gap: float) -> str:
    """Return e.g. "A scores 7.4 points above B"; `gap`, a share, is A minus B."""
    if round(abs(gap), 9) == 0:
        return f"{one} scores the same as {other}"
    return f"{one} scores {abs(gap) * 100:.1f} points {'above' if gap > 0 else 'below'} {other}"


def times(ratio: float, more: str, less: str) -> str:
    """Phrase a ratio of two times as at least 1: 2 → "2.0 times <more>", 0.5 → "2.0 times <less>"."""
    return f"{ratio:.1f} times {more}" if ratio >= 1 else f"{1 / ratio:.1f} times {less}"


def join_words(parts: Sequence[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def paired_difference(one: str, other: str, unit: str, value: float, low: float, high: float, n: int) -> str:
    """Return e.g. "0.2 s lower with A than with B (paired by question, …)", and whether the questions distinguish them.

    `value`, `low` and `high` are of A minus B over `n` questions, in `unit`.
    """
    amount = f"{abs(value):.3f} {unit} {'lower' if value < 0 else 'higher'} with {one} than with {other}"
    told = low > 0 or high < 0
    rest = "" if told else ": these questions cannot distinguish the two"
    return f"{amount} (paired by question, 95% interval {low:+.3f} to {high:+.3f}, n = {n:,}){rest}."
