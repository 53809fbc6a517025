"""Scores of answers, and confidence intervals of their means."""

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.core.errors import BadInput

Interval = tuple[float, float]
Records = list[dict[str, Any]]  # rows of a table
RESAMPLES = 2000
Z = 1.959964  # half-width of a 95% interval in standard deviations
DRAWS = 1 << 16  # maximum number of draws in memory at a time
CACHED = 1 << 22  # maximum number of draws that are cached for methods with the same number of questions
FIRST_CJK = "\u2e80"  # first character of scripts without spaces between words
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Normalise an answer as SQuAD does, after Unicode NFD (DPR): lower case, no punctuation, articles or extra spaces.

    A text that has only articles and punctuation ("The", "?!") is only lower-cased, because it would become empty.
    """
    plain = unicodedata.normalize("NFD", text).lower()
    bare = " ".join(re.sub(r"\b(a|an|the)\b", " ", plain.translate(_PUNCTUATION)).split())
    return bare or " ".join(plain.split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 if the prediction equals an alias after normalisation, else 0.0 (SQuAD)."""
    return float(any(normalise(prediction) == normalise(answer) for answer in answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return word-level F1 (ROUGE-1), 0 to 1, after normalisation, the highest over aliases (SQuAD; FusionRAG)."""
    return max(_overlap(normalise(prediction).split(), normalise(answer).split()) for answer in answers)


def contains(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 if the prediction contains an alias as whole words, both normalised, else 0.0.

    This is Block-Attention's accuracy (section 3.1) and the sub-span match of Lost in the Middle. "19" does not contain
    "9".
    """
    text = normalise(prediction)
    return float(any(_contains_words(text, normalise(answer)) for answer in answers))


def _contains_words(text: str, words: str) -> bool:
    """Return whether `text` contains `words` between word boundaries; CJK text has no boundaries."""
    ends = [(at - 1, at, at + len(words) - 1, at + len(words)) for at in _occurrences(text, words)]
    return text == words or any(
        not (before >= 0 and _same_word(text[before], text[first]))
        and not (after < len(text) and _same_word(text[last], text[after]))
        for before, first, last, after in ends
    )


def _occurrences(text: str, words: str) -> Iterator[int]:
    """Yield the positions of `words` in `text`."""
    at = text.find(words) if words else -1
    while at >= 0:
        yield at
        at = text.find(words, at + 1)


def _same_word(one: str, other: str) -> bool:
    return one.isalnum() and other.isalnum() and max(one, other) < FIRST_CJK


def _overlap(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))


def wilson(successes: float, n: int) -> Interval:
    """Return Wilson's 95% score interval of a proportion; (0, 1) without observations."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    spread = Z * Z / n
    middle = share + spread / 2
    half = Z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return the percentile bootstrap 95% interval of the mean, determined by `seed`; (nan, nan) without values."""
    return bootstraps([values], seed, resamples)[0]


def bootstraps(
    samples: Sequence[Sequence[float] | np.ndarray], seed: int = 0, resamples: int = RESAMPLES
) -> list[Interval]:
    """Return the `bootstrap` interval of every sample; samples of equal length are computed together."""
    scores = [np.asarray(values, dtype=float) for values in samples]
    intervals = [(math.nan, math.nan)] * len(scores)
    for size in sorted({each.size for each in scores} - {0}):
        indices = [at for at, each in enumerate(scores) if each.size == size]
        table = np.stack([scores[at] for at in indices], axis=1)
        means = np.concatenate([drawn @ table for drawn in _draws(size, resamples, seed)]) / size
        for at, low, high in zip(indices, *np.quantile(means, [0.025, 0.975], axis=0).tolist(), strict=True):
            intervals[at] = low, high
    return intervals


def _draws(n: int, resamples: int, seed: int) -> Iterable[np.ndarray]:
    """Resample n questions with replacement; return the counts per resample, [resamples of this part, n]."""
    return _cached(n, resamples, seed) if n * resamples <= CACHED else _sampled(n, resamples, seed)


@lru_cache(maxsize=4)
def _cached(n: int, resamples: int, seed: int) -> list[np.ndarray]:
    return [np.concatenate(list(_sampled(n, resamples, seed)))]


def _sampled(n: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    rng, at_once = np.random.default_rng(seed), max(1, DRAWS // n)
    for start in range(0, resamples, at_once):
        drawn = rng.integers(0, n, (min(at_once, resamples - start), n))
        flat = (drawn + n * np.arange(len(drawn))[:, None]).ravel()
        yield np.bincount(flat, minlength=drawn.size).reshape(drawn.shape).astype(float)


@lru_cache(maxsize=8)
def resample_counts(n: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return how often each of n questions is in each resample: [resamples, n], rows sum to n; cached, so read-only."""
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), resamples)
    counts.flags.writeable = False
    return counts


def bootstrap_columns(values: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return percentile bootstrap 95% intervals (low [C], high [C]) of the column means of [n, C], resampling rows."""
    n = len(values)
    low, high = np.quantile(resample_counts(n, seed=seed) @ values / n, [0.025, 0.975], axis=0)
    return low, high


def normalised(scores: Sequence[float], reuse: Sequence[float], full: Sequence[float]) -> tuple[float, float, float]:
    """Return (score - reuse) / (full - reuse) of mean scores, with its bootstrap interval (FusionRAG's Normalised F1).

    0 is Full Reuse, 1 is full attention; values outside are possible. The scores are of the same questions, which are
    resampled together. The result is nan if full attention and reuse score the same; an end of the interval is ±inf if
    they do in many resamples.
    """
    table = np.array([scores, reuse, full], dtype=float)
    n = table.shape[1]
    score, low_end, high_end = table.mean(1) if n else np.zeros(3)
    if high_end == low_end:
        return math.nan, math.nan, math.nan
    means = np.concatenate([table @ drawn.T for drawn in _draws(n, RESAMPLES, seed=0)], axis=1) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        resampled = (means[0] - means[1]) / (means[2] - means[1])
    low, high = np.nanquantile(resampled, [0.025, 0.975], method="nearest")
    return float((score - low_end) / (high_end - low_end)), float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over `n` answers with 95% intervals: Wilson's for exact match and `contains`, bootstrap for F1.

    `n` counts the questions with a gold answer. Without any, the other fields are None.
    """

    n: int
    em: float | None
    em_low: float | None
    em_high: float | None
    f1: float | None
    f1_low: float | None
    f1_high: float | None
    contains: float | None  #: share of answers that contain an alias
    contains_low: float | None
    contains_high: float | None


def score(predictions: Sequence[str], answers: Sequence[Sequence[str]], seed: int = 0) -> Score:
    """Score predictions against the aliases of their answers; questions without aliases are left out."""
    if not predictions or len(predictions) != len(answers):
        raise BadInput(f"{len(predictions)} predictions for {len(answers)} answers: one per answer is needed")
    pairs = [pair for pair in zip(predictions, answers, strict=True) if pair[1]]
    n = len(pairs)
    means: dict[str, float | None] = {}
    for name, measure in (("em", exact_match), ("f1", f1), ("contains", contains)):
        if not n:
            means |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
            continue
        values = [measure(*pair) for pair in pairs]
        low, high = bootstrap(values, seed) if measure is f1 else wilson(sum(values), n)
        means |= {name: sum(values) / n, f"{name}_low": low, f"{name}_high": high}
    return Score(n=n, **means)
