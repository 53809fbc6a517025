"""Whether the weights of a model lie where they lay: captured steps keep addresses, and fused layers keep tensors.

Torch tells whenever a module is given a parameter; only after that all parameters are looked at again.
"""

from itertools import chain
from operator import is_

from torch.nn import Module
from torch.nn.modules.module import register_module_parameter_registration_hook

SOME = 96  # modules, of one of which the place of its weights is looked at: `model.to` moves them all
_GIVEN = [0]  # how often any module was given a parameter


def _count(_module: Module, _name: str, _parameter: object) -> None:
    _GIVEN[0] += 1


register_module_parameter_registration_hook(_count)


class WeightWatch:
    """The parameters of a model as they are now."""

    def __init__(self, model: Module):
        self._given = _GIVEN[0]
        self._owners = [module._parameters for module in model.modules() if module._parameters]
        self._known = list(chain.from_iterable(map(dict.values, self._owners)))
        self._some = [weight for weight in self._known[::SOME] if weight is not None]
        self._places = [weight.data_ptr() for weight in self._some]

    @property
    def exchanged(self) -> bool:
        """Whether a parameter was put in the place of another, or all of them were moved (`model.to`)."""
        if self._given != _GIVEN[0]:
            self._given = _GIVEN[0]
            if not all(map(is_, chain.from_iterable(map(dict.values, self._owners)), self._known)):
                self._places = []  # it stays so
        return self._places != [weight.data_ptr() for weight in self._some]
