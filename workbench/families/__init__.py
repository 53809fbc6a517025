"""How a model family rotates its keys."""
