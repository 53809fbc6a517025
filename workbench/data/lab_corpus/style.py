"""Options of the lab corpus that make its text harder or easier to read: `lab(hints=0)`; `lab` has the defaults."""

from dataclasses import dataclass, fields
from math import inf

from workbench.core import spec_parser
from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_fields

NAME = "lab"


@dataclass(frozen=True)
class Style:
    """Options of the text of a world; the defaults are the lab corpus. Raises BadInput for a value out of range."""

    facts: int = 4  #: fact sentences in a passage
    pronouns: float = 0.5  #: share of sentences with a pronoun instead of the name
    continued: float = 0.35  #: share of people and companies whose document has a second passage
    aliases: float = 0.3  #: share of mentions of a company that use its alias
    asides: float = 1.6  #: mean number of sentences in a passage that state no fact
    hints: float = 1.0  #: share of continued documents whose second title gives the trade or alias of its subject
    alike: float = 0.0  #: share of worlds whose entities are of one kind and have the same relations

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
    """Return whether a name is that of the lab corpus: `lab`, with or without options in brackets."""
    return name.partition("(")[0].strip() == NAME


def style_named(name: str) -> Style:
    """Return the style of `lab`, `lab(hints=0)`, … Raises BadInput for another name or an unknown option."""
    head, options = spec_parser.parse(name)
    if head != NAME:
        raise BadInput(f"unknown lab corpus {head!r}: allowed is {NAME}, with switches in brackets")
    switches = [declared.name for declared in fields(Style)]
    if unknown := [option for option in options if option not in switches]:
        raise BadInput(f"{head} has no switch {unknown[0]!r}; allowed: {', '.join(switches)}")
    return Style(**options)
