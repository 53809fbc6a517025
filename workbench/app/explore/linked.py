"""The token that is looked at: explorers of one prompt share it, and every figure of them marks it."""

from weakref import WeakValueDictionary

from traitlets import HasTraits, Int

from workbench.core.blocks import Prompt


class Selection(HasTraits):
    """`token` is a position of the prompt; -1: none is chosen. Figures follow it, a click on a figure sets it."""

    token = Int(-1)


_KNOWN: WeakValueDictionary[tuple[str, ...], Selection] = WeakValueDictionary()


def selection_of(prompt: Prompt) -> Selection:
    """Return the selection that all explorers of this prompt share, as long as one of them lives."""
    return _KNOWN.setdefault(tuple(block.content for block in prompt.blocks), Selection())
