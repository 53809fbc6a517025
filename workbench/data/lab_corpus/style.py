"""How hard the text of a lab world is: `lab` has all switches at their defaults, `lab(hints=0)` one set otherwise."""

from dataclasses import dataclass, fields
from math import inf

from workbench.core import spec_parser
from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_fields

NAME = "lab"


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

    def __post_init__(self) -> None:
        check_fields(self)
        if self.facts < 1:
            raise BadInput(f"facts is {self.facts}: a whole number of at least 1 is needed")
        for name, value in vars(self).items():
            if not 0 <= value < inf:
                raise BadInput(f"{name} is {value}: a number of 0 or more is needed")
            if value > 1 and name not in ("facts", "asides"):
                raise BadInput(f"{name} is {value}: a share from 0 to 1 is needed")


PLAIN = Style()


def is_lab(name: str) -> bool:
    """Whether data of this name are drawn from lab worlds: `lab`, with or without switches in brackets."""
    return name.partition("(")[0].strip() == NAME


def named(name: str) -> Style:
    """Return the style of `lab`, `lab(hints=0)`, … Raises BadInput for what is none."""
    head, options = spec_parser.parse(name)
    if head != NAME:
        raise BadInput(f"unknown lab corpus {head!r}: allowed is {NAME}, with switches in brackets")
    switches = [declared.name for declared in fields(Style)]
    if unknown := [option for option in options if option not in switches]:
        raise BadInput(f"{head} has no switch {unknown[0]!r}; allowed: {', '.join(switches)}")
    return Style(**options)
