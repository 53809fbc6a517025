"""How long requests that are ready wait for others, so that one step computes them together.

A step reads the weights once, whatever number of requests it computes: that is its fixed cost, `a`. Where r requests
are ready and B come behind them, a step fewer saves `a` for each that comes behind, and a second of waiting costs all
B + r of them one. So a free engine waits for the next request up to a · B / (B + r) seconds, and begins then with those
that are there. Whoever comes begins that wait anew, as it is worth the same again.
"""

from collections import deque

KEPT = 16  # rounds of every number of requests


class Gathering:
    """Learns the fixed cost of a round of the engine from rounds of different numbers of requests."""

    def __init__(self) -> None:
        self._rounds: dict[int, deque[float]] = {}

    def note(self, requests: int, seconds: float) -> None:
        """Note how long a round took that began with nothing running."""
        self._rounds.setdefault(requests, deque(maxlen=KEPT)).append(seconds)

    @property
    def fixed(self) -> float:
        """Seconds of a round of no requests, by the line through those of the fewest and the most; 0 if not known."""
        if len(self._rounds) < 2:
            return 0.0
        few, many = min(self._rounds), max(self._rounds)
        least = {count: min(seconds) for count, seconds in self._rounds.items()}  # the first of a shape is slow
        more = (least[many] - least[few]) / (many - few)
        return max(0.0, min(least[few] - more * few, *least.values()))

    def until(self, since: float, ready: int, behind: int) -> float:
        """Return the moment to begin at: `since` is when the engine was free, or the last one came, if later."""
        return since + self.fixed * behind / (behind + ready)
