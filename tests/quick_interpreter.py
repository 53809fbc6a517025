"""Triton's interpreter looks through its language, makes types and checks for overflow at every step; here, once."""

import inspect
from dataclasses import replace
from functools import cache


def install() -> None:
    """Let the interpreter remember what it replaces and which types there are; without Triton, do nothing."""
    try:
        import triton.language as tl
        from triton.runtime import interpreter
    except ImportError:
        return
    _replace_once(tl, interpreter)
    _remember_types(tl, interpreter)
    builder = interpreter.interpreter_builder
    assert not builder.options.debug  # only then does an overflow, once computed, stop anything
    builder.options = replace(builder.options, sanitize_overflow=False)


def _replace_once(tl, interpreter) -> None:
    """Replace the builtins of a module once a launch, not at every call of a function."""
    is_builtin, replace_one, replace_all = tl.core.is_builtin, interpreter._patch_attr, interpreter._patch_lang
    launch, replaced = interpreter.GridExecutor.__call__, set()

    @cache
    def builtins(place: object) -> list[str]:
        return [name for name, member in inspect.getmembers(place) if is_builtin(member)]

    def patch_builtin(place: object, *rest: object) -> None:
        for name in builtins(place):
            if is_builtin(member := getattr(place, name)):  # else it is replaced already
                replace_one(place, name, member, *rest)

    def patch_lang(fn):
        if id(fn.__globals__) in replaced:
            return None
        replaced.add(id(fn.__globals__))
        return replace_all(fn)

    def begin(self, *args, **kwargs):
        replaced.clear()
        return launch(self, *args, **kwargs)

    for place in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
        builtins(place)
    interpreter._patch_builtin, interpreter._patch_lang = patch_builtin, patch_lang
    interpreter.GridExecutor.__call__ = begin


def _remember_types(tl, interpreter) -> None:
    """Make the shapes of types and tensors once each: they are not written to."""
    make_type, make_tensor, numpy_type = tl.block_type.__init__, tl.tensor.__init__, interpreter._get_np_dtype

    @cache
    def typed(*shape):
        made = object.__new__(tl.block_type)
        make_type(made, tl.int1, list(shape))
        return made

    @cache
    def shaped(*shape):
        made = object.__new__(tl.tensor)
        make_tensor(made, None, typed(*shape) if shape else tl.int1)
        return made.shape, made.numel

    known = {}

    def numpy_of(kind):
        if kind.name not in known:
            known[kind.name] = numpy_type(kind)
        return known[kind.name]

    def type_of(self, element_ty, shape):
        like = typed(*tl.core._unwrap_shape(shape))
        self.element_ty, self.shape, self.numel = element_ty, like.shape, like.numel
        self.name = f"<{like.name[1 : -len(', int1>')]}, {element_ty}>"

    def tensor_of(self, handle, kind):
        self.shape, self.numel = shaped(*kind.shape) if kind.is_block() else shaped()
        self.handle, self.type, self.dtype = handle, kind, kind.scalar

    tl.block_type.__init__, tl.tensor.__init__, interpreter._get_np_dtype = type_of, tensor_of, numpy_of
