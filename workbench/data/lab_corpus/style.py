"""How hard the text of a lab world is: switches one by one, and two settings of them by name.

lab                 the plain corpus: every switch at its default
lab-hard            all switches set (`HARD`)
lab(hints=0, titles=kept), lab-hard(chain=2)        a corpus by name with some of them set otherwise
"""

from dataclasses import dataclass, fields, replace

from workbench.core import spec_parser
from workbench.core.errors import BadInput

TITLES = ("continued", "kept")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(fits: bool, name: str, value: object, rule: str) -> None:
    if not fits:
        raise BadInput(f"{name} is {value!r}: {rule}")


@dataclass(frozen=True)
class Style:
    """How hard the text of a world is; the defaults are the lab corpus, training begins with less.

    Raises BadInput for a value that is not allowed.
    """

    facts: int = 4  # sentences a passage
    pronouns: float = 0.5  # share of sentences that say "She" where a name could stand
    continued: float = 0.35  # share of people and companies whose document has a second passage
    aliases: float = 0.3  # share of mentions of a company that use its alias
    asides: float = 1.6  # sentences a passage, on average, that say nothing one could ask for
    hints: float = 1.0  # share of continued documents whose second title says the trade or alias of its subject
    alike: float = 0.0  # share of worlds whose entities are of one kind and tell the same things of themselves
    chain: int = 2  # most passages of a document: 2, or 3 for half of those that go on
    titles: str = "continued"  # of passages that go on; "kept": every document has a title that all its passages bear
    paraphrases: float = 0.0  # share of facts that are stated in words which no question uses
    distractors: float = 0.0  # sentences a passage, on average, that say of another what it says of its subject
    phrases: float = 0.0  # share of answers from word lists that have two or three words ("small spotted horse")
    values: float = 0.0  # share of facts that hold of two or three objects, all of which are asked for
    middle: float = 0.0  # share of questions whose evidence stands in the middle of the context

    def __post_init__(self) -> None:
        for declared in fields(self):
            name, value = declared.name, getattr(self, declared.name)
            if name == "titles":
                _check(value in TITLES, name, value, f"it is {' or '.join(TITLES)}")
            elif name in ("facts", "chain"):
                _check(_whole(value) and value >= 1, name, value, "a whole number of at least 1 is needed")
            else:
                _check(isinstance(value, int | float) and value >= 0, name, value, "a number of 0 or more is needed")
                _check(name in ("asides", "distractors") or value <= 1, name, value, "a share from 0 to 1 is needed")
        _check(self.chain in (2, 3), "chain", self.chain, "a document that goes on has up to 2 or 3 passages")


PLAIN = Style()
HARD = Style(
    continued=0.5,
    hints=0.0,
    chain=3,
    titles="kept",
    paraphrases=0.5,
    distractors=0.8,
    phrases=0.5,
    values=0.3,
    middle=0.5,
)
NAMED = {"lab": PLAIN, "lab-hard": HARD}


def is_lab(name: str) -> bool:
    """Whether data of this name are drawn from lab worlds: a name of `NAMED`, with or without switches in brackets."""
    return name.partition("(")[0].strip() in NAMED


def named(name: str) -> Style:
    """Return the style of `lab`, `lab-hard`, `lab(hints=0, titles=kept)`, … Raises BadInput for what is none."""
    head, options = spec_parser.parse(name)
    if head not in NAMED:
        raise BadInput(f"unknown lab corpus {head!r}: allowed are {', '.join(NAMED)}, with switches in brackets")
    switches = [declared.name for declared in fields(Style)]
    if unknown := [option for option in options if option not in switches]:
        raise BadInput(f"{head} has no switch {unknown[0]!r}; allowed: {', '.join(switches)}")
    return replace(NAMED[head], **options)
