"""How long a training may take; nothing heavy is imported."""

from workbench.core.errors import BadInput


def check_minutes(minutes: float) -> None:
    """Refuse a time to stop after that is negative or no number."""
    if not minutes >= 0:
        raise BadInput(f"minutes is {minutes}: a number of at least 0 is needed")
