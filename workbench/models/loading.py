"""Load a model with its tokenizer and prompt layout; the checkpoint is checked first.

Loading to a CPU also makes glibc keep freed memory (`keep_freed`). A request over cached blocks allocates memory for
its KV and frees it after the answer. By default glibc returns that memory to the system, and the next request pays the
page faults again. On a GPU, torch caches freed memory anyway.
"""

import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from workbench.core.errors import BadInput
from workbench.core.utils import stages
from workbench.core.utils.watched import progress_shown
from workbench.data import chat_template, layouts
from workbench.data.layouts import Layout
from workbench.models import float8, model_names
from workbench.models.checked_config import check_headers, check_loaded, config_of, is_blank, reason
from workbench.models.checkpoints import COMPACT, DIFFERENCE, adapter_of, base_folder, chain, check, read_json, shards
from workbench.models.model_card import layout_of, tokenizer_of
from workbench.models.model_names import check_dtype, device_of, folder
from workbench.models.spec import ModelSpec, attach
from workbench.models.weights import compact, delta_weights, soft_tokens
from workbench.models.weights.compact import by_input_channel

TOKENIZERS = WeakKeyDictionary[PreTrainedModel, PreTrainedTokenizerBase]()  # tokenizers of loaded models
DTYPES = {name: getattr(torch, name, torch.bfloat16) for name in model_names.DTYPES}  # float8-products: bfloat16


class Loaded(NamedTuple):
    """A model with tokenizer and prompt layout: `model, tokenizer, layout = models.load(name)`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    layout: Layout

    def __repr__(self) -> str:
        return f"Loaded({self.spec!r}, {type(self.tokenizer).__name__}, layout {self.layout.name!r})"

    @property
    def spec(self) -> ModelSpec:
        """`ModelSpec` of the model (layers, shapes, context, sliding windows); attaches it (`spec.attach`)."""
        return attach(self.model)

    def with_layout(self, layout: "str | Layout | None") -> "Loaded":
        """Return the same model with another layout, by name or file; None: its own."""
        return self if layout is None else self._replace(layout=_layout(layout, self.tokenizer))


@torch.inference_mode(False)
def load(
    name_or_path: str | Path,
    device: str = "cpu",
    dtype: str | torch.dtype | None = None,
    layout: str | Layout | None = None,
) -> Loaded:
    """Load (model, tokenizer, layout) by name, from a checkpoint folder, or from the local Hugging Face cache.

    dtype   None: float32 on the CPU, the checkpoint's own on an accelerator; "float8-products": bfloat16 with products
            of many rows in float8 (`models.float8`), on a Hopper GPU
    layout  None: the model's own (`model_card.layout_of`); else a `Layout`, "lab", "released", "chat" or a JSON file

    Nothing is downloaded. On the CPU, the process keeps freed memory from then on (`keep_freed`), and weights get the
    memory layout with the fastest products (`models.weights.compact`). Raises BadInput for an unknown name, device,
    dtype or layout, and for an incomplete checkpoint, before weights are read.
    """
    with progress_shown("model"):
        return _load(name_or_path, device, dtype, layout)


def _load(
    name_or_path: str | Path, device: str, dtype: str | torch.dtype | None, layout: str | Layout | None
) -> Loaded:
    path, place, number = folder(name_or_path), device_of(device), _dtype(dtype)
    if dtype == float8.NAME:
        float8.check(place)
    stages.stage(f"loading {path.name}")
    layouts.check(layout if isinstance(layout, str) else None)
    check(path)
    base = base_folder(path)
    config = config_of(base, read_json(base / "config.json"))
    if (base / DIFFERENCE).is_file():
        delta_weights.base_of(base)
    elif not (base / COMPACT).is_file():
        check_headers(config, base, shards(base))
    tokenizer = tokenizer_of(base)
    layout = layout_of(path, tokenizer) if layout is None else _layout(layout, tokenizer)
    if number is None:
        number = torch.float32 if place.type == "cpu" else "auto"
    try:
        with _no_bar():
            model, report = _weights(base, number, config)
    except Exception as problem:  # classes of transformers and quantisation packages may raise anything
        raise BadInput(f"{path} cannot be loaded as a causal language model: {reason(problem)}") from problem
    if left_out := check_loaded(path, model, report):
        warnings.warn(left_out, stacklevel=3)
    if is_blank(model):
        warnings.warn(f"{path}: its weights are zero, so its answers are meaningless", stacklevel=3)
    for each in chain(path):
        adapter_of(each).merge(model)
        soft_tokens.load(model, each)
        model.name_or_path = str(path)  # the path of this model, not of its base
    if place.type == "cpu":
        keep_freed()
        by_input_channel(model)
    if dtype == float8.NAME:
        float8.ask(model)
    TOKENIZERS[model] = tokenizer
    return Loaded(model.to(place).eval(), tokenizer, layout)


def tokenizer_for(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Return the tokenizer that a model was loaded with. Raises BadInput for a model that `load` did not load."""
    if model not in TOKENIZERS:
        raise BadInput(f"{type(model).__name__} has no tokenizer here: load it with `models.load` where text is needed")
    return TOKENIZERS[model]


@contextmanager
def _no_bar() -> Iterator[None]:
    """Hide transformers' progress bar for weights if a command shows its own progress, or without a terminal.

    In a notebook, the bar would stay visible, in red.
    """
    hidden = logging.is_progress_bar_enabled() and (stages.are_heard() or not sys.stderr.isatty())
    if hidden:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            logging.enable_progress_bar()


def _weights(base: Path, dtype: Any, config: PreTrainedConfig) -> Any:
    """Return the model with its weights, and a report of missing, unexpected or mismatched weights."""
    if (base / COMPACT).is_file():
        return compact.load(base, dtype)
    if (base / DIFFERENCE).is_file():
        return compact.load_compact(base, delta_weights.restore(base), dtype)
    options: dict[str, Any] = {"dtype": dtype, "local_files_only": True, "output_loading_info": True}
    options |= {"trust_remote_code": False, "use_safetensors": True, "config": config, "ignore_mismatched_sizes": True}
    config._attn_implementation = None  # replaced by the workbench's
    return AutoModelForCausalLM.from_pretrained(base, **options)


def _dtype(dtype: str | torch.dtype | None) -> Any:
    if not isinstance(dtype, str):
        return dtype
    check_dtype(dtype)
    return DTYPES[dtype]


def _layout(layout: str | Layout, tokenizer: PreTrainedTokenizerBase) -> Layout:
    return layout if isinstance(layout, Layout) else chat_template.layout_named(layout, tokenizer)


KEPT = 1 << 30  # maximum freed bytes that the process keeps
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt (malloc.h)


def keep_freed() -> bool:
    """Make glibc keep up to `KEPT` (1 GiB) freed bytes for later allocations; return False without glibc."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    return all([mallopt(_MMAP_THRESHOLD, KEPT), mallopt(_TRIM_THRESHOLD, KEPT)])
