"""Sentences about differences, worded by their sign and by whether an interval leaves it open; no claim is fixed text.

A difference is in points (hundredths of a share), between things that were measured on the same questions.
"""

from collections.abc import Sequence

from workbench.metrics.answers import Interval

NOTHING = 1e-9  # what counts as no difference


def compared(one: str, other: str, gap: float, interval: Interval | None = None) -> str:
    """Say how far `one` stands above or below `other`: "A 7.4 points above B (2.8 to 12.0)".

    `gap` and `interval` are shares, one minus other. An interval that holds 0 is called no difference that shows.
    """
    if interval is not None and interval[0] <= 0 <= interval[1]:
        low, high = (f"{end * 100:+z.1f}" for end in interval)
        level = "level with" if abs(gap) < NOTHING else f"{gap * 100:+z.1f} points to"
        return f"{one} {level} {other} ({low} to {high}: no difference that shows)"
    if abs(gap) < NOTHING:
        return f"{one} level with {other}"
    ends = sorted(abs(end) * 100 for end in interval or ())
    said = f" ({ends[0]:.1f} to {ends[1]:.1f})" if ends else ""
    return f"{one} {abs(gap) * 100:.1f} points {'above' if gap > 0 else 'below'} {other}{said}"


def judged(source: str, claim: str, holds: bool | None) -> str:
    """Say whether what was measured here agrees with a claim of a paper; None: it leaves that open."""
    if holds is None:
        return f"{source} says that {claim}: left open here."
    return f"{source} says that {claim}: {'confirmed' if holds else 'contradicted'} here."


def sentence(text: str) -> str:
    """Return a text as a sentence: its first letter a capital, the others as they are, a full stop at its end."""
    return f"{text[:1].upper()}{text[1:].rstrip()}{'' if text.rstrip().endswith(('.', '?', '!')) else '.'}"


def times(ratio: float, more: str, less: str) -> str:
    """Say a ratio of two times from its larger side: 2 → "2.0 times <more>", 0.5 → "2.0 times <less>"."""
    return f"{ratio:.1f} times {more}" if ratio >= 1 else f"{1 / ratio:.1f} times {less}"


def joined(parts: Sequence[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
