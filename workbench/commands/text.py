"""What the commands print alike."""


def plain(text: str) -> str:
    """One line of text, safe to print among rich's markup."""
    return " ".join(text.split()).replace("[", r"\[")
