"""Methods ranked on one budget: what is measured for it, and the ranking of any results."""

from workbench.core.errors import not_allowed

# Measure → whether higher is better; the first measured one ranks.
HIGHER = {"kl": False, "nll": False, "em": True, "f1": True, "contains": True}


def check_by(measure: str) -> None:
    """Refuse a measure that does not rank; "" stands for the first that is known."""
    if measure and measure not in HIGHER:
        raise not_allowed("by", measure, HIGHER)
