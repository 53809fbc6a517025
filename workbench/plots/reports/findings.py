"""Words of sentences about ratios and lists."""

from collections.abc import Sequence


def times(ratio: float, more: str, less: str) -> str:
    """Say a ratio of two times from its larger side: 2 → "2.0 times <more>", 0.5 → "2.0 times <less>"."""
    return f"{ratio:.1f} times {more}" if ratio >= 1 else f"{1 / ratio:.1f} times {less}"


def joined(parts: Sequence[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
