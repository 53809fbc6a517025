"""Detect changed modules of a model, for code that runs its layers without calling them."""

from torch import nn
from torch.nn.modules import module as globally


class ModuleWatch:
    """Record the modules of one model, without a reference to the model itself."""

    def __init__(self, model: nn.Module):
        modules = list(model.modules())
        self._children = [(m._modules, dict(m._modules)) for m in modules if m._modules]
        self._own = [vars(m) for m in modules]
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]

    @property
    def changed(self) -> bool:
        """Whether a module was replaced, hooked, compiled or given another forward pass."""
        return (
            any(now != then for now, then in self._children)
            or any(self._hooks)
            or bool(globally._global_forward_hooks or globally._global_forward_pre_hooks)
            or any("forward" in own or "_hf_hook" in own or own.get("_compiled_call_impl") for own in self._own)
        )
