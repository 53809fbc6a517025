"""The one error a user's input can cause."""


class BadInput(ValueError):
    """One sentence that names the value and what is allowed; raised before any work is done."""


class Unsupported(BadInput, NotImplementedError):
    """A model that cannot be used here: one sentence that names it and the reason."""
