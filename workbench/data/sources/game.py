"""States of a card game, frame after frame: long JSON in which little changes (Block-Attention, appendix A).

A hall in which Dou dizhu is played at several tables. A frame is one move at one table: a player plays cards or passes,
and a table whose round is over deals a new hand. The state of a table is one JSON object,

    {"turn": 2, "lead": "pair 7", "chips": [30, 27, 33], "S3": [1], "H3": [], …}

where a card's list names the player who holds it and is empty once the card was played. Cut at its leaf groups
(`segment.state`) this gives 56 blocks a table. JSON keys and values are short, so that a hall of six tables, 336
blocks, fits a context of 4,096 tokens of the lab model's tokenizer.

The rules are those of Dou dizhu without its rarer combinations: singles, pairs, triples, straights of five, bombs and
the rocket; the landlord has three more cards and plays against the two others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from workbench.core.errors import BadInput
from workbench.data import segment

RANKS = ("3", "4", "5", "6", "7", "8", "9", "T", "J", "Q", "K", "A", "2", "B", "R")  # B and R: the two jokers
SUITS = "SHCD"
DECK = tuple([suit + rank for rank in RANKS[:13] for suit in SUITS] + ["JB", "JR"])
PLAYERS = (1, 2, 3)
CHIPS, STAKE = 30, 3  # chips at the start; stake of a peasant
MOST_TABLES = 64
KINDS = ("holder", "turn", "chips")
RULES = (
    "Card tables t1, t2 and so on. turn: the player to move. lead: what was played last. chips: of players 1, 2, 3. "
    "S3: [1] says that player 1 holds the 3 of spades, S3: [] that it was played.\n"
)


@dataclass(frozen=True)
class Frame:
    """One moment of the hall: its whole `state` (plain JSON values), what just happened, and a question about it."""

    number: int
    state: dict[str, dict[str, Any]]
    event: str
    question: str
    answers: tuple[str, ...]
    kind: str  #: kind of question

    def pieces(self) -> list[str]:
        """Return the state as one piece a leaf group, without the question."""
        return [piece for name, table in self.state.items() for piece in segment.state(table, name)]


def frames(n: int, seed: int = 0, tables: int = 6) -> list[Frame]:
    """Return `n` successive frames of a hall of `tables` tables, each with one question; the seed determines them."""
    if n < 1:
        raise BadInput(f"frames is {n}; at least 1 is needed")
    if not 1 <= tables <= MOST_TABLES:
        raise BadInput(f"tables is {tables}; a hall has 1 to {MOST_TABLES} tables")
    return list(_frames(n, Random(f"game {seed}"), tables))


def _frames(n: int, rng: Random, count: int) -> Iterator[Frame]:
    hall = {f"t{i + 1}": _Table(rng) for i in range(count)}
    for _ in range(12 * count):  # skips the first moves, in which all hands are full
        rng.choice(list(hall.values())).move()
    event = "the hall as it is found"
    for number in range(n):
        if number:
            name = rng.choice(list(hall))
            event = f"{name}: {hall[name].move()}"
        state = {name: table.state() for name, table in hall.items()}
        yield Frame(number, state, event, *_ask(rng, state))


def _ask(rng: Random, state: dict[str, dict[str, Any]]) -> tuple[str, tuple[str, ...], str]:
    """Return a question, the aliases of its answer, and its kind."""
    kind, name = rng.choice(KINDS), rng.choice(list(state))
    table = state[name]
    if kind == "turn":
        return f"Which player is to move at table {name}?", _player(table["turn"]), kind
    if kind == "chips":
        player = rng.choice(PLAYERS)
        return f"How many chips has player {player} at table {name}?", (str(table["chips"][player - 1]),), kind
    card = rng.choice([card for card in DECK if table[card]])
    return f"Which player holds {card} at table {name}?", _player(table[card][0]), kind


def _player(number: int) -> tuple[str, ...]:
    return str(number), f"player {number}"


@dataclass
class _Table:
    """One table; `move` is one player's turn."""

    rng: Random
    chips: list[int] = field(default_factory=lambda: [CHIPS] * 3)

    def __post_init__(self) -> None:
        self.deal()

    def deal(self) -> None:
        self.landlord = self.turn = self.rng.choice(PLAYERS)
        owners = [player for player in PLAYERS for _ in range(17 + 3 * (player == self.landlord))]
        self.rng.shuffle(owners)
        self.held: dict[str, int] = dict(zip(DECK, owners, strict=True))
        self.lead: tuple[str, int] | None = None  # (combination, rank) to beat
        self.passes = 0

    def state(self) -> dict[str, Any]:
        lead = f"{self.lead[0]} {RANKS[self.lead[1]]}" if self.lead else ""
        cards = {card: [self.held[card]] if card in self.held else [] for card in DECK}
        return {"turn": self.turn, "lead": lead, "chips": list(self.chips), **cards}

    def move(self) -> str:
        """Let the current player play or pass; return a description."""
        if all(player in self.held.values() for player in PLAYERS):
            return self._play()
        self.deal()
        return "a new deal"

    def _play(self) -> str:
        player, options = self.turn, self._options()
        self.turn = player % 3 + 1
        if not options or (self.lead and self.rng.random() < 0.2):
            self.passes += 1
            if self.passes == 2:  # not beaten: its player leads
                self.lead, self.passes = None, 0
            return f"player {player} passes"
        name, rank, cards = self.rng.choice(options[:3])  # prefer low ranks
        self.lead, self.passes = (name, rank), 0
        for card in cards:
            del self.held[card]
        if player not in self.held.values():
            self._pay(won=player == self.landlord)
        return f"player {player} plays {' '.join(cards)}"

    def _options(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Return the player's options, low ranks first: (combination, rank, cards)."""
        hand: dict[int, list[str]] = {}
        for card, player in self.held.items():
            if player == self.turn:
                hand.setdefault(RANKS.index(card[1]), []).append(card)
        combinations = [
            (name, rank, tuple(cards[:size]))
            for name, size in (("single", 1), ("pair", 2), ("triple", 3), ("bomb", 4))
            for rank, cards in sorted(hand.items())
            if len(cards) >= size
        ]
        for low in range(8):  # up to T J Q K A
            if all(low + i in hand for i in range(5)):
                combinations.append(("straight", low, tuple(hand[low + i][0] for i in range(5))))
        if 13 in hand and 14 in hand:
            combinations.append(("rocket", 14, (*hand[13], *hand[14])))
        allowed = [option for option in combinations if self._beats(option[0], option[1])]
        return sorted(allowed, key=lambda option: (option[0] in ("bomb", "rocket"), option[1], -len(option[2])))

    def _beats(self, name: str, rank: int) -> bool:
        if self.lead is None:
            return True
        strength = {"bomb": 1, "rocket": 2}
        mine, theirs = strength.get(name, 0), strength.get(self.lead[0], 0)
        return mine > theirs or (name == self.lead[0] and rank > self.lead[1])

    def _pay(self, won: bool) -> None:
        """Move the stake from both peasants to the landlord, or the other way round."""
        for player in PLAYERS:
            share = 2 * STAKE if player == self.landlord else -STAKE
            self.chips[player - 1] += share if won else -share
